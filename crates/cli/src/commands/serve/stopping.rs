//! How a server is told to stop: SIGINT (Ctrl-C) or SIGTERM once in order, twice at once.
//!
//! Installed before the greeting, because whoever reads it may press Ctrl-C. Once a signal has a handler the system does
//! nothing of its own for it any more, so the second one must be waited for here too.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a shell reports for a process that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// The two signals that mean stop.
#[derive(Debug)]
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Takes the signals over; called inside a runtime.
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Ready once the process is told to stop. From then on, being told again ends it at once: replies are cut off and
    /// nothing more is saved, but what was published stays whole.
    pub(crate) async fn told(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(INTERRUPTED);
        });
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.interrupt.recv() => {}, _ = self.terminate.recv() => {} }
    }
}
