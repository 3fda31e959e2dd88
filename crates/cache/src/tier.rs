//! A tier of files: its folder, whether it is durable, and whether it works at the moment.
//!
//! `ram_file` and `disk` are this one type and differ in root and durability. A tier that fails is switched
//! off with one log line, and tried again later with growing pauses; requests do not notice. It must never
//! turn an I/O error into an error of a caller.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::format;
use crate::key::Key;
use crate::sync::Mutex;
use crate::words::Tier;

/// First pause after a failure. Short, because a full disk is often freed by the next eviction.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause: a disk that was mounted read-only for hours is noticed within a minute of its return.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Whether a tier works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierHealth {
    /// Which tier.
    pub tier: Tier,
    /// Why it is off, or `None` while it works.
    pub off: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    off: Option<Off>,
}

#[derive(Debug)]
struct Off {
    reason: String,
    retry_at: Duration,
    pause: Duration,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FileTier {
    tier: Tier,
    root: PathBuf,
    state: Mutex<State>,
}

impl FileTier {
    pub(crate) fn new(tier: Tier, root: PathBuf) -> Self {
        Self { tier, root, state: Mutex::new(State::default()) }
    }

    pub(crate) fn tier(&self) -> Tier {
        self.tier
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn row_path(&self, key: &Key) -> PathBuf {
        format::row_path(&self.root, key)
    }

    /// Whether written data must be on the device before it is announced. A memory file system has none.
    pub(crate) fn is_durable(&self) -> bool {
        self.tier == Tier::Disk
    }

    /// Whether a write should be tried now.
    pub(crate) fn is_on(&self, now: Duration) -> bool {
        self.state.lock().off.as_ref().is_none_or(|off| now >= off.retry_at)
    }

    /// A write failed. True if that switched the tier off just now.
    pub(crate) fn failed(&self, action: &'static str, error: &io::Error, now: Duration) -> bool {
        let mut state = self.state.lock();
        let pause = state.off.as_ref().map_or(FIRST_PAUSE, |off| (off.pause * 2).min(LONGEST_PAUSE));
        let was_on = state.off.is_none();
        let reason = format!("cannot {action} in {}: {error}", self.root.display());
        if was_on {
            tracing::warn!(
                tier = self.tier.as_str(),
                reason,
                "cache tier switched off; requests go on without it and it is tried again later"
            );
        }
        state.off = Some(Off { reason, retry_at: now.saturating_add(pause), pause });
        was_on
    }

    /// A write worked.
    pub(crate) fn worked(&self) {
        if let Some(off) = self.state.lock().off.take() {
            tracing::info!(tier = self.tier.as_str(), was = off.reason, "cache tier switched on again");
        }
    }

    pub(crate) fn health(&self) -> TierHealth {
        TierHealth { tier: self.tier, off: self.state.lock().off.as_ref().map(|off| off.reason.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_tier_is_tried_again_with_growing_pauses_and_recovers() {
        let tier = FileTier::new(Tier::Disk, PathBuf::from("/nowhere"));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let mut now = Duration::ZERO;
        assert!(tier.is_on(now));
        assert!(tier.failed("write", &full, now), "the first failure switches it off");
        assert!(!tier.is_on(now));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let start = now;
            while !tier.is_on(now) {
                now += Duration::from_millis(500);
            }
            pauses.push((now - start).as_secs());
            assert!(!tier.failed("write", &full, now), "it is off already");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(tier.health().off.is_some_and(|reason| reason.contains("/nowhere")));
        tier.worked();
        assert!(tier.is_on(now) && tier.health().off.is_none());
    }
}
