//! A terminal that does not show what is typed while a reply is written.
//!
//! Used by `turn.rs`. Keys pressed meanwhile wait for the next prompt, and Ctrl-C leaves no `^C` in the middle of a
//! reply or of a progress line. Signals work as before; the settings come back when the guard goes.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// The settings to return to; `None` without a terminal.
pub(crate) struct Quiet(Option<Termios>);

impl Quiet {
    pub(crate) fn begin() -> Self {
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut settings = before.clone();
            settings.local_modes.remove(LocalModes::ECHO);
            // Worst, keys are shown.
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
