//! What happens when the process is told to end while a chat is open: the terminal as it was, states saved.
//!
//! Waits beside the chat, which may sit in the line editor with the terminal in raw mode and cannot be woken there.
//! From the signal on the chat must not take the terminal again, so it asks before every prompt.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::client::Connection;

/// Switches off what the line editor asked the terminal for, and leaves its line.
const PLAIN_PASTE: &[u8] = b"\x1b[?2004l\r\n";

/// Whether the process was told to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told(Arc<AtomicBool>);

impl Told {
    /// Goes on as long as nobody told the process to end; otherwise waits for that end.
    pub(crate) fn pass(&self) {
        while self.0.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

/// Listens for SIGTERM and SIGHUP from its creation on.
pub(crate) struct Ending {
    /// The settings of the terminal before anything changed them; `None` without a terminal.
    as_it_was: Option<Termios>,
    terminate: Signal,
    hang_up: Signal,
    told: Told,
}

impl Ending {
    /// Must be called on the runtime, before anything changes the terminal.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            as_it_was: tcgetattr(io::stdin()).ok(),
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            told: Told::default(),
        })
    }

    pub(crate) fn told(&self) -> Told {
        self.told.clone()
    }

    /// Waits for a signal, then ends the process in order, with the exit code that shells give such an end.
    pub(crate) async fn wait(mut self, connection: Connection) {
        let signal = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hang_up.recv() => SignalKind::hangup(),
        };
        self.told.0.store(true, Ordering::SeqCst);
        if let Err(error) = connection.close().await {
            eprintln!("error: {error:#}");
        }
        // A terminal that is gone needs none of this.
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
