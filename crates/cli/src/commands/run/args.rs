//! The flags of `poncho run`.
//!
//! Filled by clap and read by the files of this folder. No input or output here.

use crate::client::args::{OwnArgs, ServerArgs};

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Model: a GGUF file, or a name at the server [default: the loaded model, or the last one used]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<String>,

    /// Prompt to answer; the word `-` stands for standard input [default: a conversation, or standard input]
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,

    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Maximum number of tokens in a reply [default: until the model stops]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,

    /// Sampling temperature; 0 always picks the most likely token [default: set by the server]
    #[arg(long, value_name = "NUMBER", value_parser = parse_temperature)]
    pub(crate) temperature: Option<f32>,

    /// Sampling seed: the same seed gives the same reply to the same prompt
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64))]
    pub(crate) seed: Option<i64>,

    /// Form of the reply: json, or a file with a JSON schema
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<String>,

    /// Print times, and cached and new tokens, after each reply
    #[arg(long, conflicts_with = "json")]
    pub(crate) verbose: bool,

    /// Print the reply and its statistics as JSON and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    #[command(flatten)]
    pub(crate) own: OwnArgs,
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|number| (0.0..=2.0).contains(number));
    number.ok_or_else(|| format!("`{text}` is not a valid temperature; write a number from 0 to 2"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperatures_lie_between_0_and_2() {
        assert_eq!(parse_temperature("0.7"), Ok(0.7));
        for wrong in ["", "x", "-0.1", "2.1", "NaN", "inf"] {
            assert!(parse_temperature(wrong).is_err(), "{wrong}");
        }
    }
}
