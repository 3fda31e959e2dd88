//! Kept turns put into the conversation as the template really writes it, where a plain text in their place would not do.
//!
//! Called by `splice.rs` when a template writes something else around a turn with calls than around a text: another end
//! of the turn, no new opening after a tool's answer, thinking marks. The real turns are rendered with a mark as the name
//! of their first call. A turn begins where the tokens before it are those that the model went on from, which a hash
//! proves; it ends where the template wrote the last thing that the model wrote. Without the proof nothing is replaced.

use std::borrow::Cow;
use std::ops::Range;

use crate::backend::{ChatPrompt, SpecialText, TokenizeMode};
use serde_json::json;
use sha2::Sha256;

use super::splice::{Placeholder, Scene, Stand, Stretch, replaced};
use super::{add_tokens, begin, text_key};
use crate::chat::kept::CallTurn;

/// Bytes at the end of a turn that are looked for in what the template wrote: enough to tell one call from the next.
const TAIL: usize = 256;

/// The prompt's tokens; nothing if no turn was put back.
pub(super) fn aligned(scene: &Scene<'_>, all: &[&Placeholder]) -> Option<Vec<u32>> {
    let mut some = all.to_vec();
    while some.iter().any(|one| matches!(one.stand, Stand::Calls(_))) {
        let failed = match Attempt::new(scene, &some)?.run() {
            Ok(tokens) => return Some(tokens),
            Err(failed) => failed,
        };
        match some.get(failed).map(|one| &one.stand)? {
            // What comes after a turn that does not fit was written after other tokens.
            Stand::Calls(_) => some.truncate(failed),
            Stand::Text(_) => some.retain(|one| matches!(one.stand, Stand::Calls(_))),
        }
    }
    None
}

/// One rendering with these turns marked.
struct Attempt<'a> {
    scene: &'a Scene<'a>,
    some: &'a [&'a Placeholder],
    prompt: ChatPrompt,
    tokens: Vec<u32>,
    hash: Sha256,
    /// Where the text that is not yet tokenized begins.
    cursor: usize,
}

impl<'a> Attempt<'a> {
    fn new(scene: &'a Scene<'a>, some: &'a [&'a Placeholder]) -> Option<Self> {
        let marked = |one: &Placeholder| match &one.stand {
            Stand::Text(_) => json!({"role": "assistant", "content": one.mark}),
            Stand::Calls(_) => one.named(scene.messages),
        };
        let prompt = (scene.render)(&replaced(scene.messages, some, marked))?;
        Some(Self { scene, some, prompt, tokens: Vec::new(), hash: begin(scene.model), cursor: 0 })
    }

    /// The tokens, or the place of the turn that does not fit.
    fn run(mut self) -> Result<Vec<u32>, usize> {
        for (place, one) in self.some.iter().enumerate() {
            self.put(one, place).ok_or(place)?;
        }
        let last = self.some.len().saturating_sub(1);
        let rest = self.tokenized(self.cursor..self.prompt.text.len(), None).ok_or(last)?;
        self.tokens.extend(rest);
        Ok(self.tokens)
    }

    fn put(&mut self, one: &Placeholder, place: usize) -> Option<()> {
        let mark = self.cursor + self.prompt.text.get(self.cursor..)?.find(&one.mark)?;
        let after = mark + one.mark.len();
        match &one.stand {
            Stand::Text(content) => {
                let opening = self.scene.normal.generation_prompt.clone();
                let replay = &self.scene.model.conversations().replay;
                let before = self.tokenized(self.cursor..self.start(mark, &opening)?, Some(&opening))?;
                let mut hash = self.hash.clone();
                add_tokens(&mut hash, &before);
                let kept = replay.find_text(&text_key(hash, content))?;
                self.commit(&before);
                self.commit(&kept.tokens);
                self.cursor = after;
            }
            Stand::Calls(turn) => {
                let here = self.start(mark, &turn.opening).and_then(|start| {
                    let before = self.tokenized(self.cursor..start, Some(&turn.opening))?;
                    self.proved(turn, before)
                });
                let before = here.or_else(|| self.proved(turn, self.asked_then(one, place)?))?;
                let end = self.end_of(one, turn, place)?;
                self.commit(&before);
                self.commit(&turn.tokens);
                self.cursor = end;
            }
        }
        Some(())
    }

    /// Tokens that come next, if the turn was written after them.
    fn proved(&self, turn: &CallTurn, before: Vec<u32>) -> Option<Vec<u32>> {
        let mut hash = self.hash.clone();
        add_tokens(&mut hash, &before);
        // Records of older servers have no proof.
        (turn.before.is_some() && turn.was_written_after(hash)).then_some(before)
    }

    /// What stood between the turn before and this one when it was asked for: some templates write the same messages in
    /// another way once others follow, and instructions for the reply at the end of the prompt.
    fn asked_then(&self, one: &Placeholder, place: usize) -> Option<Vec<u32>> {
        let head = self.scene.messages.get(..one.message)?;
        let earlier = self.some.get(..place)?;
        let scene = Scene { messages: head, render: self.scene.render, ..*self.scene };
        let mut then = Attempt::new(&scene, earlier)?;
        if let Some((last, previous)) = earlier.iter().zip(0..).last() {
            then.cursor = match &last.stand {
                Stand::Calls(turn) => then.end_of(last, turn, previous)?,
                Stand::Text(_) => then.prompt.text.find(&last.mark)? + last.mark.len(),
            };
            // Only the first token of a prompt is special.
            then.tokens.clone_from(&self.tokens);
        }
        then.tokenized(then.cursor..then.prompt.text.len(), None)
    }

    /// Where a turn with calls ends in the text.
    fn end_of(&self, one: &Placeholder, turn: &CallTurn, place: usize) -> Option<usize> {
        let mark = self.cursor + self.prompt.text.get(self.cursor..)?.find(&one.mark)?;
        let after = mark + one.mark.len();
        let sampled = self.scene.model.detokenize(&turn.tokens, SpecialText::Render);
        let next = self.some.get(place + 1).and_then(|next| self.prompt.text.get(after..)?.find(&next.mark));
        let written = self.prompt.text.get(after..next.map_or(self.prompt.text.len(), |next| after + next))?;
        Some(after + turn_end(&sampled, written)?)
    }

    /// Where the turn before a mark most likely begins.
    fn start(&self, mark: usize, opening: &str) -> Option<usize> {
        Some(self.cursor + self.prompt.text.get(self.cursor..mark)?.rfind(opening)?)
    }

    /// The tokens of a stretch of the prompt, with the opening of a reply behind it.
    fn tokenized(&self, range: Range<usize>, opening: Option<&str>) -> Option<Vec<u32>> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut at = 0;
        for part in &self.prompt.parts {
            let (start, end) = (at.max(range.start), (at + part.text.len()).min(range.end));
            if start < end {
                let text = part.text.get(start - at..end - at)?;
                stretches.push(Stretch { text: self.unmarked(text).into_owned(), is_input: part.is_input });
            }
            at += part.text.len();
        }
        if let Some(opening) = opening {
            match stretches.last_mut().filter(|last| !last.is_input) {
                Some(last) => last.text.push_str(opening),
                None => stretches.push(Stretch { text: opening.to_owned(), is_input: false }),
            }
        }
        let mut tokens = Vec::new();
        for stretch in stretches.iter().filter(|stretch| !stretch.text.is_empty()) {
            let add_special = self.tokens.is_empty() && tokens.is_empty();
            let mode = TokenizeMode { add_special, parse_special: !stretch.is_input };
            tokens.extend_from_slice(&self.scene.model.stretch_tokens(&stretch.text, mode).ok()?);
        }
        Some(tokens)
    }

    /// Templates that name the tool again with its answer take the mark for the name.
    fn unmarked<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        let is_marked = self.some.first().is_some_and(|one| text.contains(&*one.secret));
        for one in self.some.iter().filter(|_| is_marked) {
            if let Some(name) = one.name(self.scene.messages).filter(|_| text.contains(&one.mark)) {
                text = text.replace(&one.mark, name).into();
            }
        }
        text
    }

    fn commit(&mut self, tokens: &[u32]) {
        add_tokens(&mut self.hash, tokens);
        self.tokens.extend_from_slice(tokens);
    }
}

/// How much of what a template wrote after the name of a call belongs to the turn: up to the last thing that the model
/// wrote itself, in the most words that both have.
fn turn_end(sampled: &str, written: &str) -> Option<usize> {
    let core = sampled.trim_end();
    let space = sampled.get(core.len()..)?;
    let from = core.len().saturating_sub(TAIL);
    let tails = core.char_indices().map(|(at, _)| at).filter(|at| *at >= from);
    let end = tails.into_iter().find_map(|at| {
        let tail = core.get(at..)?;
        written.find(tail).map(|found| found + tail.len())
    })?;
    let rest = written.get(end..)?;
    let shared = space.chars().zip(rest.chars()).take_while(|(one, other)| one == other);
    Some(end + shared.map(|(one, _)| one.len_utf8()).sum::<usize>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_with_the_last_words_of_the_model() {
        let rest = "<|im_end|>\n<tool>}</call> said a tool";
        let written = format!("\", \"arguments\": {{\"a\": 1}}}}\n</call>\n{rest}");
        for sampled in [
            "<call>{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</call>\n",
            "<call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</call>\n\n ",
            "text <call>{\"arguments\": {\"a\": 1}}\n</call>\n",
        ] {
            assert_eq!(turn_end(sampled, &written).map(|end| &written[end..]), Some(rest), "{sampled:?}");
        }
        assert_eq!(turn_end("<call>x</call>", "x</call>\nnext"), Some(8), "a space that nobody sampled");
        assert_eq!(turn_end("q", "x</call>"), None, "nothing in common");
        assert_eq!(turn_end("", "x"), None);
    }
}
