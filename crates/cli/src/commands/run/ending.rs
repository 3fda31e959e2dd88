//! SIGTERM and SIGHUP during a chat: the terminal is restored and states are saved.
//!
//! It waits beside the chat, which may block in the line editor with the terminal in raw mode. After the signal the chat
//! must not use the terminal again, so it checks before every prompt.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::client::Connection;

/// Undoes the terminal modes of the line editor, and starts a new line.
const PLAIN_PASTE: &[u8] = b"\x1b[?2004l\r\n";

/// Whether a signal has arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signalled(Arc<AtomicBool>);

impl Signalled {
    /// Returns at once without a signal; otherwise blocks until the process ends.
    pub(crate) fn pass(&self) {
        while self.0.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

/// Listens for SIGTERM and SIGHUP as soon as it is created.
pub(crate) struct Ending {
    /// The original settings of the terminal; `None` without a terminal.
    as_it_was: Option<Termios>,
    terminate: Signal,
    hang_up: Signal,
    signalled: Signalled,
}

impl Ending {
    /// Must be called on the runtime, before anything changes the terminal.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            as_it_was: tcgetattr(io::stdin()).ok(),
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            signalled: Signalled::default(),
        })
    }

    pub(crate) fn signalled(&self) -> Signalled {
        self.signalled.clone()
    }

    /// Waits for a signal, then ends the process in order, with the exit code of that signal.
    pub(crate) async fn wait(mut self, connection: Connection) {
        let signal = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hang_up.recv() => SignalKind::hangup(),
        };
        self.signalled.0.store(true, Ordering::SeqCst);
        if let Err(error) = connection.close().await {
            eprintln!("error: {error:#}");
        }
        if let Some(settings) = &self.as_it_was {
            if io::stdout().is_terminal() {
                // Past the lock of standard output, which the chat holds.
                let _ = rustix::io::write(io::stdout(), PLAIN_PASTE);
            }
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, settings);
        }
        std::process::exit(128 + signal.as_raw_value());
    }
}
