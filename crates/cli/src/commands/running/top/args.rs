//! The flags of `poncho top`.
//!
//! Filled by clap and read by the files of this folder. No input or output here.

use std::time::Duration;

use crate::client::args::ServerArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Print one frame as plain text and exit
    #[arg(long)]
    pub(crate) once: bool,

    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub(crate) interval: Duration,

    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not a valid interval; write seconds from 0.1 to 3600"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "x", "0", "-1", "NaN", "inf", "1e9"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
