//! A turn of a conversation, whatever dialect it came in: from messages and tools to requests of the engine.
//!
//! The dialects build a `ChatTurn` or a `Generation`; `prepare_chat` renders it with the model's template and takes
//! over what the template knows about the answer: grammar, triggers, stops, shown tokens, parser. Text of a client
//! must never become a special token. Rendering and tokenizing block, so callers run them off the async threads.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use poncho_engine::backend::chat::PromptPart;
use poncho_engine::backend::{ChatParser, ChatPrompt, ChatRequest, GrammarTrigger, ToolChoice};
use poncho_engine::reply::markers::ThinkingMarkers;
use poncho_engine::{
    EngineError, Grammar, GrammarSource, Mode, Model, QueuePlace, Request, Sampling, Stream, Thinking, Trigger,
};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::chat::hygiene::{self, Normalised};
use crate::chat::message_ends;
use crate::chat::replay::{Check, Recording, Scene, splice};
use crate::chat::reply_prefix::opening_tokens;
use crate::chat::tools::{self, GenericParser, ToolStyle};
use crate::http::error::ApiError;
use crate::models::served::ServedModel;

/// The schema of any object, for clients that want JSON and do not say which.
pub(crate) const ANY_OBJECT: &str = r#"{"type":"object"}"#;

/// How many contexts a prompt may fill that is only counted.
const COUNTED_CONTEXTS: usize = 4;

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
    /// The most tokens of thinking.
    pub(crate) thinking_budget: Option<u32>,
    /// Read the prompt and keep its state, say nothing.
    pub(crate) prefill_only: bool,
}

impl Generation {
    fn request(&self, tokens: Vec<u32>) -> Request {
        Request {
            mode: if self.prefill_only { Mode::PrefillOnly } else { Mode::Complete },
            thinking_budget: self.thinking_budget,
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
    /// Only these, if any; at least one of them if `required`.
    Among { names: Vec<String>, required: bool },
}

impl Choice {
    /// Whether the reply has to be a call.
    pub(crate) fn must_call(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_) | Self::Among { required: true, .. })
    }

    /// The tools that may be called, where not all of them may.
    pub(crate) fn names(&self) -> Option<Vec<&str>> {
        match self {
            Self::Named(name) => Some(vec![name.as_str()]),
            Self::Among { names, .. } => Some(names.iter().map(String::as_str).collect()),
            Self::Auto | Self::None | Self::Required => None,
        }
    }
}

/// A tool as templates want it.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// The definition in OpenAI's shape.
    pub(crate) json: String,
}

impl Tool {
    /// A function; its parameters are a JSON schema whose order is kept, because replies follow it.
    pub(crate) fn function(
        name: &str,
        description: Option<&str>,
        parameters: Option<&RawValue>,
    ) -> Result<Self, ApiError> {
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
        let definition = Definition { r#type: "function", function: Function { name, description, parameters } };
        let json = serde_json::to_string(&definition).map_err(|_| ApiError::Internal { doing: "wrote a tool" })?;
        Ok(Self { name: name.to_owned(), json })
    }
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
    /// What the reply already begins with; the model goes on from there.
    pub(crate) reply_start: String,
    pub(crate) generation: Generation,
}

impl ChatTurn {
    /// Whether the reply may have one call only: the client says so, or names the function to call.
    pub(crate) fn wants_one_call(&self) -> bool {
        !self.parallel_calls || matches!(self.choice, Choice::Named(_))
    }
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
    /// What the ids of tool calls begin with, if the dialect has a rule; else the model's own ids are kept.
    pub(crate) call_prefix: Option<&'static str>,
    /// How many calls the client gets; `None` for all of them.
    pub(crate) most_calls: Option<usize>,
    /// Keeps the reply for the next turn.
    pub(crate) recording: Option<Recording>,
    /// What was done to the prompt.
    pub(crate) normalised: Vec<Normalised>,
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

/// Renders a turn with the model's template, to be counted or looked at: it may be longer than the context.
pub(crate) fn render(model: &ServedModel, turn: &ChatTurn) -> Result<Rendered, ApiError> {
    let turn = model.defaults().complete(turn);
    let (turn, _) = hygiene::clean(&model.conversations().hygiene, &turn);
    rendered(model, &turn, tools::style(model, &turn), most_counted(model))
}

/// The most tokens of a text that is only counted or shown: clients want to know by how much a prompt is too long.
pub(crate) fn most_counted(model: &Model) -> usize {
    model.limits().context.saturating_mul(COUNTED_CONTEXTS)
}

fn rendered(model: &ServedModel, turn: &ChatTurn, style: ToolStyle, limit: usize) -> Result<Rendered, ApiError> {
    let short_ids = Cell::new(false);
    let request = |messages: &[Value]| {
        let messages = match style {
            ToolStyle::Generic => Cow::Owned(tools::generic_messages(turn, messages)),
            ToolStyle::Unused => Cow::Borrowed(messages),
            ToolStyle::Template if short_ids.get() => Cow::Owned(tools::with_short_ids(messages)),
            ToolStyle::Template => Cow::Borrowed(messages),
        };
        template_request(turn, &messages, style, turn.tools.iter())
    };
    let mut prompt = match apply_template(model, turn, &request(&turn.messages)?) {
        Err(error) if style == ToolStyle::Template => {
            // Some templates take ids of nine letters and digits only.
            short_ids.set(true);
            apply_template(model, turn, &request(&turn.messages)?).map_err(|_| error)?
        }
        applied => applied?,
    };
    let begun = |prompt: &mut ChatPrompt| {
        if !turn.reply_start.is_empty() {
            prompt.text.push_str(&turn.reply_start);
            prompt.parts.push(PromptPart { text: turn.reply_start.clone(), is_input: true });
        }
    };
    begun(&mut prompt);
    model.check_size(prompt.parts.iter().map(|part| part.text.as_str()), limit)?;
    let again = |messages: &[Value]| {
        let mut prompt = model.apply_chat_template(&request(messages).ok()?).ok()?;
        begun(&mut prompt);
        Some(prompt)
    };
    let scene = Scene { model, messages: &turn.messages, normal: &prompt, render: &again };
    // What an exact request says is all that its prompt may depend on.
    let is_exact = model.is_exact(turn.generation.exact);
    let spliced = if is_exact { None } else { splice(&scene, Check::Surroundings) };
    let is_spliced = spliced.is_some();
    let tokens = spliced.map_or_else(|| model.tokenize_prompt(&prompt), Ok);
    let tokens = tokens.map_err(|error| ApiError::from(error).in_field("messages"))?;
    let closed = |messages: &[Value]| {
        let request = ChatRequest { add_generation_prompt: false, ..request(messages).ok()? };
        model.apply_chat_template(&request).ok()
    };
    let mut whole = message_ends::whole(model, &prompt, tokens.len());
    let boundaries = message_ends::hints(model, &turn.messages, |head| {
        let normal = ChatPrompt { generation_prompt: prompt.generation_prompt.clone(), ..closed(head)? };
        if !is_spliced {
            return whole.common_with(&normal);
        }
        let scene = Scene { model, messages: head, normal: &normal, render: &closed };
        let head = splice(&scene, Check::Done).or_else(|| model.tokenize_prompt(&normal).ok())?;
        Some(head.iter().zip(&tokens).take_while(|(one, other)| one == other).count())
    });
    drop(whole);
    Ok(Rendered { prompt, tokens, boundaries })
}

/// Makes a request out of a turn.
pub(crate) fn prepare_chat(model: &ServedModel, turn: &ChatTurn) -> Result<Prepared, ApiError> {
    let turn = model.defaults().complete(turn);
    let (turn, normalised) = hygiene::clean(&model.conversations().hygiene, &turn);
    let turn = turn.as_ref();
    let style = tools::style(model, turn);
    let Rendered { prompt, tokens, boundaries } = rendered(model, turn, style, model.limits().context)?;
    // All tools stay in the prompt, so that naming one does not change its tokens; only the answer is narrowed.
    let answer = match turn.choice.names().filter(|_| style == ToolStyle::Template) {
        Some(names) => {
            let only = turn.tools.iter().filter(|tool| names.contains(&tool.name.as_str()));
            let named = |messages: &[Value]| {
                let mut request = template_request(turn, messages, style, only.clone())?;
                request.parallel_tool_calls = !turn.wants_one_call();
                apply_template(model, turn, &request)
            };
            named(&turn.messages).or_else(|error| named(&tools::with_short_ids(&turn.messages)).map_err(|_| error))?
        }
        None => prompt,
    };
    let mut request = turn.generation.request(tokens);
    request.thinking = turn.thinking;
    request.boundary_hints = boundaries;
    request.stop.extend(answer.stops.iter().cloned());
    request.shown_tokens = shown_tokens(model, &answer)?;
    if request.thinking_budget.is_some() && model.config().markers.thinking.is_none() {
        request.thinking_markers = thinking_markers(model, &answer)?;
    }
    let must_call = tools::offers_tools(turn) && turn.choice.must_call();
    // A template may know tools and still have no rules for calls.
    let generic = match style {
        ToolStyle::Generic => tools::offers_tools(turn),
        ToolStyle::Template => must_call && answer.grammar.is_empty(),
        ToolStyle::Unused => false,
    };
    request.grammar = if generic {
        let opened = starts_thinking(&answer).then(|| answer.thinking_ends.first()).flatten();
        tools::generic_grammar(model, turn, opened.map(String::as_str))?
    } else {
        grammar(model, turn, &answer, style)?
    };
    let recording = (!model.is_exact(turn.generation.exact))
        .then(|| Recording::new(model, &request.tokens, &answer.generation_prompt, &turn.messages));
    let most_calls = (tools::offers_tools(turn) && turn.wants_one_call()).then_some(1);
    Ok(Prepared { request, form: ReplyForm { recording, normalised, most_calls, ..reply_form(answer, generic) } })
}

/// Whether the prompt itself opened a thinking block.
fn starts_thinking(answer: &ChatPrompt) -> bool {
    let mark = answer.thinking_start.trim();
    !mark.is_empty() && answer.generation_prompt.trim_end().ends_with(mark)
}

fn reply_form(answer: ChatPrompt, generic: bool) -> ReplyForm {
    let starts_thinking = starts_thinking(&answer);
    let thinking_start = answer.thinking_start;
    let thinking_end = answer.thinking_ends.into_iter().next().unwrap_or_default();
    let mut parser = answer.parser;
    if generic {
        let (thinking_start, thinking_end) = (thinking_start.clone(), thinking_end.clone());
        parser = Arc::new(GenericParser { inner: parser, thinking_start, thinking_end, starts_thinking });
    }
    ReplyForm { parser: Some(parser), thinking_start, thinking_end, starts_thinking, ..ReplyForm::default() }
}

/// Renders; if the template cannot, because of a tool's schema, the error names that tool.
fn apply_template(model: &ServedModel, turn: &ChatTurn, request: &ChatRequest) -> Result<ChatPrompt, ApiError> {
    model.apply_chat_template(request).map_err(|error| {
        if request.tools_json.is_empty() {
            return error.into();
        }
        tools::bad_schema(model, turn).unwrap_or_else(|| match error {
            // Each is right, and all of them together are too much.
            EngineError::GrammarInvalid { reason } => ApiError::field("tools", reason),
            error => error.into(),
        })
    })
}

/// Makes a request out of a prompt that is used as it is.
pub(crate) fn prepare_text(tokens: Vec<u32>, generation: &Generation) -> Prepared {
    Prepared { request: generation.request(tokens), form: ReplyForm::default() }
}

/// Submits `count` requests for the same prompt, told apart by their seeds, each at a place that was reserved.
pub(crate) fn submit(
    model: &Model,
    prepared: &Prepared,
    count: u32,
    places: &mut impl Iterator<Item = QueuePlace>,
) -> Result<Vec<Stream>, EngineError> {
    (0..count)
        .map(|number| {
            let mut request = prepared.request.clone();
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(number.into()));
            submit_one(model, request, places.next())
        })
        .collect()
}

/// Some templates' grammars describe the opening of the reply that the prompt already holds, others do not; the
/// grammar itself says which, by taking those tokens or not.
fn submit_one(model: &Model, request: Request, mut place: Option<QueuePlace>) -> Result<Stream, EngineError> {
    let Some(grammar) = request.grammar.as_ref().filter(|grammar| !grammar.accepted.is_empty()) else {
        return model.submit_at(&mut place, request);
    };
    let bare = Grammar { accepted: Vec::new(), ..grammar.clone() };
    let without = Request { grammar: Some(bare), ..request.clone() };
    match model.submit_at(&mut place, request) {
        Err(EngineError::GrammarInvalid { .. }) => model.submit_at(&mut place, without),
        submitted => submitted,
    }
}

fn template_request<'t>(
    turn: &ChatTurn,
    messages: &[Value],
    style: ToolStyle,
    tools: impl Iterator<Item = &'t Tool>,
) -> Result<ChatRequest, ApiError> {
    let tools: Vec<&str> = tools.filter(|_| style == ToolStyle::Template).map(|tool| tool.json.as_str()).collect();
    let messages_json =
        serde_json::to_string(messages).map_err(|_| ApiError::Internal { doing: "wrote the messages" })?;
    let tool_choice = match turn.choice {
        _ if tools.is_empty() => ToolChoice::Auto,
        Choice::Auto | Choice::Among { required: false, .. } => ToolChoice::Auto,
        Choice::None => ToolChoice::None,
        Choice::Required | Choice::Named(_) | Choice::Among { required: true, .. } => ToolChoice::Required,
    };
    // A call that must be made is the whole reply: a schema for its text would only stand in the way. The generic
    // grammar knows both.
    let calls_only = tool_choice == ToolChoice::Required || (style == ToolStyle::Generic && tools::offers_tools(turn));
    Ok(ChatRequest {
        messages_json,
        tools_json: if tools.is_empty() { String::new() } else { format!("[{}]", tools.join(",")) },
        tool_choice,
        parallel_tool_calls: turn.parallel_calls,
        json_schema: turn.json_schema.clone().filter(|_| !calls_only).unwrap_or_default(),
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

/// What encloses thinking, as the template has it.
fn thinking_markers(model: &Model, prompt: &ChatPrompt) -> Result<Option<ThinkingMarkers>, EngineError> {
    if prompt.thinking_start.is_empty() || prompt.thinking_ends.is_empty() {
        return Ok(None);
    }
    // Models write the marks without the white space that templates put around them.
    let open = template_tokens(model, prompt.thinking_start.trim())?;
    let close = prompt.thinking_ends.iter().map(|end| template_tokens(model, end.trim()));
    Ok(Some(ThinkingMarkers { open, close: close.collect::<Result<_, _>>()? }))
}

fn grammar(
    model: &ServedModel,
    turn: &ChatTurn,
    prompt: &ChatPrompt,
    style: ToolStyle,
) -> Result<Option<Grammar>, ApiError> {
    let must_call = tools::offers_tools(turn) && turn.choice.must_call();
    let schema = turn.json_schema.as_ref().filter(|_| !must_call);
    if let Some(schema) = schema
        && hides_schema(model, turn, prompt, style)?
    {
        let source = GrammarSource::JsonSchema(schema.clone());
        return Ok(Some(Grammar { source, triggers: Vec::new(), accepted: Vec::new() }));
    }
    if prompt.grammar.is_empty() {
        return Ok(None);
    }
    let triggers = prompt.grammar_triggers.iter().filter(|_| prompt.grammar_lazy).map(|trigger| match trigger {
        GrammarTrigger::Token(token) => Trigger::Token(*token),
        GrammarTrigger::Pattern(pattern) => Trigger::Pattern(pattern.clone()),
    });
    let source = GrammarSource::Gbnf { text: prompt.grammar.clone(), root: "root".to_owned() };
    let accepted = if prompt.grammar_lazy { Vec::new() } else { opening_tokens(model, &prompt.generation_prompt)? };
    Ok(Some(Grammar { source, triggers: triggers.collect(), accepted }))
}

/// Whether the template's grammar is the same with and without the schema: then the reply is free of it.
fn hides_schema(model: &ServedModel, turn: &ChatTurn, prompt: &ChatPrompt, style: ToolStyle) -> Result<bool, ApiError> {
    if prompt.grammar.is_empty() || prompt.grammar_lazy {
        return Ok(true);
    }
    let free = ChatTurn { json_schema: None, ..turn.clone() };
    let anything = [serde_json::json!({"role": "user", "content": "x"})];
    let request = template_request(&free, &anything, style, turn.tools.iter())?;
    Ok(model.apply_chat_template(&request)?.grammar == prompt.grammar)
}

/// The tokens of a text that the template wrote.
fn template_tokens(model: &Model, text: &str) -> Result<Vec<u32>, EngineError> {
    use poncho_engine::backend::TokenizeMode;
    model.tokenize(text, TokenizeMode { add_special: false, parse_special: true })
}
