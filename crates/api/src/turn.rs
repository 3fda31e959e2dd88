//! What is asked for: a conversation that waits for the assistant, or a prompt that is used as it is.
//!
//! The dialects of the server build a `Generate`; the engine renders, tokenizes and generates. Messages and tools have
//! OpenAI's shape, because that is what chat templates expect. Plain owned data.

mod root_reference;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::EngineError;
use crate::request::Request;

pub use self::root_reference::with_named_root;

/// The schema of any object, for clients that want JSON and do not say which.
pub const ANY_OBJECT: &str = r#"{"type":"object"}"#;

/// A text or its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// A text.
    Text(String),
    /// Tokens of the model's vocabulary.
    Tokens(Vec<u32>),
}

/// A stretch of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptPart {
    /// Its text.
    pub text: String,
    /// Whether it came from the request: then it is tokenized without recognising special tokens, or a user could
    /// forge a turn.
    pub is_input: bool,
}

/// What the model reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// A conversation, in the model's template.
    Chat(Box<ChatTurn>),
    /// A whole prompt, in which special tokens are recognised.
    Written(Input),
    /// A prompt of which only some stretches may have special tokens.
    Parts(Vec<PromptPart>),
    /// The text before a gap and the one after it. Neither may have special tokens.
    Fill {
        /// Before the gap.
        before: Input,
        /// After the gap.
        after: String,
    },
}

/// Which tools the model may call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Choice {
    /// As it likes.
    #[default]
    Auto,
    /// None.
    None,
    /// At least one of them.
    Required,
    /// This one.
    Named(String),
    /// Only these, if any; at least one of them if `required`.
    Among {
        /// The tools that may be called.
        names: Vec<String>,
        /// Whether one of them has to be.
        required: bool,
    },
}

impl Choice {
    /// Whether the reply has to be a call.
    #[must_use]
    pub fn must_call(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_) | Self::Among { required: true, .. })
    }

    /// The tools that may be called, where not all of them may.
    #[must_use]
    pub fn names(&self) -> Option<Vec<&str>> {
        match self {
            Self::Named(name) => Some(vec![name.as_str()]),
            Self::Among { names, .. } => Some(names.iter().map(String::as_str).collect()),
            Self::Auto | Self::None | Self::Required => None,
        }
    }
}

/// A tool as templates want it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The definition in OpenAI's shape.
    pub json: String,
}

impl Tool {
    /// A function; its parameters are a JSON schema in an order that is kept, because replies follow it.
    ///
    /// # Errors
    /// The definition cannot be written as JSON.
    pub fn function(name: &str, description: Option<&str>, parameters: Option<&RawValue>) -> Result<Self, EngineError> {
        #[derive(Serialize)]
        struct Definition<'t> {
            r#type: &'static str,
            function: Function<'t>,
        }
        #[derive(Serialize)]
        struct Function<'t> {
            name: &'t str,
            #[serde(skip_serializing_if = "Option::is_none")]
            description: Option<&'t str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            parameters: Option<&'t RawValue>,
        }
        let named = parameters.map(|parameters| with_named_root(parameters.get()));
        let named: Option<&RawValue> = match &named {
            Some(Cow::Owned(text)) => serde_json::from_str(text).ok(),
            Some(Cow::Borrowed(_)) | None => None,
        };
        let parameters = named.or(parameters);
        let definition = Definition { r#type: "function", function: Function { name, description, parameters } };
        let json = serde_json::to_string(&definition).map_err(|_| EngineError::internal("wrote a tool"))?;
        Ok(Self { name: name.to_owned(), json })
    }
}

/// A conversation that waits for the assistant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ChatTurn {
    /// In OpenAI's shape, checked.
    pub messages: Vec<Value>,
    /// Tools that the model may call.
    pub tools: Vec<Tool>,
    /// Which of them it may call.
    pub choice: Choice,
    /// Whether it may call several at once.
    pub parallel_calls: bool,
    /// The reply must match this schema.
    pub json_schema: Option<String>,
    /// Further variables of the template, as a JSON object; empty for none.
    pub template_kwargs: String,
    /// A template that stands for the model's own.
    pub template: Option<String>,
    /// What the reply already begins with; the model goes on from there.
    pub reply_start: String,
    /// Refuse the turn if the template knows no thinking.
    pub needs_thinking: bool,
    /// Leave the oldest turns out until the conversation fits.
    pub drops_oldest: bool,
    /// Numbers of messages after which the client marked the prompt as worth keeping. Only advice.
    pub marked: Vec<usize>,
}

impl ChatTurn {
    /// Whether the reply may have one call only: the client says so, or names the function to call.
    #[must_use]
    pub fn wants_one_call(&self) -> bool {
        !self.parallel_calls || matches!(self.choice, Choice::Named(_))
    }
}

/// Replies to one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generate {
    /// What the model reads.
    pub prompt: Prompt,
    /// How it replies. Its tokens stand before the prompt: an earlier reply that is gone on with.
    pub request: Request,
    /// How many replies; told apart by their seeds.
    pub replies: u32,
    /// Whether somebody reads the reply while it grows; else its text comes with the last event alone.
    pub in_pieces: bool,
    /// What the ids of tool calls begin with, if the dialect has a rule; else the model's own ids are kept.
    pub call_prefix: Option<String>,
}

impl Generate {
    /// One reply to a prompt.
    #[must_use]
    pub fn new(prompt: Prompt, request: Request) -> Self {
        Self { prompt, request, replies: 1, in_pieces: false, call_prefix: None }
    }

    /// One reply to a conversation.
    #[must_use]
    pub fn chat(turn: ChatTurn, request: Request) -> Self {
        Self::new(Prompt::Chat(Box::new(turn)), request)
    }

    /// The conversation, if it is one.
    #[must_use]
    pub fn turn(&self) -> Option<&ChatTurn> {
        match &self.prompt {
            Prompt::Chat(turn) => Some(turn),
            Prompt::Written(_) | Prompt::Parts(_) | Prompt::Fill { .. } => None,
        }
    }
}

/// A prompt as the model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendered {
    /// The text; empty where the prompt was none.
    pub text: String,
    /// The tokens, with what the model itself wrote put back token by token.
    pub tokens: Vec<u32>,
    /// Token offsets at which messages end.
    pub boundaries: Vec<usize>,
    /// What its rows depend on besides the tokens, as in `StoredRow`.
    pub namespace: [u8; 32],
}
