//! Log lines on standard error: how they look and how many there are.
//!
//! Started once by `main`. Standard output belongs to data, so nothing is ever logged there. In JSON every line is one
//! object with the fields of the event and those of the request that it belongs to. Names, paths and errors in an event
//! may come from a client or a file: every control character in it is escaped here, so that an event is always one line
//! and a terminal obeys none of it.

use std::io::{self, Write};

use anyhow::{Context, bail};
use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;

use crate::args::{LogFormat, LogLevel};
use crate::terminal::printable::is_obeyed;

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
    let writer = move || EscapingWriter { format, to: io::stderr() };
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(writer).with_target(false);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).init(),
    }
    Ok(())
}

/// Writes events whose control characters are escaped. Each call gets one whole event, with the line end that closes it.
struct EscapingWriter<W> {
    format: LogFormat,
    to: W,
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.write_all(event)?;
        Ok(event.len())
    }

    fn write_all(&mut self, event: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(event);
        match text.strip_suffix('\n') {
            Some(line) => self.to.write_all((escaped(line, self.format) + "\n").as_bytes()),
            None => self.to.write_all(escaped(&text, self.format).as_bytes()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// One line: nothing in it ends the line, moves the cursor or turns text around.
fn escaped(line: &str, format: LogFormat) -> String {
    let mut text = String::with_capacity(line.len());
    for letter in line.chars() {
        match format {
            _ if !is_obeyed(letter) => text.push(letter),
            LogFormat::Text => text.extend(letter.escape_default()),
            // Only strings of a JSON line can hold such characters, and this is how they write them.
            LogFormat::Json => {
                let mut units = [0; 2];
                for unit in letter.encode_utf16(&mut units) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    fn written(event: &str, format: LogFormat) -> String {
        let mut writer = EscapingWriter { format, to: Vec::new() };
        writer.write_all(event.as_bytes()).unwrap();
        String::from_utf8(writer.to).unwrap()
    }

    /// Hardening 19: a model's name reached the log with its line ends and escapes.
    #[test]
    fn an_event_is_one_line_without_anything_that_a_terminal_obeys() {
        let event = "WARN model=a\nERROR forged\r\x1b[2J\u{9b}31m\u{202e}\u{e0041} não\n";
        let line = written(event, LogFormat::Text);
        assert_eq!(line, "WARN model=a\\nERROR forged\\r\\u{1b}[2J\\u{9b}31m\\u{202e}\\u{e0041} não\n");
        assert_eq!(written("no end", LogFormat::Text), "no end");
    }

    #[test]
    fn json_stays_json_with_the_same_value() {
        let value = serde_json::json!({"model": "a\nb\u{1b}\u{7f}\u{9b}\u{2028}\u{e0041}é", "path": "\\n"});
        let line = written(&format!("{value}\n"), LogFormat::Json);
        assert!(line.trim_end_matches('\n').chars().all(|letter| !is_obeyed(letter)), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
