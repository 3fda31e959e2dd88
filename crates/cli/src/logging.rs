//! Log lines on standard error: how they look and how many there are.
//!
//! Started once by `main`. Standard output belongs to data, so nothing is ever logged there.

use anyhow::{Context, bail};
use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

use crate::args::LogLevel;

const VARIABLE: &str = "PONCHO_LOG";

/// Starts logging at the flag's level, or else at that of `PONCHO_LOG`, or else at `warn`.
pub(crate) fn start(flag: Option<LogLevel>) -> anyhow::Result<()> {
    let level = match (flag, std::env::var_os(VARIABLE).filter(|value| !value.is_empty())) {
        (Some(level), _) => level,
        (None, None) => LogLevel::Warn,
        (None, Some(value)) => {
            let value = value.to_str().with_context(|| format!("{VARIABLE} is not text; unset it"))?;
            let Ok(level) = LogLevel::from_str(value, true) else {
                bail!("{VARIABLE} is `{value}`; set it to off, error, warn, info, debug or trace");
            };
            level
        }
    };
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false).init();
    Ok(())
}
