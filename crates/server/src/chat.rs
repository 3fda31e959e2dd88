//! A turn of a conversation, whatever dialect it came in: from messages and tools to requests of the engine.
//!
//! The dialects build a `ChatTurn` or a `Generation`; `prepare_chat` renders it with the model's template and takes
//! over what the template knows about the answer: grammar, triggers, stops, shown tokens, parser. Text of a client
//! must never become a special token. Rendering and tokenizing block, so callers run them off the async threads.

use std::sync::Arc;

use poncho_engine::backend::{ChatParser, ChatPrompt, ChatRequest, GrammarTrigger, ToolChoice};
use poncho_engine::{EngineError, Grammar, GrammarSource, Model, Request, Sampling, Stream, Thinking, Trigger};
use serde_json::Value;

use crate::boundary;
use crate::error::ApiError;

/// What a client may say about how a reply is generated.
#[derive(Debug, Clone, Default)]
pub(crate) struct Generation {
    pub(crate) max_tokens: Option<u32>,
    pub(crate) sampling: Sampling,
    pub(crate) stop: Vec<String>,
    pub(crate) logprobs: Option<u8>,
    pub(crate) session_id: Option<String>,
    pub(crate) exact: bool,
    pub(crate) ignore_eos: bool,
}

impl Generation {
    fn request(&self, tokens: Vec<u32>) -> Request {
        Request {
            max_tokens: self.max_tokens,
            sampling: self.sampling.clone(),
            stop: self.stop.clone(),
            logprobs: self.logprobs,
            session_id: self.session_id.clone(),
            exact: self.exact,
            ignore_eos: self.ignore_eos,
            ..Request::new(tokens)
        }
    }
}

/// Which tools the model may call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Choice {
    /// As it likes.
    #[default]
    Auto,
    /// None.
    None,
    /// At least one of them.
    Required,
    /// This one.
    Named(String),
}

/// A tool as templates want it.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// The definition in OpenAI's shape.
    pub(crate) json: String,
}

/// A turn: a conversation that waits for the assistant.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChatTurn {
    /// In OpenAI's shape, checked.
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: Choice,
    pub(crate) parallel_calls: bool,
    /// The reply must match this schema.
    pub(crate) json_schema: Option<String>,
    /// Further variables of the template, as a JSON object.
    pub(crate) template_kwargs: String,
    pub(crate) thinking: Thinking,
    pub(crate) generation: Generation,
}

/// How the text of a reply is read.
#[derive(Clone, Default)]
pub(crate) struct ReplyForm {
    /// Takes the text apart; without one it is all content.
    pub(crate) parser: Option<Arc<dyn ChatParser>>,
    pub(crate) thinking_start: String,
    pub(crate) thinking_end: String,
    /// Whether the prompt itself opened a thinking block.
    pub(crate) starts_thinking: bool,
}

/// A request that can be submitted, and how to read what comes back.
pub(crate) struct Prepared {
    pub(crate) request: Request,
    pub(crate) form: ReplyForm,
}

/// A rendered conversation.
pub(crate) struct Rendered {
    pub(crate) prompt: ChatPrompt,
    pub(crate) tokens: Vec<u32>,
    pub(crate) boundaries: Vec<usize>,
}

/// Renders a turn with the model's template.
pub(crate) fn render(model: &Model, turn: &ChatTurn) -> Result<Rendered, ApiError> {
    let request = template_request(turn, turn.tools.iter())?;
    let prompt = model.apply_chat_template(&request)?;
    let tokens = model.tokenize_prompt(&prompt)?;
    let boundaries = boundary::hints(model, &request, &turn.messages, &prompt, tokens.len());
    Ok(Rendered { prompt, tokens, boundaries })
}

/// Makes a request out of a turn.
pub(crate) fn prepare_chat(model: &Model, turn: &ChatTurn) -> Result<Prepared, ApiError> {
    let Rendered { prompt, tokens, boundaries } = render(model, turn)?;
    // All tools stay in the prompt, so that naming one does not change its tokens; only the answer is narrowed.
    let answer = match &turn.choice {
        Choice::Named(name) => {
            let only = turn.tools.iter().filter(|tool| tool.name == *name);
            model.apply_chat_template(&template_request(turn, only)?)?
        }
        Choice::Auto | Choice::None | Choice::Required => prompt,
    };
    let mut request = turn.generation.request(tokens);
    request.thinking = turn.thinking;
    request.boundary_hints = boundaries;
    request.stop.extend(answer.stops.iter().cloned());
    request.shown_tokens = shown_tokens(model, &answer)?;
    request.grammar = grammar(model, &answer, turn.json_schema.as_deref())?;
    let starts_thinking =
        !answer.thinking_start.is_empty() && answer.generation_prompt.trim_end().ends_with(&answer.thinking_start);
    let form = ReplyForm {
        parser: Some(answer.parser),
        thinking_start: answer.thinking_start,
        thinking_end: answer.thinking_ends.into_iter().next().unwrap_or_default(),
        starts_thinking,
    };
    Ok(Prepared { request, form })
}

/// Makes a request out of a prompt that is used as it is.
pub(crate) fn prepare_text(tokens: Vec<u32>, generation: &Generation) -> Prepared {
    Prepared { request: generation.request(tokens), form: ReplyForm::default() }
}

/// Submits `count` requests for the same prompt, told apart by their seeds.
pub(crate) fn submit(model: &Model, prepared: &Prepared, count: u32) -> Result<Vec<Stream>, EngineError> {
    (0..count)
        .map(|number| {
            let mut request = prepared.request.clone();
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(number.into()));
            submit_one(model, request)
        })
        .collect()
}

/// Some templates' grammars describe the opening of the reply that the prompt already holds, others do not; the
/// grammar itself says which, by taking those tokens or not.
fn submit_one(model: &Model, request: Request) -> Result<Stream, EngineError> {
    let Some(grammar) = request.grammar.as_ref().filter(|grammar| !grammar.accepted.is_empty()) else {
        return model.submit(request);
    };
    let bare = Grammar { accepted: Vec::new(), ..grammar.clone() };
    let without = Request { grammar: Some(bare), ..request.clone() };
    match model.submit(request) {
        Err(EngineError::GrammarInvalid { .. }) => model.submit(without),
        submitted => submitted,
    }
}

fn template_request<'t>(turn: &ChatTurn, tools: impl Iterator<Item = &'t Tool>) -> Result<ChatRequest, ApiError> {
    let tools: Vec<&str> = tools.map(|tool| tool.json.as_str()).collect();
    let messages_json =
        serde_json::to_string(&turn.messages).map_err(|_| ApiError::Internal { doing: "wrote the messages" })?;
    Ok(ChatRequest {
        messages_json,
        tools_json: if tools.is_empty() { String::new() } else { format!("[{}]", tools.join(",")) },
        tool_choice: match turn.choice {
            Choice::Auto => ToolChoice::Auto,
            Choice::None => ToolChoice::None,
            Choice::Required | Choice::Named(_) => ToolChoice::Required,
        },
        parallel_tool_calls: turn.parallel_calls,
        json_schema: turn.json_schema.clone().unwrap_or_default(),
        template_kwargs_json: turn.template_kwargs.clone(),
        enable_thinking: turn.thinking != Thinking::Off,
        ..ChatRequest::default()
    })
}

/// The control tokens that the parser needs to see.
fn shown_tokens(model: &Model, prompt: &ChatPrompt) -> Result<Vec<u32>, EngineError> {
    let mut shown = Vec::new();
    for text in &prompt.preserved_tokens {
        if let [token] = template_tokens(model, text)?.as_slice() {
            shown.push(*token);
        }
    }
    Ok(shown)
}

fn grammar(model: &Model, prompt: &ChatPrompt, schema: Option<&str>) -> Result<Option<Grammar>, EngineError> {
    if prompt.grammar.is_empty() {
        // A template that ignores the schema does not free the reply from it.
        let source = schema.map(|schema| GrammarSource::JsonSchema(schema.to_owned()));
        return Ok(source.map(|source| Grammar { source, triggers: Vec::new(), accepted: Vec::new() }));
    }
    let triggers = prompt.grammar_triggers.iter().filter(|_| prompt.grammar_lazy).map(|trigger| match trigger {
        GrammarTrigger::Token(token) => Trigger::Token(*token),
        GrammarTrigger::Pattern(pattern) => Trigger::Pattern(pattern.clone()),
    });
    let source = GrammarSource::Gbnf { text: prompt.grammar.clone(), root: "root".to_owned() };
    let accepted = if prompt.grammar_lazy { Vec::new() } else { opening_tokens(model, &prompt.generation_prompt)? };
    Ok(Some(Grammar { source, triggers: triggers.collect(), accepted }))
}

/// The tokens of the reply's opening, without the space that some tokenizers put before a text.
fn opening_tokens(model: &Model, opening: &str) -> Result<Vec<u32>, EngineError> {
    let mut tokens = template_tokens(model, opening)?;
    let first = tokens.first().map(|token| model.token_bytes(*token)).unwrap_or_default();
    let added = first.first().is_some_and(u8::is_ascii_whitespace) && !opening.starts_with(char::is_whitespace);
    if added {
        tokens.remove(0);
    }
    Ok(tokens)
}

/// The tokens of a text that the template wrote.
fn template_tokens(model: &Model, text: &str) -> Result<Vec<u32>, EngineError> {
    use poncho_engine::backend::TokenizeMode;
    model.tokenize(text, TokenizeMode { add_special: false, parse_special: true })
}
