//! Commands on their way to the worker that serves at the moment.
//!
//! It outlives workers: what a worker has not taken when it ends is there for the next one. A worker that was given up
//! must take nothing, so a command that it got at the last moment goes back. Closed by the supervisor's thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::worker::command::Command;

/// See the module.
pub(crate) struct Inbox {
    waiting: Mutex<Pending>,
}

struct Pending {
    /// `None` once it is closed: sending fails then.
    commands: Option<Receiver<Command>>,
    /// What a worker took after it was given up.
    returned: Option<Command>,
}

impl Inbox {
    pub(crate) fn new(commands: Receiver<Command>) -> Self {
        Self { waiting: Mutex::new(Pending { commands: Some(commands), returned: None }) }
    }

    /// The next command, as soon as there is one. `Disconnected` if none can come, or none for a worker that was given
    /// up.
    pub(crate) fn wait(&self, given_up: &AtomicBool) -> Result<Command, TryRecvError> {
        self.take(given_up, |commands| commands.recv().map_err(|_| TryRecvError::Disconnected))
    }

    /// The next command if one comes within that time.
    pub(crate) fn wait_for(&self, given_up: &AtomicBool, time: Duration) -> Result<Command, TryRecvError> {
        self.take(given_up, |commands| {
            commands.recv_timeout(time).map_err(|error| match error {
                RecvTimeoutError::Timeout => TryRecvError::Empty,
                RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
            })
        })
    }

    /// The next command if one is there.
    pub(crate) fn poll(&self, given_up: &AtomicBool) -> Result<Command, TryRecvError> {
        self.take(given_up, Receiver::try_recv)
    }

    /// Closes the inbox; commands that were not taken are dropped.
    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        waiting.commands = None;
        waiting.returned = None;
    }

    fn take(
        &self,
        given_up: &AtomicBool,
        receive: impl FnOnce(&Receiver<Command>) -> Result<Command, TryRecvError>,
    ) -> Result<Command, TryRecvError> {
        let mut waiting = self.lock();
        if given_up.load(Ordering::SeqCst) {
            return Err(TryRecvError::Disconnected);
        }
        let command = match (waiting.returned.take(), &waiting.commands) {
            (Some(command), _) => command,
            (None, Some(commands)) => receive(commands)?,
            (None, None) => return Err(TryRecvError::Disconnected),
        };
        if given_up.load(Ordering::SeqCst) {
            waiting.returned = Some(command);
            return Err(TryRecvError::Disconnected);
        }
        Ok(command)
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tokio::sync::oneshot;

    use super::*;

    fn command() -> Command {
        Command::Evict { reply: oneshot::channel().0 }
    }

    #[test]
    fn a_worker_that_was_given_up_takes_nothing_and_loses_nothing() {
        let (sender, commands) = channel();
        let inbox = Inbox::new(commands);
        let (old, new) = (AtomicBool::new(true), AtomicBool::new(false));
        sender.send(command()).unwrap();
        assert!(inbox.wait(&old).is_err());
        assert!(inbox.wait(&new).is_ok());
        assert_eq!(inbox.poll(&new).err(), Some(TryRecvError::Empty));
        assert_eq!(inbox.wait_for(&new, Duration::from_millis(1)).err(), Some(TryRecvError::Empty));
        // Given up while it waited: the command goes back.
        sender.send(command()).unwrap();
        let late = AtomicBool::new(false);
        let taken = inbox.take(&late, |commands| {
            late.store(true, Ordering::SeqCst);
            commands.try_recv()
        });
        assert_eq!(taken.err(), Some(TryRecvError::Disconnected));
        assert!(inbox.poll(&new).is_ok());
    }

    #[test]
    fn a_closed_inbox_refuses_its_senders() {
        let (sender, commands) = channel();
        let inbox = Inbox::new(commands);
        let open = AtomicBool::new(false);
        sender.send(command()).unwrap();
        inbox.close();
        assert!(inbox.wait(&open).is_err());
        assert!(sender.send(command()).is_err());
    }
}
