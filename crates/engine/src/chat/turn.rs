//! A turn of a conversation, in whatever dialect it came: from messages and tools to requests of the worker.
//!
//! Called by the host. `prepare_chat` renders a `ChatTurn` with the model's template and takes over what the template
//! knows about the answer: grammar, triggers, stops, shown tokens, parser. Text of a client must never become a special
//! token. Rendering and tokenizing block, so callers run them off the async threads.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;

use poncho_api::{
    ChatTurn, Choice, EngineError, Grammar, GrammarSource, Normalised, PromptPart, Request, Thinking, ThinkingMarkers,
    Tool, Trigger,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::backend::{ChatParser, ChatPrompt, ChatRequest, GrammarTrigger, TokenizeMode, ToolChoice};
use crate::calls::stream::Stream;
use crate::chat::hygiene;
use crate::chat::marks::ReplyMarks;
use crate::chat::message_ends;
use crate::chat::model::ChatModel;
use crate::chat::prompt::most_counted;
use crate::chat::replay::{Check, Recording, Scene, splice};
use crate::chat::reply_prefix::opening_tokens;
use crate::chat::tools::{self, CALL_OPEN, GenericParser, ToolStyle};
use crate::model::Model;
use crate::shared::queue_place::QueuePlace;

/// How the text of a reply is read.
#[derive(Clone, Default)]
pub(crate) struct ReplyForm {
    /// Takes the raw text apart; without one the worker's events are content and thinking.
    pub(crate) parser: Option<Arc<dyn ChatParser>>,
    /// What separates content, thinking and calls in that text.
    pub(crate) marks: ReplyMarks,
    /// What the ids of tool calls begin with, if the dialect has a rule; else the model's own ids are kept.
    pub(crate) call_prefix: Option<String>,
    /// How many calls the client gets; `None` for all of them.
    pub(crate) most_calls: Option<usize>,
    /// Keeps the reply for the next turn.
    pub(crate) recording: Option<Recording>,
    /// What was done to the prompt.
    pub(crate) normalised: Vec<Normalised>,
    /// Whether somebody reads the reply while it grows.
    pub(crate) in_pieces: bool,
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
pub(crate) fn render(model: &ChatModel, turn: &ChatTurn, request: &Request) -> Result<Rendered, EngineError> {
    let (turn, _) = hygiene::clean(&model.conversations().hygiene, turn);
    rendered(model, &turn, request, tools::style(model, &turn), most_counted(model))
}

fn rendered(
    model: &ChatModel,
    turn: &ChatTurn,
    asked: &Request,
    style: ToolStyle,
    limit: usize,
) -> Result<Rendered, EngineError> {
    let short_ids = Cell::new(false);
    let request = |messages: &[Value]| {
        let messages = match style {
            ToolStyle::Generic => Cow::Owned(tools::generic_messages(turn, messages)),
            ToolStyle::Unused => Cow::Borrowed(messages),
            ToolStyle::Template if short_ids.get() => Cow::Owned(tools::with_short_ids(messages)),
            ToolStyle::Template => Cow::Borrowed(messages),
        };
        template_request(turn, asked.thinking, &messages, style, turn.tools.iter())
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
    let is_exact = model.is_exact(asked.exact);
    let spliced = if is_exact { None } else { splice(&scene, Check::Surroundings) };
    let is_spliced = spliced.is_some();
    let tokens = spliced.map_or_else(|| model.conversation_tokens(&prompt), Ok);
    let tokens = tokens.map_err(|error| error.in_field("messages"))?;
    let closed = |messages: &[Value]| {
        let request = ChatRequest { add_generation_prompt: false, ..request(messages).ok()? };
        model.apply_chat_template(&request).ok()
    };
    let settings = settings(model, turn, asked, short_ids.get());
    let boundaries = message_ends::hints(model, &settings, &turn.messages, &turn.marked, &tokens, |head| {
        let normal = ChatPrompt { generation_prompt: prompt.generation_prompt.clone(), ..closed(head)? };
        let scene = Scene { model, messages: head, normal: &normal, render: &closed };
        let spliced = is_spliced.then(|| splice(&scene, Check::Done)).flatten();
        spliced.or_else(|| model.conversation_tokens(&normal).ok())
    });
    Ok(Rendered { prompt, tokens, boundaries })
}

/// A hash of what a rendering depends on besides the messages.
fn settings(model: &ChatModel, turn: &ChatTurn, asked: &Request, short_ids: bool) -> Sha256 {
    let all = serde_json::json!([
        turn.tools,
        turn.choice,
        turn.parallel_calls,
        turn.json_schema,
        turn.template_kwargs,
        model.template_override(),
        model.share(),
        asked.thinking,
        model.is_exact(asked.exact),
        short_ids,
    ]);
    Sha256::new_with_prefix(model.namespace().fingerprint).chain_update(all.to_string())
}

/// Makes a request out of a turn; `asked` is how the client wants the reply.
pub(crate) fn prepare_chat(model: &ChatModel, turn: &ChatTurn, asked: &Request) -> Result<Prepared, EngineError> {
    let (turn, normalised) = hygiene::clean(&model.conversations().hygiene, turn);
    let turn = turn.as_ref();
    let style = tools::style(model, turn);
    let Rendered { prompt, tokens, boundaries } = rendered(model, turn, asked, style, model.limits().context)?;
    // All tools stay in the prompt, so that naming one does not change its tokens; only the answer is narrowed.
    let answer = match turn.choice.names().filter(|_| style == ToolStyle::Template) {
        Some(names) => {
            let only = turn.tools.iter().filter(|tool| names.contains(&tool.name.as_str()));
            let named = |messages: &[Value]| {
                let mut request = template_request(turn, asked.thinking, messages, style, only.clone())?;
                request.parallel_tool_calls = !turn.wants_one_call();
                apply_template(model, turn, &request)
            };
            named(&turn.messages).or_else(|error| named(&tools::with_short_ids(&turn.messages)).map_err(|_| error))?
        }
        None => prompt,
    };
    let mut request = Request { tokens, boundary_hints: boundaries, raw_text: true, ..asked.clone() };
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
        grammar(model, turn, asked.thinking, &answer, style)?
    };
    let recording = (!model.is_exact(asked.exact))
        .then(|| Recording::new(model, &request.tokens, &answer.generation_prompt, &turn.messages));
    let most_calls = (tools::offers_tools(turn) && turn.wants_one_call()).then_some(1);
    let has_tools = style == ToolStyle::Template && tools::offers_tools(turn);
    let form = reply_form(answer, has_tools, generic);
    Ok(Prepared { request, form: ReplyForm { recording, normalised, most_calls, ..form } })
}

/// Whether the prompt itself opened a thinking block.
fn starts_thinking(answer: &ChatPrompt) -> bool {
    let mark = answer.thinking_start.trim();
    !mark.is_empty() && answer.generation_prompt.trim_end().ends_with(mark)
}

/// `has_tools` if the template knows the tools that may be called, `generic` if calls have the generic form.
fn reply_form(answer: ChatPrompt, has_tools: bool, generic: bool) -> ReplyForm {
    let mut marks = ReplyMarks::of(&answer, has_tools);
    let starts_thinking = starts_thinking(&answer);
    let mut parser = answer.parser;
    if generic {
        marks.texts.push(CALL_OPEN.to_owned());
        let thinking_end = answer.thinking_ends.into_iter().next().unwrap_or_default();
        let thinking_start = answer.thinking_start;
        parser = Arc::new(GenericParser { inner: parser, thinking_start, thinking_end, starts_thinking });
    }
    ReplyForm { parser: Some(parser), marks, ..ReplyForm::default() }
}

/// Renders; if the template cannot, because of a tool's schema, the error names that tool.
fn apply_template(model: &ChatModel, turn: &ChatTurn, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
    model.rendered_once(request).map_err(|error| {
        if request.tools_json.is_empty() {
            return error;
        }
        tools::bad_schema(model, turn).unwrap_or_else(|| match error {
            // Each is right, and all of them together are too much.
            EngineError::GrammarInvalid { reason } => EngineError::input("tools", reason),
            error => error,
        })
    })
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
    thinking: Thinking,
    messages: &[Value],
    style: ToolStyle,
    tools: impl Iterator<Item = &'t Tool>,
) -> Result<ChatRequest, EngineError> {
    let tools: Vec<&str> = tools.filter(|_| style == ToolStyle::Template).map(|tool| tool.json.as_str()).collect();
    let messages_json = serde_json::to_string(messages).map_err(|_| EngineError::internal("wrote the messages"))?;
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
        enable_thinking: thinking != Thinking::Off,
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
    model: &ChatModel,
    turn: &ChatTurn,
    thinking: Thinking,
    prompt: &ChatPrompt,
    style: ToolStyle,
) -> Result<Option<Grammar>, EngineError> {
    let must_call = tools::offers_tools(turn) && turn.choice.must_call();
    let schema = turn.json_schema.as_ref().filter(|_| !must_call);
    if let Some(schema) = schema
        && hides_schema(model, turn, thinking, prompt, style)?
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
fn hides_schema(
    model: &ChatModel,
    turn: &ChatTurn,
    thinking: Thinking,
    prompt: &ChatPrompt,
    style: ToolStyle,
) -> Result<bool, EngineError> {
    if prompt.grammar.is_empty() || prompt.grammar_lazy {
        return Ok(true);
    }
    let free = ChatTurn { json_schema: None, ..turn.clone() };
    let anything = [serde_json::json!({"role": "user", "content": "x"})];
    let request = template_request(&free, thinking, &anything, style, turn.tools.iter())?;
    Ok(model.apply_chat_template(&request)?.grammar == prompt.grammar)
}

/// The tokens of a text that the template wrote.
fn template_tokens(model: &Model, text: &str) -> Result<Vec<u32>, EngineError> {
    model.tokenize(text, TokenizeMode { add_special: false, parse_special: true })
}
