//! The MESSAGE lines of a Modelfile: a role and its text.
//!
//! Read by the parser, stored in manifests and sent before each conversation by the server.

use serde::{Deserialize, Serialize};

/// A message of a Modelfile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The operator.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The word in a Modelfile.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }

    /// The role of a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::System, Self::User, Self::Assistant].into_iter().find(|role| role.word().eq_ignore_ascii_case(word))
    }
}
