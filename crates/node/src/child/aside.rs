//! Models that ended their process again and again: they rest for a while, and the others go on.
//!
//! Kept by `supervised.rs`. Time is given by the caller. A process that was killed from outside is not a crash.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time in which crashes are counted.
const WITHIN: Duration = Duration::from_secs(60);
/// How long a model rests the first time; each time twice as long.
const FIRST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(15 * 60);

/// See the module.
pub(super) struct Aside {
    /// Crashes of a model in a minute that set it aside; 0 for never.
    limit: u32,
    models: Mutex<BTreeMap<String, Record>>,
}

#[derive(Default)]
struct Record {
    recent: VecDeque<Instant>,
    /// While it rests.
    until: Option<Instant>,
    /// How often it was set aside.
    rests: u32,
}

impl Aside {
    pub(super) fn new(limit: u32) -> Self {
        Self { limit, models: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        // Nothing that holds it can panic halfway.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process ended because of one of these models. Returns those that rest from now on.
    pub(super) fn crashed(&self, suspects: &[String], now: Instant) -> Vec<String> {
        let mut models = self.lock();
        let mut resting = Vec::new();
        for model in suspects {
            let record = models.entry(model.clone()).or_default();
            record.recent.retain(|crash| now.duration_since(*crash) < WITHIN);
            record.recent.push_back(now);
            // One that rests is loaded again to see whether it has become better; it has one try.
            let limit = if record.until.is_some() { 1 } else { self.limit };
            if self.limit == 0 || record.recent.len() < usize::try_from(limit).unwrap_or(usize::MAX) {
                continue;
            }
            let rest = FIRST_REST.saturating_mul(1 << record.rests.min(10)).min(LONGEST_REST);
            record.rests += 1;
            record.until = now.checked_add(rest);
            resting.push(model.clone());
        }
        resting
    }

    /// How long a model still rests; zero when it is due.
    pub(super) fn rest(&self, model: &str, now: Instant) -> Option<Duration> {
        Some(self.lock().get(model)?.until?.saturating_duration_since(now))
    }

    /// Whether a model ended a process a while ago.
    pub(super) fn is_suspect(&self, model: &str, now: Instant) -> bool {
        let models = self.lock();
        let Some(record) = models.get(model) else { return false };
        record.recent.iter().any(|crash| now.duration_since(*crash) < WITHIN)
    }

    /// The model that is due next, and when.
    pub(super) fn next(&self) -> Option<(String, Instant)> {
        let models = self.lock();
        let resting = models.iter().filter_map(|(model, record)| Some((model.clone(), record.until?)));
        resting.min_by_key(|(_, until)| *until)
    }

    /// A model is loaded again. The next rest is longer all the same.
    pub(super) fn is_back(&self, model: &str) {
        if let Some(record) = self.lock().get_mut(model) {
            record.until = None;
            record.recent.clear();
        }
    }

    /// Somebody loads or unloads the model: all is forgiven.
    pub(super) fn forget(&self, model: &str) {
        self.lock().remove(model);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn three_crashes_in_a_minute_set_a_model_aside_and_the_rest_grows() {
        let (aside, start) = (Aside::new(3), Instant::now());
        let model = ["bad".to_owned()];
        assert!(aside.crashed(&model, start).is_empty());
        assert!(aside.is_suspect("bad", start) && !aside.is_suspect("good", start));
        assert!(aside.crashed(&model, start + 50 * SECOND).is_empty());
        // The first one is too long ago.
        assert!(aside.crashed(&model, start + 61 * SECOND).is_empty());
        assert_eq!(aside.crashed(&model, start + 62 * SECOND), model);
        assert_eq!(aside.rest("bad", start + 72 * SECOND), Some(50 * SECOND));
        assert_eq!(aside.next().map(|(model, _)| model).as_deref(), Some("bad"));
        // It has one try when its time is over.
        assert_eq!(aside.crashed(&model, start + 200 * SECOND), model);
        assert_eq!(aside.rest("bad", start + 200 * SECOND), Some(120 * SECOND));
        aside.is_back("bad");
        assert_eq!((aside.rest("bad", start), aside.next()), (None, None));
        aside.forget("bad");
        assert!(aside.crashed(&model, start + 300 * SECOND).is_empty());
    }

    #[test]
    fn without_a_limit_no_model_is_set_aside() {
        let (aside, start) = (Aside::new(0), Instant::now());
        assert!((0..10).all(|_| aside.crashed(&["bad".to_owned()], start).is_empty()));
    }
}
