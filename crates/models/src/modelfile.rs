//! A Modelfile: FROM, PARAMETER, SYSTEM, TEMPLATE, ADAPTER, LICENSE and MESSAGE, read and printed back.
//!
//! Read by `create`, printed by the server and by `show`. It parses text and never looks at files: the registry checks
//! whether the model in FROM exists. Every error gives its line.

mod message;
mod parameters;

use std::fmt;

use thiserror::Error;

use crate::name::printable;
use crate::suggestions::{did_you_mean_or, nearest};

pub use message::{Message, Role};
pub use parameters::{ParameterError, Parameters};

/// What a Modelfile says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Modelfile {
    /// A name, a path, or `@sha256:` and a hash.
    pub from: String,
    /// PARAMETER lines.
    pub parameters: Parameters,
    /// SYSTEM, the last one.
    pub system: Option<String>,
    /// TEMPLATE, the last one.
    pub template: Option<String>,
    /// ADAPTER lines: paths, or `@sha256:` and a hash.
    pub adapters: Vec<String>,
    /// LICENSE texts.
    pub license: Vec<String>,
    /// MESSAGE lines.
    pub messages: Vec<Message>,
}

/// Why a Modelfile is refused, and where.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line} of the Modelfile: {problem}")]
pub struct ModelfileError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub problem: ModelfileProblem,
}

/// What is wrong on a line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModelfileProblem {
    /// No FROM at all.
    #[error("FROM is missing; begin with `FROM smollm2:135m` or `FROM ./model.gguf`")]
    NoFrom,
    /// A second FROM.
    #[error("there is a second FROM; a model has exactly one")]
    SecondFrom,
    /// An instruction that is not known.
    #[error("`{word}` is not an instruction{} use FROM, PARAMETER, SYSTEM, TEMPLATE, ADAPTER, LICENSE or MESSAGE", did_you_mean_or(.near))]
    UnknownInstruction {
        /// The word, made printable.
        word: String,
        /// Instructions that may have been meant.
        near: Vec<String>,
    },
    /// An instruction with nothing after it.
    #[error("{instruction} needs {needs} after it")]
    Missing {
        /// Which.
        instruction: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// Quotes that are opened and not closed.
    #[error("the text opens with {quotes} and never closes; end it with {quotes}")]
    Unclosed {
        /// Which quotes.
        quotes: &'static str,
    },
    /// A PARAMETER that is not allowed.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// A MESSAGE with an unknown role.
    #[error("`{word}` is not a role; write MESSAGE system, MESSAGE user or MESSAGE assistant, then the text")]
    UnknownRole {
        /// The word, made printable.
        word: String,
    },
}

const INSTRUCTIONS: [&str; 7] = ["FROM", "PARAMETER", "SYSTEM", "TEMPLATE", "ADAPTER", "LICENSE", "MESSAGE"];
const TRIPLE: &str = "\"\"\"";

impl Modelfile {
    /// Reads a Modelfile.
    ///
    /// # Errors
    /// With the line and what is wrong on it.
    pub fn parse(text: &str) -> Result<Self, ModelfileError> {
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
        let mut modelfile = Self::default();
        while let Some((line, content)) = lines.next() {
            // The end of a line may be inside quotes; bare texts are trimmed later.
            let content = content.trim_start();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let at = |problem: ModelfileProblem| ModelfileError { line, problem };
            let (word, rest) = first_word(content);
            let upper = word.to_ascii_uppercase();
            let Some(instruction) = INSTRUCTIONS.into_iter().find(|known| *known == upper) else {
                let word = printable(word);
                let near = nearest(&upper, INSTRUCTIONS);
                return Err(at(ModelfileProblem::UnknownInstruction { word, near }));
            };
            // What stands before the text on the same line.
            let (key, rest) = match instruction {
                "PARAMETER" | "MESSAGE" => first_word(rest),
                _ => ("", rest),
            };
            let value = value(rest, &mut lines).map_err(at)?;
            modelfile.take(instruction, key, value).map_err(at)?;
        }
        if modelfile.from.is_empty() {
            return Err(ModelfileError { line: text.lines().count().max(1), problem: ModelfileProblem::NoFrom });
        }
        Ok(modelfile)
    }

    fn take(&mut self, instruction: &'static str, key: &str, value: String) -> Result<(), ModelfileProblem> {
        let needs = match instruction {
            "FROM" => "a name or a path",
            "ADAPTER" => "a path",
            "PARAMETER" => "a name and a value",
            "MESSAGE" => "a role and a text",
            // An empty SYSTEM or TEMPLATE takes away the one of the model below.
            _ => "",
        };
        if !needs.is_empty() && value.is_empty() {
            return Err(ModelfileProblem::Missing { instruction, needs });
        }
        match instruction {
            "FROM" if !self.from.is_empty() => return Err(ModelfileProblem::SecondFrom),
            "FROM" => self.from = value,
            "PARAMETER" => self.parameters.set_text(key, &value)?,
            "SYSTEM" => self.system = Some(value),
            "TEMPLATE" => self.template = Some(value),
            "ADAPTER" => self.adapters.push(value),
            "LICENSE" => self.license.push(value),
            _ => {
                let role = Role::parse(key).ok_or_else(|| ModelfileProblem::UnknownRole { word: printable(key) })?;
                self.messages.push(Message { role, content: value });
            }
        }
        Ok(())
    }
}

fn first_word(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}

/// The text after an instruction, quotes taken off; quoted ones may go on over several lines.
fn value<'a>(first: &'a str, lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Result<String, ModelfileProblem> {
    let Some(quotes) = [TRIPLE, "\""].into_iter().find(|quotes| first.starts_with(quotes)) else {
        return Ok(first.trim_end().to_owned());
    };
    let mut text = first.get(quotes.len()..).unwrap_or_default().to_owned();
    loop {
        // The closing quotes are the last thing on their line.
        if let Some(inside) = text.trim_end().strip_suffix(quotes) {
            return Ok(inside.to_owned());
        }
        let Some((_, line)) = lines.next() else { return Err(ModelfileProblem::Unclosed { quotes }) };
        text.push('\n');
        text.push_str(line);
    }
}

/// A text as a Modelfile writes it: bare where that reads back the same, else in quotes.
fn quoted(text: &str) -> String {
    let bare = !text.is_empty() && !text.contains(['\n', '\r', '"']) && text.trim() == text;
    if bare { text.to_owned() } else { format!("{TRIPLE}{text}{TRIPLE}") }
}

impl fmt::Display for Modelfile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "FROM {}", quoted(&self.from))?;
        for (instruction, text) in [("TEMPLATE", &self.template), ("SYSTEM", &self.system)] {
            if let Some(text) = text {
                writeln!(formatter, "{instruction} {}", quoted(text))?;
            }
        }
        for (name, value) in self.parameters.lines() {
            writeln!(formatter, "PARAMETER {name} {}", quoted(&value))?;
        }
        for adapter in &self.adapters {
            writeln!(formatter, "ADAPTER {}", quoted(adapter))?;
        }
        for message in &self.messages {
            writeln!(formatter, "MESSAGE {} {}", message.role.word(), quoted(&message.content))?;
        }
        for license in &self.license {
            writeln!(formatter, "LICENSE {}", quoted(license))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WHOLE: &str = r#"# A pirate
FROM smollm2:135m
parameter temperature 0.5
PARAMETER stop "<|end|>"
PARAMETER stop User:
SYSTEM """You are a pirate.
  Say "arr".
"""
TEMPLATE "{{ .Prompt }}"
ADAPTER ./lora.gguf

MESSAGE user Hello there
MESSAGE assistant "Arr,
matey"
LICENSE """MIT"""
"#;

    #[test]
    fn a_whole_file_is_read_and_printed_back() {
        let modelfile = Modelfile::parse(WHOLE).unwrap();
        assert_eq!(modelfile.from, "smollm2:135m");
        assert_eq!(modelfile.system.as_deref(), Some("You are a pirate.\n  Say \"arr\".\n"));
        assert_eq!(modelfile.template.as_deref(), Some("{{ .Prompt }}"));
        let json = serde_json::to_string(&modelfile.parameters).unwrap();
        assert_eq!(json, r#"{"stop":["<|end|>","User:"],"temperature":0.5}"#);
        assert_eq!(
            (modelfile.adapters.as_slice(), modelfile.license.as_slice()),
            (&["./lora.gguf".to_owned()][..], &["MIT".to_owned()][..])
        );
        assert_eq!(modelfile.messages[1].content, "Arr,\nmatey");
        assert_eq!(Modelfile::parse(&modelfile.to_string()).unwrap(), modelfile);
    }

    #[test]
    fn errors_say_the_line_and_what_to_write() {
        for (text, line, expected) in [
            ("", 1, "FROM smollm2:135m"),
            ("# only\n\n", 2, "FROM is missing"),
            ("FROM a\nFORM b", 2, "did you mean `FROM`"),
            ("FROM a\nFROM b", 2, "a second FROM"),
            ("FROM", 1, "a name or a path"),
            ("FROM a\n\nPARAMETER temperature", 3, "a name and a value"),
            ("FROM a\nPARAMETER heat 1", 2, "no parameter `heat`"),
            ("FROM a\nPARAMETER num_ctx many", 2, "a whole number"),
            ("FROM a\nSYSTEM \"\"\"open\nfor\never", 2, "never closes"),
            ("FROM a\nMESSAGE robot hi", 2, "not a role"),
            ("FROM a\nMESSAGE user", 2, "a role and a text"),
            ("FROM a\nADAPTER", 2, "a path"),
            ("FROM a\n\u{1b}[31m x", 2, "not an instruction"),
        ] {
            let refused = Modelfile::parse(text).unwrap_err();
            assert_eq!(refused.line, line, "{text:?}: {refused}");
            let message = refused.to_string();
            assert!(message.contains(expected) && !message.contains('\u{1b}'), "{text:?}: {message}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in any::<String>(), lines in "((FROM|SYSTEM|PARAMETER stop) [\"a ]{0,6}\n){0,6}") {
            let _ = Modelfile::parse(&text);
            let _ = Modelfile::parse(&lines);
        }

        #[test]
        fn printed_texts_read_back_the_same(
            system in "[ a\"\n\t#]{0,12}", stop in "[a<|> \"]{1,8}", from in "[a-z0-9/:. ]{1,9}[a-z]",
        ) {
            // The format has no way to write three quotes in a row, or one right before the closing ones.
            prop_assume!(!system.contains(TRIPLE) && !stop.contains(TRIPLE));
            prop_assume!(!system.contains("\"\n") && !system.ends_with('"') && !stop.ends_with('"'));
            prop_assume!(!from.starts_with(' '));
            let mut modelfile = Modelfile { from, system: Some(system), ..Modelfile::default() };
            modelfile.parameters.set_text("stop", &stop).unwrap();
            prop_assert_eq!(Modelfile::parse(&modelfile.to_string()).unwrap(), modelfile);
        }
    }
}
