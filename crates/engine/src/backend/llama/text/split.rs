//! Runs that are too long for the pre-tokenizer, cut where the tokens stay the same.
//!
//! Called by `tokenizer.rs`, on a deep stack, for texts that hold such a run. A run is cut only if it is ASCII of one kind
//! and stands alone between line ends, so that both halves are words exactly where the whole was one; and only at the end
//! of a token where the tokens on both sides do not join. If merging had crossed the cut, it would cross it too when just
//! the tokens around it are tokenized, because merges on one side of a token's end never depend on the other side. So the
//! tokens around each cut are tokenized again, together. What cannot be cut is refused; nothing here may guess.

use crate::backend::llama::text::runs::{Class, Run, RunLimits};
use crate::backend::{Token, TokenizeError};

/// Tokens on each side of a cut that are tokenized again, at least.
const AROUND: usize = 16;

/// The calls into the vocabulary.
pub(in crate::backend::llama) trait Vocabulary {
    /// Tokens of a text, without those at the ends of a prompt.
    fn tokens(&self, text: &str) -> Result<Vec<Token>, TokenizeError>;

    /// The text of a token.
    fn bytes(&self, token: Token) -> Vec<u8>;

    /// Bytes of the longest token.
    fn longest(&self) -> usize;
}

/// The tokens of a text, with over-long runs cut.
pub(in crate::backend::llama) fn tokens(
    vocabulary: &impl Vocabulary,
    limits: &RunLimits,
    text: &str,
) -> Result<Vec<Token>, TokenizeError> {
    let mut tokens = Vec::new();
    let mut rest = text;
    // The cut that the text before `rest` ended with.
    let mut cut: Option<Cut> = None;
    while let Some(run) = limits.first_over(rest) {
        let this = Cut { chars: run.chars, limit: run.limit };
        if !stands_alone(rest, &run) {
            return Err(this.error());
        }
        // The run is ASCII, so its bytes are its characters.
        let (mut start, mut end) = (run.bytes.start, run.bytes.end);
        while end - start > run.limit {
            let (head, at) = piece(vocabulary, rest, start, run.limit).ok_or_else(|| this.error())??;
            Cut::check(cut.as_ref(), vocabulary, &tokens, &head)?;
            tokens.extend(head);
            rest = rest.get(at..).unwrap_or_default();
            (start, end) = (0, end - at);
            cut = Some(this);
        }
    }
    let last = vocabulary.tokens(rest)?;
    Cut::check(cut.as_ref(), vocabulary, &tokens, &last)?;
    tokens.extend(last);
    Ok(tokens)
}

/// The tokens of a text up to a place within the run that begins at `start`, and that place. `None` if there is none.
fn piece(
    vocabulary: &impl Vocabulary,
    text: &str,
    start: usize,
    limit: usize,
) -> Option<Result<(Vec<Token>, usize), TokenizeError>> {
    let end = start + limit / 2;
    let piece = text.get(..end)?;
    let mut head = match vocabulary.tokens(piece) {
        Ok(head) => head,
        Err(error) => return Some(Err(error)),
    };
    let at = end.checked_sub(drop_tail(vocabulary, &mut head, piece)?)?;
    // The tokens that are looked at again lie within the run.
    (at > start + limit / 4).then_some(Ok((head, at)))
}

/// A cut within a run, with what is said if it cannot be made.
#[derive(Clone, Copy)]
struct Cut {
    chars: usize,
    limit: usize,
}

impl Cut {
    fn error(&self) -> TokenizeError {
        TokenizeError::RunTooLong { chars: self.chars, limit: self.limit }
    }

    /// Whether the tokens before and after the cut are those of the uncut text.
    fn check(
        cut: Option<&Self>,
        vocabulary: &impl Vocabulary,
        before: &[Token],
        after: &[Token],
    ) -> Result<(), TokenizeError> {
        let Some(cut) = cut else { return Ok(()) };
        let left = around(vocabulary, before.iter().rev().copied());
        let left = before.get(before.len().saturating_sub(left)..).unwrap_or_default();
        let right = after.get(..around(vocabulary, after.iter().copied())).unwrap_or_default();
        let both = [left, right].concat();
        let bytes: Vec<u8> = both.iter().flat_map(|token| vocabulary.bytes(*token)).collect();
        let joined = std::str::from_utf8(&bytes).map_err(|_| cut.error())?;
        if vocabulary.tokens(joined)? == both { Ok(()) } else { Err(cut.error()) }
    }
}

/// How many of these tokens hold enough tokens and enough bytes for any merge or mark that reaches across a cut.
fn around(vocabulary: &impl Vocabulary, tokens: impl Iterator<Item = Token>) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for token in tokens {
        if count >= AROUND && bytes >= vocabulary.longest() {
            break;
        }
        count += 1;
        bytes += vocabulary.bytes(token).len();
    }
    count
}

/// Drops tokens that further text may change, and returns their bytes; `None` if they are not the end of the text.
fn drop_tail(vocabulary: &impl Vocabulary, tokens: &mut Vec<Token>, text: &str) -> Option<usize> {
    let count = around(vocabulary, tokens.iter().rev().copied());
    let tail = tokens.split_off(tokens.len().saturating_sub(count));
    let bytes: Vec<u8> = tail.into_iter().flat_map(|token| vocabulary.bytes(token)).collect();
    text.as_bytes().ends_with(&bytes).then_some(bytes.len())
}

/// Whether both halves of a run are words wherever it is cut.
fn stands_alone(text: &str, run: &Run) -> bool {
    let bytes = text.as_bytes();
    let Some(run_bytes) = bytes.get(run.bytes.clone()) else { return false };
    let ends_line = |byte: Option<&u8>| byte.is_none_or(|byte| *byte == b'\n');
    let before = run.bytes.start.checked_sub(1).and_then(|at| bytes.get(at));
    let after = bytes.get(run.bytes.end);
    if run.class == Class::Spaces {
        // Marks beside a run may swallow it, and a line end joins it: it must be the whole text, or the rest of one.
        return before.is_none() && after.is_none() && run_bytes.iter().all(|byte| *byte == b' ');
    }
    let kind: fn(&u8) -> bool = match run.class {
        // One class, one expression: any printable character continues the word.
        Class::NotSpace | Class::Bloom => u8::is_ascii_graphic,
        Class::Letters | Class::Word | Class::SpacedLetters
            if run_bytes.first().is_some_and(u8::is_ascii_lowercase) =>
        {
            u8::is_ascii_lowercase
        }
        Class::Letters | Class::Word | Class::SpacedLetters => u8::is_ascii_uppercase,
        Class::Numbers => u8::is_ascii_digit,
        Class::Others => u8::is_ascii_punctuation,
        Class::Spaces | Class::Wide => return false,
    };
    run_bytes.iter().all(kind) && ends_line(before) && ends_line(after)
}
