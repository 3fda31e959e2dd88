//! Log lines on standard error: their level and their format.
//!
//! Started once by `main`. Standard output belongs to data, so nothing is logged there. In JSON every line is one object
//! with the fields of the event and those of its request. Names, paths and errors in an event may come from a client or a
//! file: control characters are escaped here, so that an event is always one line and harmless for a terminal.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, bail};
use clap::ValueEnum;
use poncho_server::{REPLY_TARGET, RecentLines};
use poncho_terminal::is_obeyed;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{self, FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::args::{LogArgs, LogFormat, LogLevel};

const LEVEL_VARIABLE: &str = "PONCHO_LOG";
const FORMAT_VARIABLE: &str = "PONCHO_LOG_FORMAT";

/// Whether each reply is logged in a line of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyLines {
    /// At `warn` and more verbose levels.
    On,
    /// At `info` and more verbose levels, as other events of that level.
    WithInfo,
    /// Never.
    Off,
}

impl ReplyLines {
    /// The filter of their events, which have the level `info`.
    fn filter(self, level: LevelFilter) -> LevelFilter {
        match self {
            Self::On if level >= LevelFilter::WARN => level.max(LevelFilter::INFO),
            Self::On | Self::WithInfo => level,
            Self::Off => LevelFilter::OFF,
        }
    }
}

/// Starts logging with the flags, or else the variables, or else `warn` and `text`.
pub(crate) fn start(args: LogArgs, replies: ReplyLines) -> anyhow::Result<()> {
    let level =
        chosen(args.log_level, LEVEL_VARIABLE, "off, error, warn, info, debug or trace")?.unwrap_or(LogLevel::Warn);
    let format = chosen(args.log_format, FORMAT_VARIABLE, "text or json")?.unwrap_or(LogFormat::Text);
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let filter = Targets::new().with_default(level).with_target(REPLY_TARGET, replies.filter(level));
    let writer = move || EscapingWriter { format, to: io::stderr() };
    let lines = fmt::layer().with_writer(writer).with_target(false);
    let lines = match format {
        LogFormat::Text => lines.event_format(TextLines(fmt::format().with_target(false))).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let kept = fmt::layer().with_ansi(false).with_writer(|| EscapingWriter { format: LogFormat::Text, to: Kept });
    let kept = kept.event_format(fmt::format().with_target(false)).with_filter(level.min(LevelFilter::WARN));
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(kept).init();
    Ok(())
}

/// The last lines at warn and above, for the console.
pub(crate) fn recent_warnings() -> Arc<RecentLines> {
    static LINES: OnceLock<Arc<RecentLines>> = OnceLock::new();
    Arc::clone(LINES.get_or_init(Arc::default))
}

/// Keeps a line that the engine's process logged if it is a warning or an error: that process has no console.
pub(crate) fn note_warning(line: &str) {
    if let Some(line) = warning(line) {
        recent_warnings().add(&line);
    }
}

/// A line of either format as text, if its level is at least warn.
fn warning(line: &str) -> Option<String> {
    let is_warning = |level: &str| matches!(level, "WARN" | "ERROR");
    let Ok(Value::Object(event)) = serde_json::from_str::<Value>(line) else {
        return line.split_whitespace().nth(1).is_some_and(is_warning).then(|| line.to_owned());
    };
    let text = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
    let level = Some(text("level")).filter(|level| is_warning(level))?;
    let head = format!("{} {level:>5} {}", text("timestamp"), text("message"));
    let known = ["timestamp", "level", "message"];
    let fields = event.iter().filter(|(name, _)| !known.contains(&name.as_str()));
    Some(fields.fold(head, |line, (name, value)| format!("{line} {name}={value}")))
}

/// Keeps a line in memory.
struct Kept;

impl Write for Kept {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        recent_warnings().add(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Events as text. Those of replies are a sentence for people, without the fields that JSON has.
struct TextLines<F>(F);

impl<S, N, F> FormatEvent<S, N> for TextLines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        if event.metadata().target() != REPLY_TARGET {
            return self.0.format_event(context, writer, event);
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        SystemTime.format_time(&mut writer)?;
        writeln!(writer, " {:>5} {}", event.metadata().level(), message.0)
    }
}

/// The message of an event.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Escapes control characters. Each call gets one whole event with its line end.
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

/// One harmless line.
fn escaped(line: &str, format: LogFormat) -> String {
    let mut text = String::with_capacity(line.len());
    for letter in line.chars() {
        match format {
            _ if !is_obeyed(letter) => text.push(letter),
            LogFormat::Text => text.extend(letter.escape_default()),
            // Only the strings of a JSON line can contain such characters.
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

/// The value of the flag, or else of the variable.
fn chosen<T: ValueEnum>(flag: Option<T>, variable: &str, known: &str) -> anyhow::Result<Option<T>> {
    let Some(value) = std::env::var_os(variable).filter(|value| flag.is_none() && !value.is_empty()) else {
        return Ok(flag);
    };
    let value = value.to_str().with_context(|| format!("{variable} is not UTF-8; unset it"))?;
    let Ok(value) = T::from_str(value, true) else {
        bail!("{variable} is `{value}`; set it to {known}");
    };
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn written(event: &str, format: LogFormat) -> String {
        let mut writer = EscapingWriter { format, to: Vec::new() };
        writer.write_all(event.as_bytes()).unwrap();
        String::from_utf8(writer.to).unwrap()
    }

    /// Hardening 19: a model's name reached the log with its line ends and escapes.
    #[test]
    fn an_event_is_one_harmless_line() {
        let event = "WARN model=a\nERROR forged\r\x1b[2J\u{9b}31m\u{202e}\u{e0041} não\n";
        let line = written(event, LogFormat::Text);
        assert_eq!(line, "WARN model=a\\nERROR forged\\r\\u{1b}[2J\\u{9b}31m\\u{202e}\\u{e0041} não\n");
        assert_eq!(written("no end", LogFormat::Text), "no end");
    }

    #[test]
    fn lines_of_the_engine_are_kept_from_warn_upwards() {
        let text = "2026-11-16T12:00:00Z  WARN cache file moved aside path=\"a\"";
        assert_eq!(warning(text).as_deref(), Some(text));
        assert!(warning("2026-11-16T12:00:00Z ERROR the model was not loaded").is_some());
        let json = r#"{"timestamp":"2026-11-16T12:00:00Z","level":"WARN","message":"moved aside","path":"a","rows":2}"#;
        assert_eq!(warning(json).as_deref(), Some("2026-11-16T12:00:00Z  WARN moved aside path=\"a\" rows=2"));
        for quiet in ["", "x", "2026-11-16T12:00:00Z  INFO WARN", r#"{"level":"INFO","message":"WARN"}"#, "{}", "[1]"] {
            assert_eq!(warning(quiet), None, "{quiet}");
        }
    }

    #[test]
    fn reply_lines_are_on_by_default_and_never_without_warnings() {
        let filter = ReplyLines::filter;
        assert_eq!(filter(ReplyLines::On, LevelFilter::WARN), LevelFilter::INFO);
        assert_eq!(filter(ReplyLines::On, LevelFilter::DEBUG), LevelFilter::DEBUG);
        assert_eq!(filter(ReplyLines::On, LevelFilter::ERROR), LevelFilter::ERROR);
        assert_eq!(filter(ReplyLines::WithInfo, LevelFilter::WARN), LevelFilter::WARN);
        assert_eq!(filter(ReplyLines::Off, LevelFilter::TRACE), LevelFilter::OFF);
    }

    /// Everyday use 14: the default level had no line for a reply, and `info` one for a machine.
    #[test]
    fn a_reply_is_a_sentence_in_text() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&written);
        let lines = fmt::layer().with_ansi(false).with_writer(move || Shared(Arc::clone(&to)));
        let lines = lines.event_format(TextLines(fmt::format().with_target(false)));
        let filter = Targets::new().with_default(LevelFilter::WARN).with_target(REPLY_TARGET, LevelFilter::INFO);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.with_filter(filter)), || {
            tracing::info!(target: REPLY_TARGET, hit = "cold", "m: {} cached", 6);
            tracing::info!("hidden");
            tracing::warn!(tier = "disk", "shown");
        });
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let [reply, warning] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(reply.ends_with("  INFO m: 6 cached"), "{reply}");
        assert!(warning.ends_with("  WARN shown tier=\"disk\""), "{warning}");
    }

    /// Keeps what is written.
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, event: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(event)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn json_stays_json_with_the_same_value() {
        let value = serde_json::json!({"model": "a\nb\u{1b}\u{7f}\u{9b}\u{2028}\u{e0041}é", "path": "\\n"});
        let line = written(&format!("{value}\n"), LogFormat::Json);
        assert!(line.trim_end_matches('\n').chars().all(|letter| !is_obeyed(letter)), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }
}
