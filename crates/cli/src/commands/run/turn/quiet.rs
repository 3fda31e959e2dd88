//! Disables the echo of the terminal during a reply.
//!
//! Used by `turn.rs`. Keys wait for the next prompt, and Ctrl-C leaves no `^C` in a reply or a progress line. Signals
//! still work; dropping the guard restores the settings.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// The settings to return to; `None` without a terminal.
pub(crate) struct Quiet(Option<Termios>);

impl Quiet {
    pub(crate) fn begin() -> Self {
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut settings = before.clone();
            settings.local_modes.remove(LocalModes::ECHO);
            // If this fails, keys are shown.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &settings);
        }
        Self(before)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}
