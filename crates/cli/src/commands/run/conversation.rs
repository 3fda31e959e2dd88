//! A conversation: the system prompt, the turns, and the file it can be saved to.
//!
//! The chat adds turns, and requests are built from it. The file is JSON with a version; another version or another shape
//! is refused, and a file that is not a conversation is never overwritten.

use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use poncho_cache::{Links, open_regular};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

/// The version of the file.
const VERSION: u32 = 1;
/// Maximum size of a file: far beyond any context.
const LONGEST_FILE: u64 = 64 << 20;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    User,
    Assistant,
}

/// A message, as in requests and in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) content: String,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Transcript {
    /// Names the format and its version.
    poncho_chat: u32,
    /// The model that answered last.
    model: String,
    messages: Vec<Message>,
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    pub(crate) system: Option<String>,
    turns: Vec<Message>,
}

impl Conversation {
    pub(crate) fn new(system: Option<String>) -> Self {
        Self { system: system.filter(|text| !text.is_empty()), turns: Vec::new() }
    }

    pub(crate) fn user_says(&mut self, text: String) {
        self.turns.push(Message { role: Role::User, content: text });
    }

    pub(crate) fn assistant_says(&mut self, text: String) {
        self.turns.push(Message { role: Role::Assistant, content: text });
    }

    /// Removes the last message of the user if it has no reply.
    pub(crate) fn take_back(&mut self) {
        self.turns.pop_if(|turn| turn.role == Role::User);
    }

    /// Removes the last message of the user with its reply, and returns it.
    pub(crate) fn take_last(&mut self) -> Option<String> {
        self.turns.pop_if(|turn| turn.role == Role::Assistant);
        self.turns.pop_if(|turn| turn.role == Role::User).map(|turn| turn.content)
    }

    /// Removes the turns and keeps the system prompt.
    pub(crate) fn clear(&mut self) {
        self.turns.clear();
    }

    /// The number of messages without the system prompt.
    pub(crate) fn len(&self) -> usize {
        self.turns.len()
    }

    /// All messages, the system prompt first.
    pub(crate) fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message { role: Role::System, content: text.clone() });
        system.chain(self.turns.iter().cloned()).collect()
    }

    /// Saves it to a file, atomically. A file that is not a conversation is left unchanged.
    pub(crate) fn save(&self, path: &Path, model: &str) -> anyhow::Result<()> {
        match read(path) {
            Ok(_) => {}
            Err(error) if is_missing(&error) => {}
            Err(error) => {
                let said = format!("{} exists and is not a conversation; choose another name", path.display());
                return Err(error.context(said));
            }
        }
        let transcript = Transcript { poncho_chat: VERSION, model: model.to_owned(), messages: self.messages() };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let cannot = || format!("cannot write {}", path.display());
        let mut file = NamedTempFile::new_in(folder).with_context(cannot)?;
        serde_json::to_writer_pretty(&mut file, &transcript).with_context(cannot)?;
        file.write_all(b"\n").with_context(cannot)?;
        file.persist(path).with_context(cannot)?;
        Ok(())
    }

    /// Loads a conversation from a file.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let mut messages = read(path)?.messages;
        let has_system = messages.first().is_some_and(|first| first.role == Role::System);
        let turns = messages.split_off(usize::from(has_system));
        let expected = [Role::User, Role::Assistant].into_iter().cycle();
        let in_turn = turns.iter().zip(expected).all(|(turn, role)| turn.role == role);
        ensure!(in_turn, "the messages of {} do not alternate between user and assistant", path.display());
        Ok(Self { system: messages.pop().map(|message| message.content), turns })
    }
}

fn read(path: &Path) -> anyhow::Result<Transcript> {
    let cannot = || format!("cannot read {}", path.display());
    let file = open_regular(path, Links::Follow).with_context(cannot)?;
    let mut text = String::new();
    file.take(LONGEST_FILE + 1).read_to_string(&mut text).with_context(cannot)?;
    ensure!(u64::try_from(text.len()).is_ok_and(|length| length <= LONGEST_FILE), "{} is too large", path.display());
    let transcript: Transcript = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a conversation saved with /save", path.display()))?;
    if transcript.poncho_chat != VERSION {
        bail!("{} has version {}, but this Poncho reads version {VERSION}", path.display(), transcript.poncho_chat);
    }
    Ok(transcript)
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Conversation {
        let mut conversation = Conversation::new(Some("Be brief.".to_owned()));
        conversation.user_says("Hello\n\u{1b}[31m".to_owned());
        conversation.assistant_says("Gr\u{fc}\u{df}e".to_owned());
        conversation
    }

    #[test]
    fn what_was_saved_is_what_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        let no_system = Conversation { system: None, ..conversation() };
        for conversation in [Conversation::default(), conversation(), no_system] {
            conversation.save(&path, "model").unwrap();
            assert_eq!(Conversation::load(&path).unwrap(), conversation);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn another_file_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thesis.txt");
        std::fs::write(&path, "three years of work").unwrap();
        let said = conversation().save(&path, "model").unwrap_err().to_string();
        assert!(said.contains("thesis.txt") && said.contains("another name"), "{said}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three years of work");
        assert!(conversation().save(folder.path(), "model").is_err(), "a folder is not a file");
        assert!(conversation().save(&folder.path().join("no/such/folder"), "model").is_err());
    }

    #[test]
    fn what_is_no_conversation_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        for (text, expected) in [
            ("", "not a conversation"),
            ("{}", "not a conversation"),
            (r#"{"poncho_chat":2,"model":"m","messages":[]}"#, "version 2"),
            (r#"{"poncho_chat":1,"model":"m","messages":[{"role":"tool","content":"x"}]}"#, "not a conversation"),
            (r#"{"poncho_chat":1,"model":"m","messages":[{"role":"assistant","content":"x"}]}"#, "alternate"),
            (
                r#"{"poncho_chat":1,"model":"m","messages":[{"role":"user","content":"x"},{"role":"system","content":"x"}]}"#,
                "alternate",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = Conversation::load(&path).unwrap_err().to_string();
            assert!(said.contains(expected), "{text}: {said}");
        }
        assert!(Conversation::load(&folder.path().join("none")).unwrap_err().to_string().contains("cannot read"));
    }

    #[test]
    fn only_an_unanswered_turn_is_taken_back() {
        let mut conversation = conversation();
        conversation.take_back();
        assert_eq!(conversation.len(), 2);
        conversation.user_says("And?".to_owned());
        conversation.take_back();
        assert_eq!(conversation.messages().len(), 3);
        assert_eq!(conversation.take_last().as_deref(), Some("Hello\n\u{1b}[31m"));
        assert_eq!((conversation.len(), conversation.take_last()), (0, None));
    }
}
