//! What the service manager learns: that the server is ready, that it stops, and that it is alive.
//!
//! Called by `serve` and `node`. The protocol is that of systemd; without `NOTIFY_SOCKET` nothing happens. A message that
//! cannot be sent must never end the server.

use sd_notify::NotifyState;
use tokio::runtime::Runtime;

/// Ready to serve. From now on a watchdog, if the service has one, gets its sign of life.
pub(super) fn is_ready(runtime: &Runtime) {
    tell(NotifyState::Ready);
    if let Some(interval) = sd_notify::watchdog_enabled() {
        // The runtime that serves also sends: one that is stuck sends nothing.
        runtime.spawn(async move {
            let mut beats = tokio::time::interval(interval / 2);
            loop {
                beats.tick().await;
                tell(NotifyState::Watchdog);
            }
        });
    }
}

/// The first signal has arrived.
pub(super) fn is_stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager cannot be reached");
    }
}
