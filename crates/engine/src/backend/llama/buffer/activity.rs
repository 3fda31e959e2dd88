//! Whether the contexts of this process compute, and since when they do not.
//!
//! `context.rs` marks its calls; the thread of `arena.rs` asks whether there has been none for a while. Marking a
//! call must never wait for anything.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// After a pause of this length the next request is most likely some time away: tokens of a reply, and most turns of an
/// agent, follow each other sooner.
const QUIET: Duration = Duration::from_millis(500);

/// The calls of all contexts.
pub(in crate::backend::llama) static ACTIVITY: Activity = Activity::new();

/// See the module.
pub(in crate::backend::llama) struct Activity {
    running: AtomicUsize,
    /// Milliseconds of [`clock`] at which the last call ended.
    ended: AtomicU64,
}

impl Activity {
    const fn new() -> Self {
        Self { running: AtomicUsize::new(0), ended: AtomicU64::new(0) }
    }

    /// Marks a call until the result is dropped.
    pub(in crate::backend::llama) fn begin(&self) -> Call<'_> {
        self.running.fetch_add(1, Ordering::Relaxed);
        Call(self)
    }

    /// Whether no call has run for [`QUIET`].
    pub(super) fn is_quiet(&self) -> bool {
        self.left_at(clock()) == Duration::ZERO
    }

    /// Waits until that may be so, and for a part of it at most.
    pub(super) fn wait(&self) {
        std::thread::sleep(self.left_at(clock()).min(QUIET / 10));
    }

    /// How long it takes from `now` on, if no call begins.
    fn left_at(&self, now: u64) -> Duration {
        if self.running.load(Ordering::Relaxed) > 0 {
            return QUIET;
        }
        QUIET.saturating_sub(Duration::from_millis(now.saturating_sub(self.ended.load(Ordering::Relaxed))))
    }
}

/// Milliseconds since the first call of this function.
fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// A call that runs.
pub(in crate::backend::llama) struct Call<'a>(&'a Activity);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.ended.store(clock(), Ordering::Relaxed);
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_quiet_some_time_after_the_last_of_all_calls() {
        let activity = Activity::new();
        let (first, second) = (activity.begin(), activity.begin());
        let far = clock() + 3_600_000;
        assert_eq!(activity.left_at(far), QUIET, "two calls run");
        drop(first);
        assert_eq!(activity.left_at(far), QUIET, "one still runs");
        drop(second);
        let ended = activity.ended.load(Ordering::Relaxed);
        assert_eq!(activity.left_at(ended), QUIET);
        assert_eq!(activity.left_at(ended + 100), QUIET.saturating_sub(Duration::from_millis(100)));
        assert_eq!(activity.left_at(far), Duration::ZERO);
    }
}
