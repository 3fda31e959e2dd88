//! Kept tokens in a rendered prompt: turns are rendered as placeholders, and what was sampled takes their place.
//!
//! Called by `chat.rs`. A template decides what stands around a turn, so the conversation is rendered with each kept
//! turn as a plain text that occurs nowhere else. That is used only if it can be shown that the template writes the
//! same around the real turn; on any doubt the caller renders as usual. It must never change a token outside of the
//! turns it replaces.

use std::sync::Arc;

use poncho_engine::backend::{ChatPrompt, TokenizeMode};
use serde_json::{Value, json};
use sha2::Sha256;

use super::{CallTurn, add_tokens, begin, text_key};
use crate::ids::random_id;
use crate::served::ServedModel;

/// What is rendered.
pub(crate) struct Scene<'a> {
    pub(crate) model: &'a ServedModel,
    pub(crate) messages: &'a [Value],
    /// The conversation as the template renders it.
    pub(crate) normal: &'a ChatPrompt,
    /// Renders other messages in the same way; nothing if the template refuses them.
    pub(crate) render: &'a dyn Fn(&[Value]) -> Option<ChatPrompt>,
}

/// Whether the surroundings of the turns have to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    Surroundings,
    /// The whole conversation was checked before, this is a part of it.
    Done,
}

/// What stands in for a message.
#[derive(Clone)]
enum Stand {
    /// A turn with calls, by its id.
    Calls(Arc<CallTurn>),
    /// A text, which is replayed if everything before it is the same.
    Text(String),
}

struct Placeholder {
    message: usize,
    mark: String,
    stand: Stand,
}

/// The prompt's tokens with what was sampled put back; nothing if nothing was kept or it does not fit.
pub(crate) fn splice(scene: &Scene<'_>, check: Check) -> Option<Vec<u32>> {
    let all = placeholders(scene);
    let calls_only: fn(&Placeholder) -> bool = |one| matches!(one.stand, Stand::Calls(_));
    let texts_only: fn(&Placeholder) -> bool = |one| matches!(one.stand, Stand::Text(_));
    let everything: fn(&Placeholder) -> bool = |_| true;
    // A template that treats one kind specially does not cost the other.
    let mut tried = usize::MAX;
    for keep in [everything, calls_only, texts_only] {
        let some: Vec<&Placeholder> = all.iter().filter(|one| keep(one)).collect();
        if some.is_empty() || some.len() == tried {
            continue;
        }
        tried = some.len();
        if let Some(prompt) = fitting(scene, &some, check) {
            return walk(scene, &prompt, &some);
        }
    }
    None
}

fn placeholders(scene: &Scene<'_>) -> Vec<Placeholder> {
    let replay = &scene.model.conversations().replay;
    let fingerprint = scene.model.namespace().fingerprint;
    let with_texts = replay.has_texts();
    let secret = random_id("kept");
    let stand = |message: &Value| {
        if message.get("role").and_then(Value::as_str) != Some("assistant") {
            return None;
        }
        if message.get("tool_calls").is_some() {
            return replay.find_calls(&fingerprint, message).map(Stand::Calls);
        }
        let text = message.get("content").and_then(Value::as_str).filter(|text| !text.is_empty() && with_texts)?;
        message.get("reasoning_content").is_none().then(|| Stand::Text(text.to_owned()))
    };
    let found = scene.messages.iter().enumerate().filter_map(|(message, value)| {
        let mark = format!("{secret}x{message}x");
        stand(value).map(|stand| Placeholder { message, mark, stand })
    });
    found.collect()
}

/// The conversation with placeholders, if the template writes around them what it writes around the turns.
fn fitting(scene: &Scene<'_>, some: &[&Placeholder], check: Check) -> Option<ChatPrompt> {
    let plain = |one: &Placeholder| json!({"role": "assistant", "content": one.mark});
    let prompt = (scene.render)(&replaced(scene.messages, some, plain))?;
    let around = split(&prompt.text, some)?;
    if check == Check::Done {
        return Some(prompt);
    }
    let calls: Vec<&Placeholder> = some.iter().copied().filter(|one| matches!(one.stand, Stand::Calls(_))).collect();
    if !calls.is_empty() {
        // The same conversation with its calls, each marked by its name: between two marks must stand what stands
        // between the placeholders.
        let named = |one: &Placeholder| match &one.stand {
            Stand::Text(_) => plain(one),
            Stand::Calls(_) => {
                let mut message = scene.messages.get(one.message).cloned().unwrap_or_default();
                if let Some(name) = message.pointer_mut("/tool_calls/0/function/name") {
                    *name = one.mark.as_str().into();
                }
                message
            }
        };
        let real = (scene.render)(&replaced(scene.messages, some, named))?;
        let real = split(&real.text, some)?;
        let last = around.len().saturating_sub(1);
        let fits = around.iter().zip(&real).enumerate().all(|(at, (around, real))| match at {
            0 => real.starts_with(around),
            at if at == last => real.ends_with(around),
            _ => real.contains(around),
        });
        if !fits {
            return None;
        }
    }
    if calls.len() < some.len() {
        let mut text = prompt.text.clone();
        for one in some {
            if let Stand::Text(content) = &one.stand {
                text = text.replacen(&one.mark, content, 1);
            }
        }
        let as_usual = if calls.is_empty() {
            text == scene.normal.text
        } else {
            (scene.render)(&replaced(scene.messages, &calls, plain))?.text == text
        };
        if !as_usual {
            return None;
        }
    }
    Some(prompt)
}

fn replaced(messages: &[Value], some: &[&Placeholder], with: impl Fn(&Placeholder) -> Value) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for one in some {
        if let Some(message) = messages.get_mut(one.message) {
            *message = with(one);
        }
    }
    messages
}

/// The text between the marks; nothing unless each stands there once, in order.
fn split<'t>(text: &'t str, some: &[&Placeholder]) -> Option<Vec<&'t str>> {
    let mut parts = Vec::with_capacity(some.len() + 1);
    let mut rest = text;
    for one in some {
        let (before, after) = rest.split_once(&one.mark)?;
        parts.push(before);
        rest = after;
    }
    parts.push(rest);
    let once = some.iter().all(|one| !parts.iter().any(|part| part.contains(&one.mark)));
    once.then_some(parts)
}

/// A stretch that is not tokenized yet.
#[derive(Default)]
struct Stretch {
    text: String,
    is_input: bool,
}

struct Walk<'a> {
    model: &'a ServedModel,
    tokens: Vec<u32>,
    hash: Sha256,
    /// The last whole part: an opening may have to be added to it.
    held: Stretch,
    /// The part that is being read.
    open: Stretch,
    is_first: bool,
    replayed: usize,
}

/// Tokenizes a prompt part by part, kept tokens in place of their marks.
fn walk(scene: &Scene<'_>, prompt: &ChatPrompt, some: &[&Placeholder]) -> Option<Vec<u32>> {
    let mut walk = Walk {
        model: scene.model,
        tokens: Vec::new(),
        hash: begin(scene.model),
        held: Stretch::default(),
        open: Stretch::default(),
        is_first: true,
        replayed: 0,
    };
    let mut waiting = some.iter().copied().peekable();
    for part in &prompt.parts {
        walk.next_part(part.is_input)?;
        let mut rest = part.text.as_str();
        while let Some((before, after)) = waiting.peek().and_then(|one| rest.split_once(&one.mark)) {
            walk.open.text.push_str(before);
            match &waiting.next()?.stand {
                Stand::Calls(turn) => walk.put_calls(turn)?,
                Stand::Text(content) => walk.put_text(content, &scene.normal.generation_prompt)?,
            }
            rest = after;
        }
        walk.open.text.push_str(rest);
    }
    walk.next_part(false)?;
    walk.next_part(false)?;
    // A mark that was cut apart by two parts is still waiting.
    (waiting.peek().is_none() && walk.replayed > 0).then_some(walk.tokens)
}

impl Walk<'_> {
    fn tokenized(&self, stretch: &Stretch) -> Option<Vec<u32>> {
        let mode = TokenizeMode { add_special: self.is_first, parse_special: !stretch.is_input };
        self.model.tokenize(&stretch.text, mode).ok()
    }

    fn commit(&mut self, tokens: &[u32]) {
        add_tokens(&mut self.hash, tokens);
        self.tokens.extend_from_slice(tokens);
    }

    /// Tokenizes what is held; what is open is held from now on.
    fn next_part(&mut self, is_input: bool) -> Option<()> {
        if !self.held.text.is_empty() {
            let tokens = self.tokenized(&self.held)?;
            self.commit(&tokens);
            self.is_first = false;
        }
        self.held = std::mem::replace(&mut self.open, Stretch { text: String::new(), is_input });
        Some(())
    }

    /// What has to be added to the text so far so that it ends with the opening; nothing if it does not fit.
    fn missing<'o>(&self, opening: &'o str) -> Option<&'o str> {
        let before = if self.open.text.is_empty() { &self.held } else { &self.open };
        let ends = (1..=opening.len()).rev().filter(|at| opening.is_char_boundary(*at));
        let (_, missing) =
            ends.into_iter().map(|at| opening.split_at(at)).find(|(head, _)| before.text.ends_with(head))?;
        (missing.is_empty() || !before.is_input).then_some(missing)
    }

    fn put_calls(&mut self, turn: &CallTurn) -> Option<()> {
        let missing = self.missing(&turn.opening)?.to_owned();
        if !self.open.text.is_empty() {
            let is_input = self.open.is_input;
            self.next_part(is_input)?;
        }
        let is_input = self.open.is_input;
        self.held.text.push_str(&missing);
        self.next_part(is_input)?;
        self.commit(&turn.tokens);
        self.replayed += 1;
        Some(())
    }

    fn put_text(&mut self, content: &str, opening: &str) -> Option<()> {
        let missing = self.missing(opening).filter(|_| self.open.text.is_empty());
        if let Some(missing) = missing {
            let text = format!("{}{missing}", self.held.text);
            let before = self.tokenized(&Stretch { text, is_input: self.held.is_input })?;
            let mut hash = self.hash.clone();
            add_tokens(&mut hash, &before);
            if let Some(kept) = self.model.conversations().replay.find_text(&text_key(hash, content)) {
                self.commit(&before);
                self.is_first = false;
                self.held.text.clear();
                self.commit(&kept);
                self.replayed += 1;
                return Some(());
            }
        }
        self.open.text.push_str(content);
        Some(())
    }
}
