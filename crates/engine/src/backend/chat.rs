//! Chat requests and what comes back: plain data, JSON kept as text.
//!
//! The server builds a `ChatRequest`, `Model::apply_chat_template` renders it, the `ChatParser` inside the
//! `ChatPrompt` reads the answer. Nothing here knows a wire dialect; the JSON texts have OpenAI's shape because
//! that is what llama.cpp's templates expect.

use std::fmt;
use std::sync::Arc;

pub use poncho_api::{ChatOutput, ChatToolCall, PromptPart};

use super::{ChatParser, GrammarTrigger};

/// Whether the model may, must or must not call tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// At least one call.
    Required,
    /// No calls.
    None,
}

/// What happens to thinking text in the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReasoningFormat {
    /// Left in the content.
    None,
    /// Separated where the template knows how.
    #[default]
    Auto,
    /// Separated, as DeepSeek's API does.
    Deepseek,
}

/// What a template renders.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// JSON array of messages (`role`, `content`, `tool_calls`, ...).
    pub messages_json: String,
    /// JSON array of tool definitions; empty for none.
    pub tools_json: String,
    /// May the model call tools.
    pub tool_choice: ToolChoice,
    /// May it call several at once.
    pub parallel_tool_calls: bool,
    /// A JSON schema for the answer; empty for none.
    pub json_schema: String,
    /// A GBNF grammar for the answer; empty for none.
    pub grammar: String,
    /// JSON object of further template variables; empty for none.
    pub template_kwargs_json: String,
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Let the model think, where the template knows how.
    pub enable_thinking: bool,
    /// What happens to thinking text.
    pub reasoning: ReasoningFormat,
    /// A Jinja template to use instead of the model's own.
    pub template_override: Option<String>,
}

impl Default for ChatRequest {
    fn default() -> Self {
        Self {
            messages_json: "[]".to_owned(),
            tools_json: String::new(),
            tool_choice: ToolChoice::default(),
            parallel_tool_calls: false,
            json_schema: String::new(),
            grammar: String::new(),
            template_kwargs_json: String::new(),
            add_generation_prompt: true,
            enable_thinking: true,
            reasoning: ReasoningFormat::default(),
            template_override: None,
        }
    }
}

/// A rendered prompt with everything the template knows about the answer.
#[derive(Clone)]
pub struct ChatPrompt {
    /// The whole text; the parts joined.
    pub text: String,
    /// The text in stretches of trusted and untrusted origin.
    pub parts: Vec<PromptPart>,
    /// GBNF grammar for the answer; empty for none.
    pub grammar: String,
    /// Whether the grammar waits for a trigger.
    pub grammar_lazy: bool,
    /// What wakes a lazy grammar.
    pub grammar_triggers: Vec<GrammarTrigger>,
    /// Special tokens that the parser needs to see as text: detokenize them with `SpecialText::Render`.
    pub preserved_tokens: Vec<String>,
    /// Further stop strings.
    pub stops: Vec<String>,
    /// What the rendered prompt already wrote of the assistant's turn.
    pub generation_prompt: String,
    /// Text that opens a thinking block; empty if the template has none.
    pub thinking_start: String,
    /// Texts that close one.
    pub thinking_ends: Vec<String>,
    /// Whether the template understands `enable_thinking`.
    pub supports_thinking: bool,
    /// Name of the answer's format, for logs.
    pub format: String,
    /// Reads the answer.
    pub parser: Arc<dyn ChatParser>,
}

impl fmt::Debug for ChatPrompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatPrompt")
            .field("text", &self.text)
            .field("format", &self.format)
            .field("grammar_lazy", &self.grammar_lazy)
            .finish_non_exhaustive()
    }
}
