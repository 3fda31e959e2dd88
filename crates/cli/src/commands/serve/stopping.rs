//! The signals that stop a server: the first SIGINT (Ctrl-C), SIGTERM or SIGHUP (a closed terminal) in order, the second
//! at once. An ignored SIGHUP stays ignored, as `nohup` wants it.
//!
//! Installed before the greeting, because a user who reads it may press Ctrl-C. Once a signal has a handler, the system
//! no longer acts on it, so all of them are awaited here, also while states are being saved.

use std::fmt;
use std::io;
use std::time::Duration;

use poncho_server::Draining;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The exit code that a shell reports for a process ended by Ctrl-C.
const INTERRUPTED: i32 = 130;
/// How long clients have after the second signal to get the error events of their streams.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// How many signals arrived.
#[derive(Debug)]
pub(crate) struct StopSignals {
    count: watch::Receiver<u32>,
}

impl StopSignals {
    /// Installs the handlers. Must be called inside a runtime.
    pub(crate) fn install() -> io::Result<Self> {
        let mut signals = Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: if is_hang_up_ignored() { None } else { Some(signal(SignalKind::hangup())?) },
        };
        let (counted, count) = watch::channel(0);
        tokio::spawn(async move {
            signals.next().await;
            counted.send_replace(1);
            signals.next().await;
            counted.send_replace(2);
            // Streams are cut off and nothing more is saved, but published rows stay intact.
            tokio::select! {
                () = tokio::time::sleep(LAST_EVENTS) => {}
                () = counted.closed() => {}
                () = signals.next() => {}
            }
            std::process::exit(INTERRUPTED);
        });
        Ok(Self { count })
    }

    /// Waits for the first signal.
    pub(crate) async fn first(&self) {
        self.reached(1).await;
    }

    /// Waits for the second signal.
    pub(crate) async fn second(&self) {
        self.reached(2).await;
    }

    /// Serving is over. The process ends here if a second signal has arrived; one that arrives later ends it at once.
    pub(crate) fn served(self) {
        if *self.count.borrow() >= 2 {
            std::process::exit(INTERRUPTED);
        }
    }

    async fn reached(&self, count: u32) {
        if self.count.clone().wait_for(|reached| *reached >= count).await.is_err() {
            // The runtime is going down with the task that counts.
            std::future::pending::<()>().await;
        }
    }
}

/// The handlers.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl Signals {
    async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! { _ = self.interrupt.recv() => {}, _ = self.terminate.recv() => {}, _ = hang_up => {} }
    }
}

/// Whether the process was started with SIGHUP ignored. Systems without `/proc` do not say.
fn is_hang_up_ignored() -> bool {
    const HANG_UP: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & HANG_UP != 0)
}

/// The line for a user who waits for the end.
pub(crate) struct Waiting(pub(crate) Draining);

impl fmt::Display for Waiting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Draining { replies, limit } = self.0;
        let noun = if replies == 1 { "reply" } else { "replies" };
        write!(formatter, "waiting for {replies} {noun} ({} s), Ctrl-C again to stop", limit.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_described_with_its_real_limit() {
        let shown = |replies, limit| Waiting(Draining { replies, limit }).to_string();
        assert_eq!(shown(1, Duration::from_secs(30)), "waiting for 1 reply (30 s), Ctrl-C again to stop");
        assert_eq!(shown(12, Duration::from_millis(1500)), "waiting for 12 replies (1.5 s), Ctrl-C again to stop");
    }
}
