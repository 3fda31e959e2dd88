//! The signals that stop a server: the first SIGINT (Ctrl-C) or SIGTERM in order, the second at once.
//!
//! Installed before the greeting, because a user who reads it may press Ctrl-C. Once a signal has a handler, the system
//! no longer acts on it, so the second one is awaited here too.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code that a shell reports for a process ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// The two signals that mean stop.
#[derive(Debug)]
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Installs the handlers. Must be called inside a runtime.
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the first signal. From then on, another one ends the process at once: replies are cut off and nothing
    /// more is saved, but published rows stay intact.
    pub(crate) async fn stopped(mut self) {
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
