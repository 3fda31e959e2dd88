//! The line editor of a chat: multi-line entries, history, completion of commands.
//!
//! Called by `chat.rs`. The history is a private file in the state folder of the user; a chat works without it.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use poncho_cache::{Links, NotRegular, close_to_others, create_private_folder, open_regular};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Helper};

use super::input::is_complete;
use crate::settings::user_folder::UserFolder;

const PROMPT: &str = ">>> ";
/// Maximum entries of the history.
const LONGEST_HISTORY: usize = 2000;
const COMMANDS: [&str; 11] =
    ["/clear", "/help", "/load ", "/model ", "/quit", "/retry", "/save ", "/set ", "/show", "/stats", "/system "];

/// Input from the keyboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Text(String),
    /// Ctrl-C at an empty prompt for the first time.
    Warned,
    /// Ctrl-D, or Ctrl-C at an empty prompt again.
    End,
}

/// See the module.
pub(crate) struct Editor {
    inner: rustyline::Editor<Rules, FileHistory>,
    history: Option<PathBuf>,
    warned: bool,
}

impl Editor {
    pub(crate) fn open() -> anyhow::Result<Self> {
        let config = Config::builder().history_ignore_space(true).max_history_size(LONGEST_HISTORY)?.build();
        let mut inner = rustyline::Editor::with_config(config).context("cannot read from the terminal")?;
        inner.set_helper(Some(Rules::default()));
        let history = UserFolder::State.find().map(|folder| folder.join("history"));
        let history = history.filter(|path| make_folder(path) && is_usable(path));
        if let Some(path) = &history {
            // The file does not exist before the first entry.
            let _ = inner.load_history(path);
        }
        Ok(Self { inner, history, warned: false })
    }

    /// Waits for an entry.
    pub(crate) fn read(&mut self) -> anyhow::Result<Entry> {
        if let Some(rules) = self.inner.helper() {
            rules.has_text.set(false);
        }
        let warned = std::mem::take(&mut self.warned);
        match self.inner.readline(PROMPT) {
            Ok(text) => {
                self.remember(&text);
                Ok(Entry::Text(text))
            }
            Err(ReadlineError::Eof) => Ok(Entry::End),
            Err(ReadlineError::Interrupted) if self.inner.helper().is_some_and(|rules| rules.has_text.get()) => {
                Ok(Entry::Text(String::new()))
            }
            Err(ReadlineError::Interrupted) if warned => Ok(Entry::End),
            Err(ReadlineError::Interrupted) => {
                self.warned = true;
                Ok(Entry::Warned)
            }
            Err(error) => Err(error).context("cannot read from the terminal"),
        }
    }

    fn remember(&mut self, text: &str) {
        let is_new = self.inner.add_history_entry(text).unwrap_or(false);
        if let Some(path) = self.history.as_ref().filter(|_| is_new) {
            let _ = self.inner.append_history(path);
        }
    }
}

fn make_folder(file: &Path) -> bool {
    file.parent().is_some_and(|folder| create_private_folder(folder).is_ok())
}

/// Whether the history can be used: a FIFO with its name would block the chat. An existing file is made private.
fn is_usable(file: &Path) -> bool {
    match open_regular(file, Links::Follow) {
        Ok(opened) => {
            let _ = close_to_others(&opened);
            true
        }
        Err(error) => !NotRegular::is_cause_of(&error),
    }
}

/// When an entry is complete, and how commands are completed.
#[derive(Default)]
struct Rules {
    /// Whether the line has text; an interrupt does not report it.
    has_text: Cell<bool>,
}

impl Helper for Rules {}
impl Highlighter for Rules {}

impl Hinter for Rules {
    type Hint = String;

    /// Only used because it is called on every change of the line.
    fn hint(&self, line: &str, _position: usize, _context: &Context<'_>) -> Option<String> {
        self.has_text.set(!line.is_empty());
        None
    }
}

impl Validator for Rules {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(context.input()) { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for Rules {
    type Candidate = String;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(..position).filter(|typed| typed.starts_with('/')).unwrap_or("\n");
        let fitting = COMMANDS.iter().filter(|command| command.starts_with(typed));
        Ok((0, fitting.map(|command| (*command).to_owned()).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_completed_and_other_text_is_not() {
        let history = FileHistory::new();
        let complete = |line: &str| Rules::default().complete(line, line.len(), &Context::new(&history)).unwrap().1;
        assert_eq!(complete("/s"), ["/save ", "/set ", "/show", "/stats", "/system "]);
        assert_eq!(complete("/help"), ["/help"]);
        assert!(complete("").is_empty() && complete("say /s").is_empty());
    }
}
