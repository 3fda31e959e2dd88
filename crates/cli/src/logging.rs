//! Log lines on standard error: how they look and how many there are.
//!
//! Started once by `main`. Standard output belongs to data, so nothing is ever logged there. In JSON every line is one
//! object with the fields of the event and those of the request that it belongs to.

use anyhow::{Context, bail};
use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{LogFormat, LogLevel};

const LEVEL_VARIABLE: &str = "PONCHO_LOG";
const FORMAT_VARIABLE: &str = "PONCHO_LOG_FORMAT";

/// Starts logging at the flag's level, or else at that of `PONCHO_LOG`, or else at `warn`; its form likewise.
pub(crate) fn start(level: Option<LogLevel>, format: Option<LogFormat>) -> anyhow::Result<()> {
    let level = chosen(level, LEVEL_VARIABLE, "off, error, warn, info, debug or trace")?.unwrap_or(LogLevel::Warn);
    let format = chosen(format, FORMAT_VARIABLE, "text or json")?.unwrap_or(LogFormat::Text);
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
}

/// The flag's value, or else the variable's.
fn chosen<T: ValueEnum>(flag: Option<T>, variable: &str, known: &str) -> anyhow::Result<Option<T>> {
    let Some(value) = std::env::var_os(variable).filter(|value| flag.is_none() && !value.is_empty()) else {
        return Ok(flag);
    };
    let value = value.to_str().with_context(|| format!("{variable} is not text; unset it"))?;
    let Ok(value) = T::from_str(value, true) else {
        bail!("{variable} is `{value}`; set it to {known}");
    };
    Ok(Some(value))
}
