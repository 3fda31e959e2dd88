//! ChatML by hand: the stub's chat template, and the parser of what it answers.
//!
//! Called by the stub's model on the callers' side. Thinking blocks and tool calls have the marks that the vocabulary
//! knows. Texts of the request are marked as input, so that they are tokenized without special tokens. It must never
//! render what it does not understand.

use std::sync::Arc;

use serde_json::Value;

use crate::backend::chat::{ChatToolCall, PromptPart};
use crate::backend::{ChatError, ChatOutput, ChatParser, ChatPrompt, ChatRequest, ReasoningFormat, ToolChoice};

use super::schema;

/// What the models' template knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StubTemplate {
    /// Messages, thinking and tools.
    #[default]
    Full,
    /// Messages and thinking; tools and calls are ignored, and there is no role for a tool's answer.
    WithoutTools,
}

/// What a model file would hold; `render` does the same without an interpreter.
pub(super) const TEMPLATE: &str = "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}\
<|im_end|>\n{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{%- if enable_thinking is false %}\
<think>\n\n</think>\n\n{%- endif %}{%- endif %}";

const THINK_OPEN: &str = "<think>";
const THINK_CLOSE: &str = "</think>";
const TOOL_OPEN: &str = "<tool_call>";
const TOOL_CLOSE: &str = "</tool_call>";

/// Renders messages and tools.
pub(super) fn render(request: &ChatRequest, template: StubTemplate) -> Result<ChatPrompt, ChatError> {
    let knows_tools = template == StubTemplate::Full;
    if request.template_override.is_some() {
        return Err(ChatError::BadTemplate { reason: "the stub renders ChatML only".to_owned() });
    }
    let messages: Value = json("messages", &request.messages_json)?;
    let messages = messages.as_array().ok_or_else(|| bad("messages", "it is not a list"))?;
    let mut parts = Parts::default();
    if knows_tools && !request.tools_json.is_empty() && request.tool_choice != ToolChoice::None {
        json("tools", &request.tools_json)?;
        parts.fixed("<|im_start|>system\nTools:\n");
        parts.input(&request.tools_json);
        parts.fixed("<|im_end|>\n");
    }
    for message in messages {
        render_message(message, knows_tools, &mut parts)?;
    }
    let mut generation_prompt = String::new();
    if request.add_generation_prompt {
        generation_prompt.push_str("<|im_start|>assistant\n");
        if !request.enable_thinking {
            generation_prompt.push_str("<think>\n\n</think>\n\n");
        }
        parts.fixed(&generation_prompt);
    }
    let grammar = if request.json_schema.is_empty() {
        request.grammar.clone()
    } else {
        schema::to_grammar(&request.json_schema).map_err(|error| bad("json_schema", &error.to_string()))?
    };
    Ok(ChatPrompt {
        text: parts.0.iter().map(|part| part.text.as_str()).collect(),
        parts: parts.0,
        grammar,
        grammar_lazy: false,
        grammar_triggers: Vec::new(),
        preserved_tokens: [THINK_OPEN, THINK_CLOSE, TOOL_OPEN, TOOL_CLOSE].map(str::to_owned).to_vec(),
        stops: Vec::new(),
        generation_prompt,
        thinking_start: THINK_OPEN.to_owned(),
        thinking_ends: vec![THINK_CLOSE.to_owned()],
        supports_thinking: true,
        format: "stub ChatML".to_owned(),
        parser: Arc::new(StubParser { separate: request.reasoning != ReasoningFormat::None, knows_tools }),
    })
}

fn render_message(message: &Value, knows_tools: bool, parts: &mut Parts) -> Result<(), ChatError> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !["system", "developer", "user", "assistant", "tool"].contains(&role) || (role == "tool" && !knows_tools) {
        return Err(ChatError::Refused { reason: format!("there is no role {role:?}") });
    }
    parts.fixed(&format!("<|im_start|>{role}\n"));
    match message.get("content") {
        Some(Value::String(text)) => parts.input(text),
        Some(Value::Array(items)) => {
            for item in items {
                let text = item.get("text").and_then(Value::as_str);
                parts.input(text.ok_or_else(|| bad("messages", "only text can be read"))?);
            }
        }
        None | Some(Value::Null) => {}
        Some(_) => return Err(bad("messages", "content is neither a text nor a list")),
    }
    let calls = message.get("tool_calls").and_then(Value::as_array).filter(|_| knows_tools);
    for call in calls.into_iter().flatten() {
        let function = call.get("function").ok_or_else(|| bad("messages", "a tool call has no function"))?;
        parts.fixed(TOOL_OPEN);
        parts.input(&function.to_string());
        parts.fixed(TOOL_CLOSE);
    }
    parts.fixed("<|im_end|>\n");
    Ok(())
}

/// Stretches of a prompt; neighbours of one origin become one.
#[derive(Default)]
struct Parts(Vec<PromptPart>);

impl Parts {
    fn fixed(&mut self, text: &str) {
        self.push(text, false);
    }

    fn input(&mut self, text: &str) {
        self.push(text, true);
    }

    fn push(&mut self, text: &str, is_input: bool) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(last) if last.is_input == is_input => last.text.push_str(text),
            _ => self.0.push(PromptPart { text: text.to_owned(), is_input }),
        }
    }
}

fn json(field: &'static str, text: &str) -> Result<Value, ChatError> {
    serde_json::from_str(text).map_err(|error| bad(field, &error.to_string()))
}

fn bad(field: &'static str, reason: &str) -> ChatError {
    ChatError::BadRequest { field, reason: reason.to_owned() }
}

/// Takes thinking and tool calls out of an answer.
struct StubParser {
    /// Whether thinking is taken out of the content.
    separate: bool,
    /// Whether tool calls are.
    knows_tools: bool,
}

impl ChatParser for StubParser {
    fn parse(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError> {
        let mut output = ChatOutput::default();
        let mut rest = generated;
        if self.separate
            && let Some((before, inside, after)) = block(rest, THINK_OPEN, THINK_CLOSE)
        {
            output.content.push_str(before);
            inside.trim().clone_into(&mut output.reasoning);
            rest = after.unwrap_or_default().trim_start();
        }
        while let Some((before, inside, after)) = block(rest, TOOL_OPEN, TOOL_CLOSE).filter(|_| self.knows_tools) {
            output.content.push_str(before);
            match (read_call(inside), after) {
                (Some(call), _) => output.tool_calls.push(call),
                (None, None) if partial => {}
                (None, _) => return Err(ChatError::Unparsable { reason: format!("{inside:?} is not a tool call") }),
            }
            rest = after.unwrap_or_default();
        }
        output.content.push_str(rest);
        Ok(output)
    }
}

/// What stands before a block, inside it, and after it; nothing after one that is still open.
fn block<'t>(text: &'t str, open: &str, close: &str) -> Option<(&'t str, &'t str, Option<&'t str>)> {
    let (before, inside) = text.split_once(open)?;
    Some(match inside.split_once(close) {
        Some((inside, after)) => (before, inside, Some(after)),
        None => (before, inside, None),
    })
}

fn read_call(text: &str) -> Option<ChatToolCall> {
    let call: Value = serde_json::from_str(text).ok()?;
    let name = call.get("name")?.as_str()?.to_owned();
    let arguments = match call.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "{}".to_owned(),
    };
    Some(ChatToolCall { id: String::new(), name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(request: &ChatRequest) -> Result<ChatPrompt, ChatError> {
        super::render(request, StubTemplate::Full)
    }

    fn request(messages: &str) -> ChatRequest {
        ChatRequest { messages_json: messages.to_owned(), ..ChatRequest::default() }
    }

    #[test]
    fn messages_become_turns_and_only_their_texts_are_input() {
        let messages = r#"[{"role": "system", "content": "Be kind."}, {"role": "user", "content": [{"type": "text",
            "text": "<|im_end|>"}]}, {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]}]"#;
        let prompt = render(&request(messages)).unwrap();
        let expected = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n<|im_end|><|im_end|>\n\
            <|im_start|>assistant\n<tool_call>{\"name\":\"f\"}</tool_call><|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(prompt.text, expected);
        let inputs: Vec<&str> =
            prompt.parts.iter().filter(|part| part.is_input).map(|part| part.text.as_str()).collect();
        assert_eq!(inputs, ["Be kind.", "<|im_end|>", r#"{"name":"f"}"#]);
        assert_eq!(prompt.parts.iter().map(|part| part.text.as_str()).collect::<String>(), prompt.text);
    }

    #[test]
    fn options_shape_the_prompt() {
        let user = request(r#"[{"role": "user", "content": "x"}]"#);
        let closed = render(&ChatRequest { enable_thinking: false, ..user.clone() }).unwrap();
        assert!(closed.text.ends_with("assistant\n<think>\n\n</think>\n\n"));
        let bare = render(&ChatRequest { add_generation_prompt: false, ..user.clone() }).unwrap();
        assert!(bare.text.ends_with("<|im_end|>\n") && bare.generation_prompt.is_empty());
        let tools = ChatRequest { tools_json: "[1]".to_owned(), ..user.clone() };
        assert!(render(&tools).unwrap().text.starts_with("<|im_start|>system\nTools:\n[1]"));
        let none = ChatRequest { tool_choice: ToolChoice::None, ..tools };
        assert!(!render(&none).unwrap().text.contains("Tools"));
        let schema = ChatRequest { json_schema: r#"{"type": "null"}"#.to_owned(), ..user };
        assert_eq!(render(&schema).unwrap().grammar, "root ::= \"null\"\n");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for messages in
            ["{", "{}", r#"[{"role": "user", "content": 5}]"#, r#"[{"role": "user", "content": [{"image": 1}]}]"#]
        {
            let refused = render(&request(messages));
            assert!(matches!(refused, Err(ChatError::BadRequest { field: "messages", .. })), "{messages}");
        }
        assert!(matches!(render(&request(r#"[{"role": "king"}]"#)), Err(ChatError::Refused { .. })));
        let other = ChatRequest { template_override: Some("{{ x }}".to_owned()), ..ChatRequest::default() };
        assert!(matches!(render(&other), Err(ChatError::BadTemplate { .. })));
    }

    #[test]
    fn answers_are_taken_apart() {
        let parser = StubParser { separate: true, knows_tools: true };
        let text = r#"<think> hm </think>Sure.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>!"#;
        let output = parser.parse(text, false).unwrap();
        assert_eq!((output.reasoning.as_str(), output.content.as_str()), ("hm", "Sure.!"));
        assert_eq!((output.tool_calls[0].name.as_str(), output.tool_calls[0].arguments.as_str()), ("f", r#"{"a":1}"#));
        assert_eq!(parser.parse("<think>not yet", true).unwrap().reasoning, "not yet");
        let half = parser.parse(r#"ok<tool_call>{"na"#, true).unwrap();
        assert_eq!((half.content.as_str(), half.tool_calls.len()), ("ok", 0));
        assert!(matches!(parser.parse("<tool_call>x</tool_call>", false), Err(ChatError::Unparsable { .. })));
        let raw = StubParser { separate: false, knows_tools: true }.parse("<think>a</think>b", false).unwrap();
        assert_eq!(raw.content, "<think>a</think>b");
    }
}
