//! From Anthropic's messages to the conversation that templates read.
//!
//! Messages of one role in a row become one turn; blocks become texts, thoughts, calls and results. Every refusal names
//! the block. A call without a result, or a result without a call, is refused as Anthropic does: templates would
//! silently render nonsense. What an assistant's last message says is the start of the reply.

use poncho_api::SigningKey;
use serde_json::{Map, Value, json};

use super::signature::is_genuine;
use super::types::{Block, Content, Message, MessagesBody};
use crate::error::{ApiError, NO_IMAGES};
use crate::http::body::Object;

/// A conversation in OpenAI's shape.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    /// What the reply begins with.
    pub(crate) reply_start: String,
    /// Numbers of messages after which the client put a cache breakpoint.
    pub(crate) marked: Vec<usize>,
}

/// Reads system prompt and messages. With a key, thinking must carry its signature.
pub(crate) fn conversation(body: &MessagesBody, key: Option<&SigningKey>) -> Result<Conversation, ApiError> {
    let mut writer = Writer { key, messages: Vec::new(), open: Vec::new(), opened_at: String::new() };
    let mut marked = Vec::new();
    if let Some(system) = &body.system {
        writer.system("system", system)?;
        if pieces("system", system).iter().any(Piece::is_marked) {
            marked.push(writer.messages.len());
        }
    }
    let mut turns = turns(&body.messages)?;
    let last = turns.pop_if(|turn| turn.role == Role::Assistant);
    for turn in &turns {
        writer.turn(turn)?;
        if turn.pieces.iter().any(Piece::is_marked) {
            marked.push(writer.messages.len());
        }
    }
    let reply_start = last.map(|turn| writer.reply_start(&turn)).transpose()?.unwrap_or_default();
    writer.check_answered()?;
    Ok(Conversation { messages: writer.messages, reply_start, marked })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    User,
    Assistant,
    System,
}

/// Messages of one role in a row.
struct Turn<'b> {
    role: Role,
    pieces: Vec<Piece<'b>>,
}

/// A block, or a content that is only a text, and the field where it stands.
struct Piece<'b> {
    field: String,
    said: Said<'b>,
}

enum Said<'b> {
    Text(&'b str),
    Block(&'b Block),
}

impl Piece<'_> {
    /// Whether it ends with a cache breakpoint.
    fn is_marked(&self) -> bool {
        matches!(self.said, Said::Block(Block { cache_control: Some(_), .. }))
    }
}

fn turns(messages: &[Object<Message>]) -> Result<Vec<Turn<'_>>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "it is empty; send at least one message"));
    }
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let role = match message.role.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            other => {
                let reason = format!("it is {other:?} and must be user, assistant or system");
                return Err(ApiError::field(format!("messages[{at}].role"), reason));
            }
        };
        let field = format!("messages[{at}].content");
        let pieces = pieces(&field, &message.content);
        let may_be_empty = role == Role::Assistant && at + 1 == messages.len();
        if pieces.is_empty() && !may_be_empty {
            return Err(ApiError::field(field, "it is empty; only the last message, of the assistant, may be"));
        }
        match turns.last_mut() {
            Some(turn) if turn.role == role => turn.pieces.extend(pieces),
            _ => turns.push(Turn { role, pieces }),
        }
    }
    Ok(turns)
}

fn pieces<'b>(field: &str, content: &'b Content) -> Vec<Piece<'b>> {
    match content {
        Content::Text(text) if text.is_empty() => Vec::new(),
        Content::Text(text) => vec![Piece { field: field.to_owned(), said: Said::Text(text) }],
        Content::Blocks(blocks) => {
            let piece = |(at, block): (usize, &'b Object<Block>)| Piece {
                field: format!("{field}[{at}]"),
                said: Said::Block(block),
            };
            blocks.iter().enumerate().map(piece).collect()
        }
    }
}

/// A call that waits for its result.
struct OpenCall {
    id: String,
    name: String,
}

struct Writer<'k> {
    key: Option<&'k SigningKey>,
    messages: Vec<Value>,
    open: Vec<OpenCall>,
    /// The field of the first open call.
    opened_at: String,
}

impl Writer<'_> {
    fn turn(&mut self, turn: &Turn<'_>) -> Result<(), ApiError> {
        match turn.role {
            Role::System => {
                let texts = texts(&turn.pieces)?;
                self.push_texts("system", &texts);
                Ok(())
            }
            Role::User => self.user(turn),
            Role::Assistant => self.assistant(turn),
        }
    }

    fn system(&mut self, field: &str, content: &Content) -> Result<(), ApiError> {
        let texts = texts(&pieces(field, content))?;
        if !texts.is_empty() {
            self.push_texts("system", &texts);
        }
        Ok(())
    }

    /// Results become messages of their own; the texts around them stay where they were.
    fn user(&mut self, turn: &Turn<'_>) -> Result<(), ApiError> {
        let mut texts = Vec::new();
        for piece in &turn.pieces {
            match piece.said {
                Said::Block(block) if block.kind == "tool_result" => {
                    if !texts.is_empty() {
                        self.push_texts("user", &std::mem::take(&mut texts));
                    }
                    self.tool_result(&piece.field, block)?;
                }
                _ => texts.extend(readable(piece)?),
            }
        }
        self.check_answered()?;
        let said_nothing =
            !turn.pieces.iter().any(|piece| matches!(piece.said, Said::Block(block) if block.kind == "tool_result"));
        if !texts.is_empty() || said_nothing {
            self.push_texts("user", &texts);
        }
        Ok(())
    }

    fn tool_result(&mut self, field: &str, block: &Block) -> Result<(), ApiError> {
        let id = block.tool_use_id.as_deref();
        let id = id.ok_or_else(|| ApiError::field(format!("{field}.tool_use_id"), "a tool_result needs one"))?;
        let Some(at) = self.open.iter().position(|call| call.id == id) else {
            let reason = format!("the turn before has no tool_use {id:?} that still waits for a result");
            return Err(ApiError::field(format!("{field}.tool_use_id"), reason));
        };
        let call = self.open.remove(at);
        let content = block.content.as_ref().map(|content| pieces(&format!("{field}.content"), content));
        let mut text = texts(&content.unwrap_or_default())?.join("\n");
        if block.is_error == Some(true) {
            // Templates know no mark for a failure, so the text has to say it.
            text.insert_str(0, "Error: ");
        }
        self.messages.push(json!({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}));
        Ok(())
    }

    fn assistant(&mut self, turn: &Turn<'_>) -> Result<(), ApiError> {
        self.check_answered()?;
        let said = self.assistant_says(turn)?;
        let mut written = Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
        let content = if said.text.is_empty() && !said.calls.is_empty() { Value::Null } else { said.text.into() };
        written.insert("content".to_owned(), content);
        if !said.calls.is_empty() {
            written.insert("tool_calls".to_owned(), said.calls.into());
        }
        if !said.thinking.is_empty() {
            written.insert("reasoning_content".to_owned(), said.thinking.into());
        }
        self.messages.push(Value::Object(written));
        Ok(())
    }

    /// The last message, if it is the assistant's: what it says is not finished.
    fn reply_start(&mut self, turn: &Turn<'_>) -> Result<String, ApiError> {
        self.check_answered()?;
        let said = self.assistant_says(turn)?;
        let Some(last) = turn.pieces.last() else { return Ok(String::new()) };
        if matches!(last.said, Said::Block(block) if block.kind != "text") && said.calls.is_empty() {
            return Err(ApiError::field(last.field.as_str(), "the last message must end with a text to go on from"));
        }
        if said.text.ends_with(char::is_whitespace) {
            let reason = "the last message of the assistant must not end with white space; trim it";
            return Err(ApiError::field(last.field.as_str(), reason));
        }
        Ok(said.text)
    }

    fn assistant_says(&mut self, turn: &Turn<'_>) -> Result<AssistantSays, ApiError> {
        let mut said = AssistantSays::default();
        for Piece { field, said: piece } in &turn.pieces {
            match piece {
                Said::Text(text) => said.text.push_str(text),
                Said::Block(block) => match block.kind.as_str() {
                    "text" => said.text.push_str(text_of(field, block)?),
                    "thinking" => said.thinking.push_str(self.thinking_of(field, block)?),
                    // Written by a model that hides its thoughts: nothing that this one could read.
                    "redacted_thinking" => {}
                    "tool_use" => said.calls.push(self.tool_use(field, block)?),
                    other => return Err(unreadable(field, other)),
                },
            }
        }
        Ok(said)
    }

    fn thinking_of<'b>(&self, field: &str, block: &'b Block) -> Result<&'b str, ApiError> {
        let text = block.thinking.as_deref();
        let text = text.ok_or_else(|| ApiError::field(format!("{field}.thinking"), "a thinking block needs one"))?;
        if is_genuine(self.key, text, block.signature.as_deref().unwrap_or_default()) {
            return Ok(text);
        }
        let reason = "it does not fit the thinking; send the block back as it came or leave it out";
        Err(ApiError::field(format!("{field}.signature"), reason))
    }

    fn tool_use(&mut self, field: &str, block: &Block) -> Result<Value, ApiError> {
        let needed = |name: &str| ApiError::field(format!("{field}.{name}"), "a tool_use needs one");
        let id = block.id.as_deref().filter(|id| !id.is_empty()).ok_or_else(|| needed("id"))?;
        let name = block.name.as_deref().filter(|name| !name.is_empty()).ok_or_else(|| needed("name"))?;
        let input = block.input.as_deref().ok_or_else(|| needed("input"))?.get();
        if !input.starts_with('{') {
            return Err(ApiError::field(format!("{field}.input"), "it must be an object"));
        }
        if self.open.iter().any(|call| call.id == id) {
            return Err(ApiError::field(
                format!("{field}.id"),
                format!("{id:?} is already the id of another tool_use"),
            ));
        }
        if self.open.is_empty() {
            field.clone_into(&mut self.opened_at);
        }
        self.open.push(OpenCall { id: id.to_owned(), name: name.to_owned() });
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": input}}))
    }

    fn check_answered(&self) -> Result<(), ApiError> {
        let ids: Vec<&str> = self.open.iter().map(|call| call.id.as_str()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let reason =
            format!("there is no tool_result in the next message for tool_use {}; send one for each", ids.join(", "));
        Err(ApiError::field(self.opened_at.as_str(), reason))
    }

    /// One text stays a text: it renders alike whether it came as a string or as a block.
    fn push_texts(&mut self, role: &str, texts: &[String]) {
        let content = match texts {
            [] => Value::from(""),
            [text] => Value::from(text.as_str()),
            several => several.iter().map(|text| json!({"type": "text", "text": text})).collect(),
        };
        self.messages.push(json!({"role": role, "content": content}));
    }
}

#[derive(Default)]
struct AssistantSays {
    text: String,
    thinking: String,
    calls: Vec<Value>,
}

fn texts(pieces: &[Piece<'_>]) -> Result<Vec<String>, ApiError> {
    let mut texts = Vec::new();
    for piece in pieces {
        texts.extend(readable(piece)?);
    }
    Ok(texts)
}

/// The text of a block that somebody wants to be read; none if it is empty.
fn readable(piece: &Piece<'_>) -> Result<Option<String>, ApiError> {
    let block = match piece.said {
        Said::Text(text) => return Ok(Some(text.to_owned())),
        Said::Block(block) => block,
    };
    let text = match block.kind.as_str() {
        "text" => text_of(&piece.field, block)?.to_owned(),
        "document" => document(&piece.field, block)?,
        "search_result" => search_result(&piece.field, block)?,
        other => return Err(unreadable(&piece.field, other)),
    };
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn text_of<'b>(field: &str, block: &'b Block) -> Result<&'b str, ApiError> {
    block.text.as_deref().ok_or_else(|| ApiError::field(format!("{field}.text"), "a text block needs one"))
}

fn unreadable(field: &str, kind: &str) -> ApiError {
    let reason = match kind {
        "image" => NO_IMAGES.to_owned(),
        "tool_use" | "thinking" | "redacted_thinking" => format!("a {kind} block belongs to the assistant's messages"),
        "tool_result" => "a tool_result block belongs to the user's messages".to_owned(),
        other => format!("blocks of the type {other:?} cannot be read by this server; send text"),
    };
    ApiError::field(format!("{field}.type"), reason)
}

/// The text of a document that was sent inline.
fn document(field: &str, block: &Block) -> Result<String, ApiError> {
    let source = block.source.as_ref();
    let source = source.ok_or_else(|| ApiError::field(format!("{field}.source"), "a document needs one"))?;
    let part = |name: &str| source.get(name).and_then(Value::as_str);
    let wrong = |name: &str, reason: &str| ApiError::field(format!("{field}.source.{name}"), reason);
    let text = match part("type") {
        Some("text") => part("data").ok_or_else(|| wrong("data", "it must be a text"))?.to_owned(),
        Some("content") => match source.get("content") {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(blocks)) => {
                let text = |block: &Value| block.get("text").and_then(Value::as_str).map(str::to_owned);
                let texts: Option<Vec<String>> = blocks.iter().map(text).collect();
                texts.ok_or_else(|| wrong("content", "only text blocks can be read"))?.join("\n")
            }
            _ => return Err(wrong("content", "it must be a text or a list of blocks")),
        },
        Some(other) => {
            let reason = format!("documents as {other:?} cannot be read by this server; send their text");
            return Err(wrong("type", &reason));
        }
        None => return Err(wrong("type", "it must be text or content")),
    };
    let title = block.title.as_ref().map(|title| format!("<title>{title}</title>\n")).unwrap_or_default();
    let context = block.context.as_ref().map(|context| format!("<context>{context}</context>\n")).unwrap_or_default();
    Ok(format!("<document>\n{title}{context}{text}\n</document>"))
}

fn search_result(field: &str, block: &Block) -> Result<String, ApiError> {
    let content = block.content.as_ref().map(|content| pieces(&format!("{field}.content"), content));
    let text = texts(&content.unwrap_or_default())?.join("\n");
    let title = block.title.as_deref().unwrap_or_default();
    let source = block.source.as_ref().and_then(Value::as_str).unwrap_or_default();
    Ok(format!("<search_result>\n<title>{title}</title>\n<source>{source}</source>\n{text}\n</search_result>"))
}

#[cfg(test)]
mod tests;
