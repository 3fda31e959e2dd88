//! Chat templates: rendering with llama.cpp's own template code, and parsing what the model wrote.
//!
//! Used by `Model::apply_chat_template`. A template may run forever, so `render.rs` runs it on a thread of its own and
//! stops waiting after a while; rendering one set from two threads at once is not promised by llama.cpp, so each render
//! has a set to itself. Requests are JSON texts that were written by clients: depth is checked here, everything else by
//! the shim, which catches exceptions.

use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_4 as sys;
use serde_json::Value;

use crate::backend::chat::{ChatToolCall, PromptPart};
use crate::backend::llama::chat::render::{RenderLimits, Renders};
use crate::backend::llama::chat::schema::{last_error, nesting, sized_bytes, sized_text};
use crate::backend::llama::handle::ModelHandle;
use crate::backend::llama::text::deep::on_deep_stack_at_once;
use crate::backend::llama::text::runs::SHALLOW;
use crate::backend::{
    ChatError, ChatOutput, ChatParser, ChatPrompt, ChatRequest, GrammarTrigger, ReasoningFormat, ToolChoice,
};

/// Deepest nesting of a request's JSON; the templates walk it by recursion.
const MAX_DEPTH: usize = 256;
/// Bytes for a grammar and for what else stands beside a prompt.
const ROOM_BESIDE: usize = 64 << 10;
/// Brackets that may be open at the same time in a reply; each takes a few kibibytes of a deep stack.
const MAX_OPEN: usize = 4096;

/// The templates of a model: its own, and those that callers brought.
pub(in crate::backend::llama) struct Templates {
    renders: Renders<TemplateSet>,
    model: Arc<ModelHandle>,
}

struct TemplateSet {
    set: NonNull<sys::chat_shim_templates>,
    /// The set refers to the model, if it is one of a model.
    _model: Option<Arc<ModelHandle>>,
}

// SAFETY: a set is used by one thread at a time: `Renders` hands each one to one render.
unsafe impl Send for TemplateSet {}

impl Drop for TemplateSet {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { sys::chat_shim_templates_free(self.set.as_ptr()) }
    }
}

impl Templates {
    pub(in crate::backend::llama) fn new(model: Arc<ModelHandle>) -> Self {
        Self { renders: Renders::new(RenderLimits::default()), model }
    }

    pub(in crate::backend::llama) fn apply(&self, request: &ChatRequest) -> Result<ChatPrompt, ChatError> {
        let texts = RequestTexts::new(request)?;
        let name = request.template_override.clone().unwrap_or_default();
        let (model, template, request) = (Arc::clone(&self.model), name.clone(), request.clone());
        let build = move || TemplateSet::build(Some(model), &template);
        self.renders.run(&name, build, move |set| set.apply(&texts, &request))
    }
}

impl TemplateSet {
    /// Reading a template runs it: llama.cpp tries out what it can do.
    fn build(model: Option<Arc<ModelHandle>>, template: &str) -> Result<Self, ChatError> {
        let text = c_text(template, "template")?;
        let text = if template.is_empty() { std::ptr::null() } else { text.as_ptr() };
        let model_ptr = model.as_ref().map_or(std::ptr::null(), |model| model.as_ptr().cast_const());
        // SAFETY: the model is valid and kept by the set, or null, which llama.cpp allows beside a template;
        // exceptions are caught and yield null.
        let set = unsafe { sys::chat_shim_templates_init(model_ptr, text) };
        let set = NonNull::new(set).ok_or_else(|| ChatError::BadTemplate { reason: last_error() })?;
        Ok(Self { set, _model: model })
    }

    fn apply(&self, texts: &RequestTexts, request: &ChatRequest) -> Result<ChatPrompt, ChatError> {
        let params = texts.params(request);
        let mut result = empty_result();
        // Rendering again because the room was too small would double the time.
        let room = 2 * (request.messages_json.len() + request.tools_json.len()) + ROOM_BESIDE;
        let packed = sized_bytes(room, |buffer, len, needed| {
            // SAFETY: the set, the parameters and their texts outlive the call; the shim catches exceptions and
            // hands a parser over only on the call that succeeds.
            unsafe {
                sys::chat_shim_templates_apply(
                    self.set.as_ptr(),
                    &raw const params,
                    &raw mut result,
                    buffer,
                    len,
                    needed,
                )
            }
        });
        let packed = packed.map_err(|reason| ChatError::Refused { reason })?;
        Ok(read_prompt(&packed, &result))
    }
}

/// Checks a chat template without a model: that it can be parsed, and that it writes what a user says.
///
/// # Errors
/// It cannot be parsed or rendered, takes too long, or leaves the user's message out.
pub fn check_template(template: &str) -> Result<(), ChatError> {
    const WORD: &str = "q7wz";
    if template.trim().is_empty() {
        return Err(ChatError::BadTemplate { reason: "it is empty".to_owned() });
    }
    let messages_json = format!(r#"[{{"role": "user", "content": "{WORD}"}}]"#);
    let request = ChatRequest { messages_json, ..ChatRequest::default() };
    let (texts, text) = (RequestTexts::new(&request)?, template.to_owned());
    let renders = Renders::new(RenderLimits::default());
    let build = move || TemplateSet::build(None, &text);
    let prompt = renders.run("check", build, move |set| set.apply(&texts, &request))?;
    let is_written = prompt.parts.iter().any(|part| part.text.contains(WORD));
    let reason = || "it does not write the messages; loop over `messages` and write their `content`".to_owned();
    if is_written { Ok(()) } else { Err(ChatError::BadTemplate { reason: reason() }) }
}

/// The request's texts as C strings, alive for one call.
struct RequestTexts {
    messages: CString,
    tools: CString,
    grammar: CString,
    schema: CString,
    kwargs: CString,
}

impl RequestTexts {
    fn new(request: &ChatRequest) -> Result<Self, ChatError> {
        let json = [
            ("messages", &request.messages_json),
            ("tools", &request.tools_json),
            ("json_schema", &request.json_schema),
            ("template_kwargs", &request.template_kwargs_json),
        ];
        for (field, text) in json {
            if nesting(text) > MAX_DEPTH {
                let reason = format!("it is nested more than {MAX_DEPTH} levels deep");
                return Err(ChatError::BadRequest { field, reason });
            }
        }
        Ok(Self {
            messages: c_text(&request.messages_json, "messages")?,
            tools: c_text(&request.tools_json, "tools")?,
            grammar: c_text(&request.grammar, "grammar")?,
            schema: c_text(&request.json_schema, "json_schema")?,
            kwargs: c_text(&with_texts_quoted(&request.template_kwargs_json), "template_kwargs")?,
        })
    }

    fn params(&self, request: &ChatRequest) -> sys::chat_shim_apply_params {
        sys::chat_shim_apply_params {
            messages_json: self.messages.as_ptr(),
            tools_json: self.tools.as_ptr(),
            grammar: self.grammar.as_ptr(),
            json_schema: self.schema.as_ptr(),
            template_kwargs_json: self.kwargs.as_ptr(),
            tool_choice: match request.tool_choice {
                ToolChoice::Auto => 0,
                ToolChoice::Required => 1,
                ToolChoice::None => 2,
            },
            reasoning_format: match request.reasoning {
                ReasoningFormat::None => 0,
                ReasoningFormat::Auto => 1,
                ReasoningFormat::Deepseek => 3,
            },
            add_generation_prompt: request.add_generation_prompt,
            enable_thinking: request.enable_thinking,
            parallel_tool_calls: request.parallel_tool_calls,
            use_jinja: true,
            // Special tokens at the ends are added when the text is tokenized, not by the template.
            add_bos: false,
            add_eos: false,
            force_pure_content: false,
        }
    }
}

/// The shim hands a text on as it stands to a parser of JSON, so a text needs quotes of its own.
fn with_texts_quoted(kwargs: &str) -> String {
    let Ok(Value::Object(mut values)) = serde_json::from_str(kwargs) else { return kwargs.to_owned() };
    for value in values.values_mut().filter(|value| value.is_string()) {
        *value = Value::String(value.to_string());
    }
    Value::Object(values).to_string()
}

fn empty_result() -> sys::chat_shim_apply_result {
    sys::chat_shim_apply_result {
        prompt_off: 0,
        prompt_parts_off: 0,
        grammar_off: 0,
        grammar_triggers_off: 0,
        preserved_tokens_off: 0,
        additional_stops_off: 0,
        generation_prompt_off: 0,
        thinking_start_tag_off: 0,
        thinking_end_tags_off: 0,
        format: 0,
        parser: std::ptr::null_mut(),
        grammar_lazy: false,
        supports_thinking: false,
    }
}

fn read_prompt(packed: &[u8], result: &sys::chat_shim_apply_result) -> ChatPrompt {
    let generation_prompt = region(packed, result.generation_prompt_off);
    let parser = Parser {
        parser: NonNull::new(result.parser),
        generation_prompt: CString::new(generation_prompt.as_str()).unwrap_or_default(),
        format: result.format,
    };
    let format = sized_text(|buffer, len, needed| {
        // SAFETY: the buffer has `len` bytes; exceptions are caught in the shim.
        unsafe { sys::chat_shim_format_name(result.format, buffer, len, needed) }
    });
    let part = |part: &Value| PromptPart {
        text: text_field(part, "text"),
        is_input: part.get("is_input").and_then(Value::as_bool).unwrap_or(true),
    };
    let parts: Vec<PromptPart> = objects(packed, result.prompt_parts_off).iter().map(part).collect();
    // The whole text is a C string: a zero byte of a message would end it.
    let joined = || parts.iter().map(|part| part.text.as_str()).collect();
    ChatPrompt {
        text: if parts.is_empty() { region(packed, result.prompt_off) } else { joined() },
        parts,
        grammar: region(packed, result.grammar_off),
        grammar_lazy: result.grammar_lazy,
        grammar_triggers: objects(packed, result.grammar_triggers_off).iter().filter_map(read_trigger).collect(),
        preserved_tokens: strings(packed, result.preserved_tokens_off),
        stops: strings(packed, result.additional_stops_off),
        generation_prompt,
        thinking_start: region(packed, result.thinking_start_tag_off),
        thinking_ends: strings(packed, result.thinking_end_tags_off),
        supports_thinking: result.supports_thinking,
        format: format.unwrap_or_default(),
        parser: Arc::new(parser),
    }
}

/// A trigger as llama.cpp's grammar code wants it: words become patterns, full patterns are anchored.
fn read_trigger(trigger: &Value) -> Option<GrammarTrigger> {
    let value = text_field(trigger, "value");
    match trigger.get("type").and_then(Value::as_str)? {
        "token" => {
            let token = trigger.get("token").and_then(Value::as_u64)?;
            u32::try_from(token).ok().map(GrammarTrigger::Token)
        }
        "word" => Some(GrammarTrigger::Pattern(escape_pattern(&value))),
        "pattern" => Some(GrammarTrigger::Pattern(value)),
        "pattern_full" => {
            let start = if value.starts_with('^') { "" } else { "^" };
            let end = if value.ends_with('$') { "" } else { "$" };
            Some(GrammarTrigger::Pattern(format!("{start}{value}{end}")))
        }
        _ => None,
    }
}

fn escape_pattern(word: &str) -> String {
    let mut out = String::with_capacity(word.len() + 8);
    for c in word.chars() {
        if ".^$|()*+?[]{}\\".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The parser that came with a prompt.
struct Parser {
    parser: Option<NonNull<sys::chat_shim_parser>>,
    generation_prompt: CString,
    format: i32,
}

// SAFETY: the parser is owned by this value; parsing only reads it.
unsafe impl Send for Parser {}
// SAFETY: as above; the shim takes it as a pointer to const.
unsafe impl Sync for Parser {}

impl ChatParser for Parser {
    fn parse(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError> {
        // The parsers descend by recursion, once for each bracket that is open.
        if generated.len() <= SHALLOW {
            return self.parse_here(generated, partial);
        }
        if open_brackets(generated) > MAX_OPEN {
            let reason = format!("more than {MAX_OPEN} brackets are open at the same time");
            return Err(ChatError::Unparsable { reason });
        }
        // A reply that streams must not wait for prompts that are being prepared.
        let parsed = on_deep_stack_at_once(|| self.parse_here(generated, partial));
        parsed.map_err(|error| ChatError::Unparsable { reason: error.reason() })?
    }
}

impl Parser {
    fn parse_here(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError> {
        let text = c_text(generated, "output")?;
        let params = sys::chat_shim_parse_params {
            text: text.as_ptr(),
            parser: self.parser.map_or(std::ptr::null(), |parser| parser.as_ptr().cast_const()),
            generation_prompt: self.generation_prompt.as_ptr(),
            format: self.format,
            is_partial: partial,
        };
        let json = sized_text(|buffer, len, needed| {
            // SAFETY: the parameters and their texts outlive the call; exceptions are caught in the shim.
            unsafe { sys::chat_shim_parse(&raw const params, buffer, len, needed) }
        });
        let json = json.map_err(|reason| ChatError::Unparsable { reason })?;
        let message: Value =
            serde_json::from_str(&json).map_err(|error| ChatError::Unparsable { reason: error.to_string() })?;
        let calls = message.get("tool_calls").and_then(Value::as_array);
        Ok(ChatOutput {
            content: text_field(&message, "content"),
            reasoning: text_field(&message, "reasoning_content"),
            tool_calls: calls.into_iter().flatten().map(read_call).collect(),
        })
    }
}

impl Drop for Parser {
    fn drop(&mut self) {
        if let Some(parser) = self.parser {
            // SAFETY: freed once.
            unsafe { sys::chat_shim_parser_free(parser.as_ptr()) }
        }
    }
}

/// The most brackets that are open at the same time, wherever quotes stand: the parser may see them elsewhere.
fn open_brackets(text: &str) -> usize {
    let (mut open, mut most) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' => open += 1,
            b'}' | b']' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

fn read_call(call: &Value) -> ChatToolCall {
    // Both the flat and the nested (`function`) shape are known.
    let function = call.get("function").unwrap_or(call);
    ChatToolCall {
        id: text_field(call, "id"),
        name: text_field(function, "name"),
        arguments: text_field(function, "arguments"),
    }
}

/// The NUL-terminated text at an offset of the packed result.
fn region(packed: &[u8], offset: usize) -> String {
    let bytes = packed.get(offset..).unwrap_or_default();
    CStr::from_bytes_until_nul(bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

fn objects(packed: &[u8], offset: usize) -> Vec<Value> {
    match serde_json::from_str(&region(packed, offset)) {
        Ok(Value::Array(values)) => values,
        _ => Vec::new(),
    }
}

fn strings(packed: &[u8], offset: usize) -> Vec<String> {
    objects(packed, offset).iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

fn text_field(value: &Value, name: &str) -> String {
    match value.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    }
}

fn c_text(text: &str, field: &'static str) -> Result<CString, ChatError> {
    CString::new(text).map_err(|_| ChatError::BadRequest { field, reason: "it has a NUL byte".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hardening 1: a reply with one bracket after the other takes the parser as deep as it is long.
    #[test]
    fn a_reply_with_too_many_open_brackets_is_not_parsed() {
        assert_eq!(open_brackets("[{\"a\": [1]}] [ }"), 3);
        let parser = Parser { parser: None, generation_prompt: CString::default(), format: 0 };
        let parsed = parser.parse(&"[".repeat(1_000_000), true);
        assert!(matches!(parsed, Err(ChatError::Unparsable { .. })), "{parsed:?}");
        let parsed = parser.parse(&"[1] ".repeat(100_000), false).unwrap();
        assert_eq!(parsed.content.len(), 400_000);
    }
}
