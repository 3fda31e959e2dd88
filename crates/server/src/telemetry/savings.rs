//! What the cache saved, by day and model, kept over restarts.
//!
//! `ReplyTimes` adds the figures of each finished reply to sums in memory; a background task of `serve` writes them to a
//! small file, which is complete or absent. Seconds are an estimate: cached tokens at the speed at which the same model
//! computed prompt tokens, less the time that restoring took. A file that cannot be read or written only loses sums; it
//! must never fail a request.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use poncho_api::Completion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::request_id::unix_seconds;

/// Days that are kept.
const MOST_DAYS: usize = 400;
/// Models of one day; further ones share a name.
const MOST_MODELS: usize = 64;
/// The name of further models.
const OTHERS: &str = "others";
/// More than the file ever has.
const MOST_BYTES: u64 = 16 << 20;
const SECONDS_A_DAY: u64 = 86_400;

/// See the module.
#[derive(Default)]
pub(crate) struct Savings {
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    days: Days,
    is_changed: bool,
}

/// Days since 1970, then models.
type Days = BTreeMap<u64, BTreeMap<String, Sums>>;

/// The figures of some replies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Sums {
    requests: u64,
    cached_tokens: u64,
    new_tokens: u64,
    generated_tokens: u64,
    /// The time that computing the new tokens took.
    prefill_us: u64,
    /// The time that restoring the cached ones took.
    restore_us: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.new_tokens = self.new_tokens.saturating_add(other.new_tokens);
        self.generated_tokens = self.generated_tokens.saturating_add(other.generated_tokens);
        self.prefill_us = self.prefill_us.saturating_add(other.prefill_us);
        self.restore_us = self.restore_us.saturating_add(other.restore_us);
    }

    /// Seconds to compute one token; `None` if none was computed.
    fn pace(&self) -> Option<f64> {
        (self.new_tokens > 0 && self.prefill_us > 0).then(|| self.prefill_us as f64 / 1e6 / self.new_tokens as f64)
    }

    /// The seconds that computing the cached tokens would have taken, less those of restoring them.
    fn saved(&self, pace: Option<f64>) -> Option<f64> {
        let saved = self.cached_tokens as f64 * self.pace().or(pace)? - self.restore_us as f64 / 1e6;
        Some((saved.max(0.0) * 1000.0).round() / 1000.0)
    }
}

/// What the cache saved, as clients see it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Savings")]
pub(crate) struct SavingsOut {
    days: Vec<SavedOnDay>,
}

#[derive(Serialize, JsonSchema)]
struct SavedOnDay {
    /// Such as 2026-01-31, in UTC.
    day: String,
    models: Vec<SavedByModel>,
}

#[derive(Serialize, JsonSchema)]
struct SavedByModel {
    model: String,
    requests: u64,
    cached_tokens: u64,
    new_tokens: u64,
    generated_tokens: u64,
    /// The time that restoring the cached tokens took.
    restore_seconds: f64,
    /// The time that computing them would have taken, less that of restoring them; null if it cannot be estimated.
    saved_seconds: Option<f64>,
}

impl Savings {
    /// The sums of a file, if it is named and readable.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let days = file.as_deref().map(read).unwrap_or_default();
        Self { file, state: Mutex::new(State { days, is_changed: false }) }
    }

    /// A reply came to its end.
    pub(crate) fn add(&self, model: &str, completion: &Completion) {
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let cached = completion.cached_tokens.min(completion.prompt_tokens);
        let before = completion.queue_time + completion.restore_time;
        let sums = Sums {
            requests: 1,
            cached_tokens: cached as u64,
            new_tokens: (completion.prompt_tokens - cached) as u64,
            generated_tokens: completion.completion_tokens as u64,
            prefill_us: micros(completion.prefill_time.saturating_sub(before)),
            restore_us: micros(completion.restore_time),
        };
        self.add_on(unix_seconds() / SECONDS_A_DAY, model, &sums);
    }

    fn add_on(&self, day: u64, model: &str, sums: &Sums) {
        let mut state = self.lock();
        let models = state.days.entry(day).or_default();
        let is_known = models.contains_key(model) || models.len() < MOST_MODELS;
        models.entry(if is_known { model } else { OTHERS }.to_owned()).or_default().add(sums);
        while state.days.len() > MOST_DAYS {
            state.days.pop_first();
        }
        state.is_changed = true;
    }

    /// All days, the newest first.
    pub(crate) fn shown(&self) -> Value {
        let state = self.lock();
        let mut all: BTreeMap<&str, Sums> = BTreeMap::new();
        for (model, sums) in state.days.values().flatten() {
            all.entry(model).or_default().add(sums);
        }
        let row = |(model, sums): (&String, &Sums)| SavedByModel {
            model: model.clone(),
            requests: sums.requests,
            cached_tokens: sums.cached_tokens,
            new_tokens: sums.new_tokens,
            generated_tokens: sums.generated_tokens,
            restore_seconds: sums.restore_us as f64 / 1e6,
            saved_seconds: sums.saved(all.get(model.as_str()).and_then(Sums::pace)),
        };
        let day = |(day, models): (&u64, &BTreeMap<String, Sums>)| SavedOnDay {
            day: date(*day),
            models: models.iter().map(row).collect(),
        };
        json!(SavingsOut { days: state.days.iter().rev().map(day).collect() })
    }

    /// Writes the sums if they changed. Blocks.
    pub(crate) fn save(&self) {
        let Some(file) = &self.file else { return };
        let text = {
            let mut state = self.lock();
            if !std::mem::take(&mut state.is_changed) {
                return;
            }
            serde_json::to_vec(&state.days)
        };
        let written = text.map_err(std::io::Error::other).and_then(|text| write(file, &text));
        if let Err(error) = written {
            self.lock().is_changed = true;
            tracing::debug!(%error, "the savings were not written");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(file: &Path) -> Days {
    let is_small = std::fs::symlink_metadata(file).is_ok_and(|found| found.is_file() && found.len() <= MOST_BYTES);
    let text = if is_small { std::fs::read(file).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Complete or not there.
fn write(file: &Path, text: &[u8]) -> std::io::Result<()> {
    let part = file.with_extension("savings-part");
    // A part of a process that ended is left alone by nobody: this file has one writer.
    let _ = std::fs::remove_file(&part);
    let mut open = std::fs::OpenOptions::new();
    open.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
    let mut target = open.open(&part)?;
    target.write_all(text)?;
    target.sync_all()?;
    std::fs::rename(&part, file)
}

/// The date of a day since 1970, as 2026-11-16.
fn date(day: u64) -> String {
    let time = std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_secs(day.saturating_mul(SECONDS_A_DAY)));
    let text = time.map(|time| humantime::format_rfc3339_seconds(time).to_string()).unwrap_or_default();
    text.split('T').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(cached_tokens: u64, new_tokens: u64) -> Sums {
        Sums {
            requests: 1,
            cached_tokens,
            new_tokens,
            prefill_us: new_tokens * 1000,
            restore_us: 2_000,
            generated_tokens: 1,
        }
    }

    #[test]
    fn sums_survive_a_restart_and_a_damaged_file_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kv.savings");
        let savings = Savings::open(Some(file.clone()));
        savings.add_on(20_773, "a", &sums(1000, 100));
        savings.add_on(20_773, "a", &sums(500, 100));
        savings.add_on(20_772, "b", &sums(0, 10));
        savings.save();
        let again = Savings::open(Some(file.clone()));
        assert_eq!(again.shown(), savings.shown());
        let shown = again.shown();
        assert_eq!(shown["days"][0]["day"], "2026-11-16");
        let row = &shown["days"][0]["models"][0];
        assert_eq!((row["cached_tokens"].as_u64(), row["requests"].as_u64()), (Some(1500), Some(2)));
        // 1,500 tokens at a millisecond each, less 4 ms.
        assert_eq!(row["saved_seconds"], 1.496);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside the file");
        for damage in ["", "{", "[]", "{\"x\": 1}"] {
            std::fs::write(&file, damage).unwrap();
            assert_eq!(Savings::open(Some(file.clone())).shown(), json!({"days": []}), "{damage}");
        }
    }

    #[test]
    fn days_and_models_are_bounded() {
        let savings = Savings::default();
        for day in 0..u64::try_from(MOST_DAYS).unwrap() + 10 {
            savings.add_on(day, "a", &sums(1, 1));
        }
        assert_eq!(savings.shown()["days"].as_array().unwrap().len(), MOST_DAYS);
        for model in 0..100 {
            savings.add_on(1000, &format!("m{model}"), &sums(1, 1));
        }
        let models = savings.shown()["days"][0]["models"].as_array().unwrap().len();
        assert_eq!(models, MOST_MODELS + 1, "and the others");
    }
}
