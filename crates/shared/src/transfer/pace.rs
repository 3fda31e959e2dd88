//! The bandwidth cap of uploads: who has sent, waits until the cap would have allowed it.
//!
//! Used by uploads. The average is capped; a burst is one object.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// See the module.
#[derive(Debug)]
pub(crate) struct Pace {
    bytes_per_second: Option<u64>,
    next: Mutex<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, next: Mutex::new(None) }
    }

    pub(crate) fn is_capped(&self) -> bool {
        self.bytes_per_second.is_some()
    }

    /// Waits until these bytes may be sent.
    #[expect(clippy::cast_precision_loss, reason = "a time")]
    pub(crate) async fn wait(&self, bytes: u64) {
        let Some(rate) = self.bytes_per_second else { return };
        let mut next = self.next.lock().await;
        let start = next.unwrap_or_else(Instant::now).max(Instant::now());
        sleep_until(start).await;
        let cost = Duration::try_from_secs_f64(bytes as f64 / rate.max(1) as f64).unwrap_or(Duration::MAX);
        *next = start.checked_add(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_average_stays_below_the_cap() {
        let pace = Pace::new(Some(1000));
        let begin = Instant::now();
        for _ in 0..11 {
            pace.wait(500).await;
        }
        assert_eq!(begin.elapsed(), Duration::from_secs(5), "ten pieces are paid for, the eleventh may go");
        let free = Pace::new(None);
        free.wait(u64::MAX).await;
        assert_eq!(begin.elapsed(), Duration::from_secs(5));
    }
}
