//! `keep_alive`: seconds as a number, or a text such as `5m` or `1h30m`.
//!
//! Read from requests of Ollama's clients and from the command line; obeyed by the manager. A wrong one is refused.

use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::forms::form;

/// How long a model stays loaded after its last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(with = "SecondsOrText", inline)]
pub enum KeepAlive {
    /// For this long.
    For(Duration),
    /// Until it is unloaded explicitly: any negative number.
    Forever,
}

form! {
    /// See the module.
    SecondsOrText, json_schema!({"type": ["string", "number"]})
}

impl KeepAlive {
    /// Whether the model is asked to go at once.
    pub(crate) fn is_over(self) -> bool {
        self == Self::For(Duration::ZERO)
    }

    fn from_seconds(seconds: f64) -> Result<Self, String> {
        if seconds < 0.0 {
            return Ok(Self::Forever);
        }
        let duration = Duration::try_from_secs_f64(seconds);
        duration
            .map(Self::For)
            .map_err(|_| format!("{seconds} seconds are too many; use a negative number to keep the model loaded"))
    }

    /// Reads what a person wrote: seconds, `5m`, `1h30m`, `0` for not at all, `-1` for no limit.
    ///
    /// # Errors
    /// A sentence that says what would do.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a valid duration; send seconds or a text such as 5m, 1h30m, 0 or -1");
        let trimmed = text.trim();
        let (is_negative, rest) = match trimmed.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
        };
        let seconds = total_seconds(rest).ok_or_else(wrong)?;
        if is_negative && seconds > 0.0 { Ok(Self::Forever) } else { Self::from_seconds(seconds) }
    }
}

/// The sum of a text's parts; a number alone counts seconds.
fn total_seconds(text: &str) -> Option<f64> {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_number(text) {
        return text.parse().ok();
    }
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let unit_at = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (number, tail) = rest.split_at_checked(unit_at)?;
        let next = tail.find(|char: char| char.is_ascii_digit() || char == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(next)?;
        total += number.parse::<f64>().ok()? * unit_seconds(unit)?;
        rest = tail;
    }
    Some(total)
}

fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1e-9,
        "us" | "µs" | "μs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    })
}

struct KeepAliveVisitor;

impl Visitor<'_> for KeepAliveVisitor {
    type Value = KeepAlive;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("seconds or a duration such as 5m")
    }

    fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<KeepAlive, E> {
        Ok(u64::try_from(seconds).map_or(KeepAlive::Forever, |seconds| KeepAlive::For(Duration::from_secs(seconds))))
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<KeepAlive, E> {
        Ok(KeepAlive::For(Duration::from_secs(seconds)))
    }

    fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<KeepAlive, E> {
        KeepAlive::from_seconds(seconds).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<KeepAlive, E> {
        KeepAlive::parse(text).map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeepAliveVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<KeepAlive, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_are_seconds_and_negative_ones_mean_for_ever() {
        let lasting = |millis| Ok(KeepAlive::For(Duration::from_millis(millis)));
        for (json, expected) in [
            ("0", lasting(0)),
            ("300", lasting(300_000)),
            ("1.5", lasting(1500)),
            ("-1", Ok(KeepAlive::Forever)),
            ("-0.5", Ok(KeepAlive::Forever)),
            (r#""0""#, lasting(0)),
            (r#""0s""#, lasting(0)),
            (r#""5m""#, lasting(300_000)),
            (r#""1h30m""#, lasting(5_400_000)),
            (r#""1m30.5s""#, lasting(90_500)),
            (r#""250ms""#, lasting(250)),
            (r#""+10s""#, lasting(10_000)),
            (r#""600""#, lasting(600_000)),
            (r#""-1""#, Ok(KeepAlive::Forever)),
            (r#""-1m""#, Ok(KeepAlive::Forever)),
        ] {
            assert_eq!(read(json), expected, "{json}");
        }
        assert!(read("0").unwrap().is_over() && read(r#""0m""#).unwrap().is_over());
        assert!(!read("1").unwrap().is_over() && !read("-1").unwrap().is_over());
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for wrong in
            [r#""""#, r#"" ""#, r#""5""m""#, r#""m""#, r#""5x""#, r#""5m3""#, r#""1..5s""#, r#""five""#, r#""--1s""#]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for wrong in ["true", "[]", "{}", "1e300"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
