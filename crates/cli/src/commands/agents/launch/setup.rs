//! What an agent gets: variables, files of a temporary folder, and arguments; and how that is printed.
//!
//! Made by `clients.rs` for a target, applied by `process.rs`. Pure.

use std::ffi::OsString;
use std::io::Write;

use super::clients::Agent;
use super::target::Found;

/// Stands for the temporary folder in values and arguments.
pub(crate) const FOLDER: &str = "\u{1}folder\u{1}";
/// Stands for the key of the server in what is printed.
const HIDDEN_KEY: &str = "<key>";
/// What clients get that insist on a key where the server has none.
const ANY_KEY: &str = "any";

/// The server and the model that an agent is to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Without a path.
    pub(crate) url: String,
    pub(crate) key: Option<String>,
    pub(crate) model: String,
    /// Tokens that one request may use.
    pub(crate) context: usize,
}

impl Target {
    /// The base URL of OpenAI's clients.
    pub(crate) fn v1(&self) -> String {
        format!("{}/v1", self.url)
    }

    /// The key, or a word for clients that insist on one.
    pub(crate) fn key(&self) -> String {
        self.key.clone().unwrap_or_else(|| ANY_KEY.to_owned())
    }

    /// The longest reply that leaves room for a prompt.
    pub(crate) fn output(&self) -> usize {
        (self.context / 4).clamp(1, 8192)
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Variables that would override them.
    pub(crate) removed: Vec<&'static str>,
    /// Names in the temporary folder and contents.
    pub(crate) files: Vec<(&'static str, String)>,
    /// A folder of the user, relative to the home folder: its entries appear in the temporary folder, as links, except
    /// for the files above.
    pub(crate) linked: Option<&'static str>,
    /// Before the arguments of the user.
    pub(crate) arguments: Vec<String>,
}

/// Prints what would be done, as lines of a shell.
pub(crate) fn print(agent: &Agent, found: &Found, args: &[OsString], out: &mut impl Write) -> anyhow::Result<()> {
    let target = &found.target;
    match &found.starts {
        None => writeln!(out, "# server: {}", target.url)?,
        Some(model) => writeln!(out, "# server: none answers; starts one in this process with {model}")?,
    }
    writeln!(out, "# model: {}, with a context of {} tokens", target.model, target.context)?;
    let shown = Target { key: target.key.as_ref().map(|_| HIDDEN_KEY.to_owned()), ..target.clone() };
    let setup = agent.setup(&shown);
    let in_folder = |text: &str| text.replace(FOLDER, "$FOLDER");
    if !setup.files.is_empty() || setup.linked.is_some() {
        writeln!(out, "FOLDER=$(mktemp -d)")?;
    }
    if let Some(linked) = setup.linked {
        writeln!(out, "ln -s ~/{linked}/* \"$FOLDER\"")?;
        for (name, _) in &setup.files {
            // Else the next line would write to the file of the user.
            writeln!(out, "rm -f \"$FOLDER/{name}\"")?;
        }
    }
    for (name, content) in &setup.files {
        writeln!(out, "cat > \"$FOLDER/{name}\" <<'END'\n{}\nEND", content.trim_end())?;
    }
    for name in &setup.removed {
        writeln!(out, "unset {name}")?;
    }
    for (name, value) in &setup.variables {
        writeln!(out, "export {name}={}", quoted(&in_folder(value)))?;
    }
    let own = setup.arguments.iter().map(|argument| quoted(&in_folder(argument)));
    let given = args.iter().map(|argument| quoted(&argument.to_string_lossy()));
    let words: Vec<String> = std::iter::once(agent.program.to_owned()).chain(own).chain(given).collect();
    writeln!(out, "{}", words.join(" "))?;
    Ok(())
}

/// A word of a shell. The folder stays a variable.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@%+,".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    if text.contains("$FOLDER") && !text.contains(['"', '\\', '`']) {
        return format!("\"{text}\"");
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (text, word) in [
            ("plain-1.2", "plain-1.2"),
            ("", "''"),
            ("two words", "'two words'"),
            ("it's", r"'it'\''s'"),
            ("$FOLDER/x", "\"$FOLDER/x\""),
            ("$HOME", "'$HOME'"),
            (r#"{"a":"$FOLDER"}"#, r#"'{"a":"$FOLDER"}'"#),
        ] {
            assert_eq!(quoted(text), word, "{text}");
        }
    }

    #[test]
    fn a_reply_leaves_room_for_a_prompt() {
        let output = |context| Target { url: String::new(), key: None, model: String::new(), context }.output();
        assert_eq!((output(32768), output(4096), output(2)), (8192, 1024, 1));
    }
}
