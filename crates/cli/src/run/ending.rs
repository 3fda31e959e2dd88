//! What happens when the process is told to end while a chat is open: the terminal as it was, states saved.
//!
//! Runs beside the chat, which may sit in the line editor with the terminal in raw mode and cannot be woken there.

use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::remote::Connection;

/// Waits for SIGTERM or SIGHUP, then ends the process in order, with the exit code that shells give such an end.
pub(crate) async fn save_when_told(connection: Connection) {
    let as_it_was = tcgetattr(std::io::stdin()).ok();
    let (Ok(terminate), Ok(hang_up)) = (signal(SignalKind::terminate()), signal(SignalKind::hangup())) else {
        eprintln!("note: cannot listen for signals; being told to end will not save states");
        return;
    };
    let number = first_of(terminate, hang_up).await;
    if let Some(settings) = as_it_was {
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &settings);
    }
    if let Err(error) = connection.close().await {
        eprintln!("error: {error:#}");
    }
    std::process::exit(128 + number);
}

async fn first_of(mut terminate: Signal, mut hang_up: Signal) -> i32 {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = hang_up.recv() => SignalKind::hangup().as_raw_value(),
    }
}
