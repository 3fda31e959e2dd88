//! Kept tokens in a rendered prompt: turns are rendered as placeholders, and what was sampled takes their place.
//!
//! Called by `turn.rs`. A template decides what stands around a turn, so the conversation is rendered with each kept
//! turn as a plain text that occurs nowhere else. That is used only if it can be shown that the template writes the
//! same around the real turn; on any doubt the caller renders as usual. It must never change a token outside of the
//! turns it replaces.

use std::collections::HashSet;
use std::sync::Arc;

use poncho_api::random_id;
use serde_json::{Value, json};
use sha2::Sha256;

use super::aligned::aligned;
use super::said::Said;
use super::{add_tokens, begin, find_calls, text_key};
use crate::backend::{ChatPrompt, TokenizeMode};
use crate::chat::kept::CallTurn;
use crate::chat::model::ChatModel;

/// What is rendered.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) model: &'a ChatModel,
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
pub(super) enum Stand {
    /// A turn with calls, by its id.
    Calls(Arc<CallTurn>),
    /// A text, which is replayed if everything before it is the same.
    Text(String),
}

pub(super) struct Placeholder {
    pub(super) message: usize,
    pub(super) mark: String,
    /// What all marks of a rendering begin with.
    pub(super) secret: Arc<str>,
    pub(super) stand: Stand,
}

impl Placeholder {
    /// The name of the first call.
    pub(super) fn name<'m>(&self, messages: &'m [Value]) -> Option<&'m str> {
        messages.get(self.message)?.pointer("/tool_calls/0/function/name")?.as_str()
    }

    /// The message with the mark as the name of its first call.
    pub(super) fn named(&self, messages: &[Value]) -> Value {
        let mut message = messages.get(self.message).cloned().unwrap_or_default();
        if let Some(name) = message.pointer_mut("/tool_calls/0/function/name") {
            *name = self.mark.as_str().into();
        }
        message
    }
}

/// The prompt's tokens with what was sampled put back; nothing if nothing was kept or it does not fit.
pub(crate) fn splice(scene: &Scene<'_>, check: Check) -> Option<Vec<u32>> {
    let all = placeholders(scene);
    if let Some(spliced) = in_place(scene, &all) {
        return spliced;
    }
    let calls_only: fn(&Placeholder) -> bool = |one| matches!(one.stand, Stand::Calls(_));
    let texts_only: fn(&Placeholder) -> bool = |one| matches!(one.stand, Stand::Text(_));
    let everything: fn(&Placeholder) -> bool = |_| true;
    // A template that treats one kind specially does not cost the other.
    let mut tried = usize::MAX;
    let mut unproved = None;
    for keep in [everything, calls_only, texts_only] {
        let some: Vec<&Placeholder> = all.iter().filter(|one| keep(one)).collect();
        if some.is_empty() || some.len() == tried {
            continue;
        }
        tried = some.len();
        if let Some(prompt) = fitting(scene, &some, check) {
            match walk(scene, &prompt, &some) {
                Some(walked) if walked.is_proved => return Some(walked.tokens),
                walked => unproved = walked.map(|walked| walked.tokens),
            }
            break;
        }
    }
    aligned(scene, &all.iter().collect::<Vec<_>>()).or(unproved)
}

fn placeholders(scene: &Scene<'_>) -> Vec<Placeholder> {
    let replay = &scene.model.conversations().replay;
    let with_texts = replay.has_texts();
    let secret: Arc<str> = random_id("kept").into();
    let mut said = Said::new(begin(scene.model));
    // Only turns with calls are found by what was said before them.
    let last_call = scene.messages.iter().rposition(|message| message.get("tool_calls").is_some()).unwrap_or(0);
    let stand = |message: &Value, said: &Said| {
        if message.get("role").and_then(Value::as_str) != Some("assistant") {
            return None;
        }
        if message.get("tool_calls").is_some() {
            return find_calls(scene.model, message, said).map(Stand::Calls);
        }
        let text = message.get("content").and_then(Value::as_str).filter(|text| !text.is_empty() && with_texts)?;
        message.get("reasoning_content").is_none().then(|| Stand::Text(text.to_owned()))
    };
    let found = scene.messages.iter().enumerate().filter_map(|(message, value)| {
        let mark = format!("{secret}x{message}x");
        let secret = Arc::clone(&secret);
        let found = stand(value, &said).map(|stand| Placeholder { message, mark, secret, stand });
        if message < last_call {
            said.add(value);
        }
        found
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
            Stand::Calls(_) => one.named(scene.messages),
        };
        let real = (scene.render)(&replaced(scene.messages, some, named))?;
        if !calls.iter().any(|one| real.text.contains(&one.mark)) {
            // The template leaves calls out. What the model wrote is put where it writes texts.
            return (calls.len() == some.len()).then_some(prompt);
        }
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
        let mut text = String::with_capacity(scene.normal.text.len());
        let written = some.iter().map(|one| match &one.stand {
            Stand::Text(content) => content.as_str(),
            Stand::Calls(_) => one.mark.as_str(),
        });
        for (around, written) in around.iter().zip(written.chain([""])) {
            text.push_str(around);
            text.push_str(written);
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

pub(super) fn replaced(messages: &[Value], some: &[&Placeholder], with: impl Fn(&Placeholder) -> Value) -> Vec<Value> {
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
    let secret = &some.first()?.secret;
    let once = !parts.iter().any(|part| part.contains(&**secret));
    once.then_some(parts)
}

/// Stretches that are kept back while a prompt is read: some templates write the opening of a turn as three of them
/// (mark, role, line break), and the one that is being read comes after those.
const KEPT_BACK: usize = 4;

/// A stretch that is not tokenized yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) text: String,
    pub(super) is_input: bool,
}

struct Walk<'a> {
    model: &'a ChatModel,
    tokens: Vec<u32>,
    hash: Sha256,
    /// The last stretches, the one that is being read at their end: an opening may have to be put there.
    pending: Vec<Stretch>,
    is_first: bool,
    replayed: usize,
    /// Whether every turn with calls stands after the tokens that it was written after.
    is_proved: bool,
}

/// The prompt's tokens with texts put back where the template wrote them, without another rendering. `None` if that takes
/// placeholders; `Some(None)` if nothing fits.
///
/// The key of a kept text has every token before it, the opening of a reply at their end, and all of its text. So where
/// the template has written that opening and then that text as a stretch of its own, its tokens are those of the model,
/// whatever the template does elsewhere.
fn in_place(scene: &Scene<'_>, all: &[Placeholder]) -> Option<Option<Vec<u32>>> {
    if all.is_empty() {
        return Some(None);
    }
    let text = |one: &Placeholder| match &one.stand {
        Stand::Text(content) => Some(content.clone()),
        Stand::Calls(_) => None,
    };
    let texts: HashSet<String> = all.iter().map(text).collect::<Option<_>>()?;
    let opening = scene.normal.generation_prompt.as_str();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut walk = Walk::new(scene.model);
    for part in &scene.normal.parts {
        walk.next_part(part.is_input)?;
        if !part.is_input || !texts.contains(&part.text) {
            walk.write(&part.text);
            continue;
        }
        seen.insert(&part.text);
        if walk.lacks_of(opening) {
            return None;
        }
        walk.put_text(&part.text, opening, true)?;
    }
    walk.commit_all_but(0)?;
    // A text that the template has changed or joined to others.
    (seen.len() == texts.len()).then(|| (walk.replayed > 0).then_some(walk.tokens))
}

/// Tokenizes a prompt part by part, kept tokens in place of their marks.
fn walk<'a>(scene: &Scene<'a>, prompt: &ChatPrompt, some: &[&Placeholder]) -> Option<Walk<'a>> {
    let mut walk = Walk::new(scene.model);
    let mut waiting = some.iter().copied().peekable();
    for part in &prompt.parts {
        walk.next_part(part.is_input)?;
        let mut rest = part.text.as_str();
        while let Some((before, after)) = waiting.peek().and_then(|one| rest.split_once(&one.mark)) {
            walk.write(before);
            match &waiting.next()?.stand {
                Stand::Calls(turn) => walk.put_calls(turn, part.is_input)?,
                Stand::Text(content) => walk.put_text(content, &scene.normal.generation_prompt, part.is_input)?,
            }
            rest = after;
        }
        walk.write(rest);
    }
    walk.commit_all_but(0)?;
    // A mark that was cut apart by two parts is still waiting.
    (waiting.peek().is_none() && walk.replayed > 0).then_some(walk)
}

impl<'a> Walk<'a> {
    fn new(model: &'a ChatModel) -> Self {
        let (tokens, hash, pending) = (Vec::new(), begin(model), Vec::new());
        Self { model, tokens, hash, pending, is_first: true, replayed: 0, is_proved: true }
    }

    /// Whether an opening is begun and not all of it is there: the rest would have to be put there.
    fn lacks_of(&self, opening: &str) -> bool {
        let text: String = self.pending.iter().map(|stretch| stretch.text.as_str()).collect();
        let begun = |end: usize| opening.get(..end).is_some_and(|head| text.ends_with(head));
        !text.ends_with(opening) && (1..opening.len()).any(begun)
    }

    fn tokenized(&self, stretch: &Stretch, is_first: bool) -> Option<Arc<[u32]>> {
        let mode = TokenizeMode { add_special: is_first, parse_special: !stretch.is_input };
        self.model.stretch_tokens(&stretch.text, mode).ok()
    }

    /// The tokens of stretches that come next.
    fn all_tokenized(&self, stretches: &[Stretch]) -> Option<Vec<u32>> {
        let mut is_first = self.is_first;
        let mut tokens = Vec::new();
        for stretch in stretches.iter().filter(|stretch| !stretch.text.is_empty()) {
            tokens.extend_from_slice(&self.tokenized(stretch, is_first)?);
            is_first = false;
        }
        Some(tokens)
    }

    fn commit(&mut self, tokens: &[u32]) {
        add_tokens(&mut self.hash, tokens);
        self.tokens.extend_from_slice(tokens);
        self.is_first &= tokens.is_empty();
    }

    fn commit_all_but(&mut self, kept: usize) -> Option<()> {
        let done: Vec<Stretch> = self.pending.drain(..self.pending.len().saturating_sub(kept)).collect();
        let tokens = self.all_tokenized(&done)?;
        self.commit(&tokens);
        Some(())
    }

    fn next_part(&mut self, is_input: bool) -> Option<()> {
        self.pending.push(Stretch { text: String::new(), is_input });
        self.commit_all_but(KEPT_BACK)
    }

    fn write(&mut self, text: &str) {
        if let Some(open) = self.pending.last_mut() {
            open.text.push_str(text);
        }
    }

    /// Puts tokens after the given stretches, which stand for all that were pending.
    fn put(&mut self, before: &[u32], kept: &[u32], is_input: bool) {
        self.commit(before);
        self.commit(kept);
        self.pending = vec![Stretch { text: String::new(), is_input }];
        self.replayed += 1;
    }

    fn put_calls(&mut self, turn: &CallTurn, is_input: bool) -> Option<()> {
        let before = self.all_tokenized(&opened(&self.pending, &turn.opening)?)?;
        let mut hash = self.hash.clone();
        add_tokens(&mut hash, &before);
        self.is_proved &= turn.was_written_after(hash);
        self.put(&before, &turn.tokens, is_input);
        Some(())
    }

    fn put_text(&mut self, content: &str, opening: &str, is_input: bool) -> Option<()> {
        let at_start = self.pending.last().is_some_and(|open| open.text.is_empty());
        if let Some(stretches) = opened(&self.pending, opening).filter(|_| at_start) {
            let before = self.all_tokenized(&stretches)?;
            let mut hash = self.hash.clone();
            add_tokens(&mut hash, &before);
            if let Some(kept) = self.model.conversations().replay.find_text(&text_key(hash, content)) {
                self.put(&before, &kept.tokens, is_input);
                return Some(());
            }
        }
        self.write(content);
        Some(())
    }
}

/// Stretches that end with the opening of a reply, in one stretch of the template's, as the prompt had it that the model
/// went on from; nothing if they do not even begin it. Where the template writes only a part of it around a past turn,
/// or writes the role as a text of the request, the tokens are those of the prompt all the same.
fn opened(stretches: &[Stretch], opening: &str) -> Option<Vec<Stretch>> {
    let text: String = stretches.iter().map(|stretch| stretch.text.as_str()).collect();
    let ends = (0..=opening.len()).rev().filter(|at| opening.is_char_boundary(*at));
    let (head, missing) = ends.into_iter().map(|at| opening.split_at(at)).find(|(head, _)| text.ends_with(head))?;
    if head.is_empty() {
        // A template without an opening goes on after anything, one with an opening only after a part of it.
        return missing.is_empty().then(|| stretches.to_vec());
    }
    let mut start = text.len() - head.len();
    let mut kept = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        if let Some((before, after)) = stretch.text.split_at_checked(start).filter(|(_, after)| !after.is_empty()) {
            if stretch.is_input {
                // The request wrote it, so it is not an opening; and what is missing must not be added to a text.
                return (missing.is_empty() && after == head).then(|| stretches.to_vec());
            }
            kept.push(Stretch { text: format!("{before}{opening}"), is_input: false });
            return Some(kept);
        }
        start = start.saturating_sub(stretch.text.len());
        kept.push(stretch.clone());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENING: &str = "<|im_start|>assistant\n";

    fn parts(parts: &[(&str, bool)]) -> Vec<Stretch> {
        parts.iter().map(|(text, is_input)| Stretch { text: (*text).to_owned(), is_input: *is_input }).collect()
    }

    #[test]
    fn an_opening_in_pieces_becomes_the_one_of_the_prompt() {
        let whole = parts(&[("Hi", true), ("<|im_end|>\n<|im_start|>assistant\n", false)]);
        for written in [
            parts(&[("Hi", true), ("<|im_end|>\n<|im_start|>", false), ("assistant", true), ("\n", false), ("", true)]),
            parts(&[("Hi", true), ("<|im_end|>\n<|im_start|>assistant\n", false), ("", true)]),
            parts(&[("Hi", true), ("<|im_end|>\n<|im_start|>assist", false)]),
            parts(&[("Hi", true), ("<|im_end|>\n<|im_start|>", false), ("assis", true)]),
        ] {
            assert_eq!(opened(&written, OPENING).as_ref(), Some(&whole), "{written:?}");
        }
    }

    #[test]
    fn a_text_of_the_request_never_becomes_the_templates() {
        assert_eq!(opened(&parts(&[("x<|im_start|>assis", true)]), OPENING), None, "half an opening in a text");
        let all_of_it = parts(&[("x<|im_start|>assistant\n", true)]);
        assert_eq!(opened(&all_of_it, OPENING), Some(all_of_it.clone()), "it stays a text");
        let across = parts(&[("x<|im_start|>", true), ("assistant\n", false)]);
        assert_eq!(opened(&across, OPENING), None);
        assert_eq!(opened(&parts(&[("Hi", false)]), OPENING), None, "nothing of it");
        assert_eq!(opened(&[], OPENING), None);
        let any = parts(&[("Hi", true)]);
        assert_eq!(opened(&any, ""), Some(any.clone()), "a template without an opening");
    }
}
