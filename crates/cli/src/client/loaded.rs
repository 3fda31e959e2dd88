//! The loaded models, as a server lists them at `/api/ps`.
//!
//! Read by `ps` and `top`. Fields that a server leaves out are empty.

use poncho_terminal::{ago, parse_iso, printable_line};
use serde::{Deserialize, Serialize};

/// A model that expires in this year or later stays loaded indefinitely.
const FOREVER: &str = "2200";

/// The answer of the server.
#[derive(Debug, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) models: Vec<LoadedModel>,
}

/// One loaded model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct LoadedModel {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) context_length: u64,
    #[serde(default)]
    expires_at: String,
    #[serde(default)]
    pub(crate) details: Details,
}

/// Facts about its file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Details {
    #[serde(default)]
    pub(crate) parameter_size: String,
    #[serde(default)]
    pub(crate) quantization_level: String,
}

impl LoadedModel {
    /// When it is unloaded, as of `now` in unix seconds.
    pub(crate) fn until(&self, now: u64) -> String {
        match self.expires_at.get(..4) {
            Some(year) if year < FOREVER => {
                let until = parse_iso(&self.expires_at).map(|then| ago(now, then.max(now.saturating_add(1))));
                until.unwrap_or_else(|| printable_line(&self.expires_at))
            }
            _ => "forever".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_in_the_far_future_is_forever() {
        let model = |expires_at: &str| -> LoadedModel {
            serde_json::from_value(serde_json::json!({"name": "m", "expires_at": expires_at})).unwrap()
        };
        let now = 1_767_225_600;
        assert_eq!(model("2318-01-01T00:00:00Z").until(now), "forever");
        assert_eq!(model("").until(now), "forever");
        assert_eq!(model("2026-01-01T00:04:10.5Z").until(now), "in 4 minutes");
        assert_eq!(model("2025-12-31T23:59:59Z").until(now), "in 1 second", "it is on its way out");
        assert_eq!(model("2026-01-01").until(now), "2026-01-01");
    }
}
