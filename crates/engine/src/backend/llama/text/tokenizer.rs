//! Texts to tokens: on which stack, in which pieces, and how few tokens a text can have.
//!
//! Made once for each model, used by `Model::tokenize` from any thread. No text may end the process: what would recurse
//! too deep runs on a deep stack, is cut where the tokens stay the same, or is refused. The bounds of `least_tokens` must
//! never be above the number of tokens that llama.cpp returns.

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use llama_cpp_sys_4 as sys;

use crate::backend::llama::handle::ModelHandle;
use crate::backend::llama::text::deep::on_deep_stack;
use crate::backend::llama::text::runs::{RunLimits, SHALLOW};
use crate::backend::llama::text::split::{self, Vocabulary};
use crate::backend::{ModelInfo, Token, TokenizeError, TokenizeMode};

/// Longest text that is tokenized in one call; llama.cpp counts bytes and tokens in 32-bit signed numbers.
const MAX_TEXT: usize = 1 << 30;

/// What a model's vocabulary says about texts as a whole.
pub(in crate::backend::llama) struct Tokenizer {
    handle: Arc<ModelHandle>,
    limits: RunLimits,
    kind: TokenizerKind,
    /// Learned from all tokens at the first long text.
    reach: OnceLock<Reach>,
}

/// How a vocabulary turns bytes into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenizerKind {
    /// Every byte of a text is in one of its tokens.
    Bytes,
    /// Every word gives a token at least, however long it is.
    Words,
    /// Neither is certain: texts are normalised first.
    Other,
}

/// How much of a text one token can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    /// Bytes of the longest token.
    longest: usize,
    /// Whether a token can hold two words.
    has_spaces: bool,
    /// Whether some token swallows the white space beside it.
    strips: bool,
    /// Whether each byte has a token, so that none is left out.
    is_complete: bool,
}

impl Tokenizer {
    pub(in crate::backend::llama) fn new(handle: Arc<ModelHandle>, model: Option<&str>, pre: Option<&str>) -> Self {
        // SAFETY: the vocabulary is valid.
        let vocab_type = unsafe { sys::llama_vocab_type(handle.vocab()) };
        let (limits, kind) = match vocab_type {
            sys::LLAMA_VOCAB_TYPE_BPE => match (model, pre) {
                (Some("gemma4"), _) => (RunLimits::none(), TokenizerKind::Bytes),
                // These change the text before they cut it.
                (Some("gpt2"), Some("soprano" | "nemotron-3.5-embed")) => (RunLimits::of(pre), TokenizerKind::Other),
                (Some("gpt2"), _) => (RunLimits::of(pre), TokenizerKind::Bytes),
                _ => (RunLimits::of(Some("")), TokenizerKind::Other),
            },
            sys::LLAMA_VOCAB_TYPE_SPM | sys::LLAMA_VOCAB_TYPE_RWKV => (RunLimits::none(), TokenizerKind::Bytes),
            sys::LLAMA_VOCAB_TYPE_WPM => (RunLimits::none(), TokenizerKind::Words),
            _ => (RunLimits::none(), TokenizerKind::Other),
        };
        Self { handle, limits, kind, reach: OnceLock::new() }
    }

    /// The tokens of a text.
    pub(in crate::backend::llama) fn tokenize(
        &self,
        text: &str,
        mode: TokenizeMode,
        info: &ModelInfo,
    ) -> Result<Vec<Token>, TokenizeError> {
        if self.handle.n_vocab() == 0 {
            return Err(TokenizeError::Refused { reason: "the model has no vocabulary".to_owned() });
        }
        if text.len() > MAX_TEXT {
            return Err(TokenizeError::TooLong { bytes: text.len(), limit: MAX_TEXT });
        }
        if text.len() <= SHALLOW || self.limits.longest(text) <= SHALLOW {
            return self.call(text, mode);
        }
        let work = || match self.limits.first_over(text) {
            None => self.call(text, mode),
            Some(_) => self.in_pieces(text, mode, info),
        };
        on_deep_stack(work).map_err(|error| TokenizeError::Refused { reason: error.reason() })?
    }

    /// A number of tokens that the text has at least; counts no more than it must to know.
    pub(in crate::backend::llama) fn least_tokens(&self, text: &str) -> usize {
        let is_space = |byte: &&u8| matches!(byte, b'\t'..=b'\r' | b' ');
        match self.kind {
            TokenizerKind::Other => 0,
            TokenizerKind::Bytes => {
                let reach = self.reach();
                if !reach.is_complete {
                    return 0;
                }
                let swallowed = if reach.strips { text.as_bytes().iter().filter(is_space).count() } else { 0 };
                text.len().saturating_sub(swallowed).div_ceil(reach.longest.max(1))
            }
            TokenizerKind::Words if self.reach().has_spaces => 0,
            TokenizerKind::Words => {
                let words = text.split(|character: char| character.is_ascii_whitespace());
                words.filter(|word| word.bytes().any(|byte| byte.is_ascii_alphanumeric())).count()
            }
        }
    }

    fn reach(&self) -> Reach {
        *self.reach.get_or_init(|| self.learn())
    }

    fn learn(&self) -> Reach {
        let mut reach = Reach { longest: 1, has_spaces: false, strips: false, is_complete: false };
        let mut seen = [false; 256];
        for token in 0..self.handle.n_vocab() {
            let Some(known) = self.handle.checked_token(token) else { continue };
            // SAFETY: the token is one of the vocabulary's; its text is NUL-terminated and lives as long as the model.
            let (text, attributes) = unsafe {
                let text = sys::llama_vocab_get_text(self.handle.vocab(), known);
                let text = if text.is_null() { &[][..] } else { CStr::from_ptr(text).to_bytes() };
                (text, sys::llama_vocab_get_attr(self.handle.vocab(), known))
            };
            let mut bytes = Vec::new();
            self.handle.token_bytes(token, true, &mut bytes);
            if let [byte] = bytes.as_slice()
                && let Some(seen) = seen.get_mut(usize::from(*byte))
            {
                *seen = true;
            }
            reach.longest = reach.longest.max(text.len()).max(bytes.len());
            reach.has_spaces |= text.iter().any(u8::is_ascii_whitespace);
            reach.strips |= attributes & (sys::LLAMA_TOKEN_ATTR_LSTRIP | sys::LLAMA_TOKEN_ATTR_RSTRIP) != 0;
        }
        // Bytes that no UTF-8 text has need no token.
        let occurs = |byte: usize| !matches!(byte, 0xc0 | 0xc1 | 0xf5..);
        reach.is_complete = seen.iter().enumerate().all(|(byte, seen)| *seen || !occurs(byte));
        reach
    }

    fn in_pieces(&self, text: &str, mode: TokenizeMode, info: &ModelInfo) -> Result<Vec<Token>, TokenizeError> {
        let inside = Inside { tokenizer: self, mode: TokenizeMode { add_special: false, ..mode } };
        let first = info.special.bos.filter(|_| mode.add_special && info.add_bos);
        let last = info.special.eos.filter(|_| mode.add_special && info.add_eos);
        let tokens = split::tokens(&inside, &self.limits, text)?;
        Ok(first.into_iter().chain(tokens).chain(last).collect())
    }

    /// The call into llama.cpp.
    fn call(&self, text: &str, mode: TokenizeMode) -> Result<Vec<Token>, TokenizeError> {
        let too_long = TokenizeError::TooLong { bytes: text.len(), limit: MAX_TEXT };
        let text_len = i32::try_from(text.len()).map_err(|_| too_long)?;
        // SAFETY: text and buffer are valid for the given lengths; the vocabulary is read-only.
        let call = |buffer: &mut [sys::llama_token]| unsafe {
            sys::llama_tokenize(
                self.handle.vocab(),
                text.as_ptr().cast(),
                text_len,
                buffer.as_mut_ptr(),
                i32::try_from(buffer.len()).unwrap_or(i32::MAX),
                mode.add_special,
                mode.parse_special,
            )
        };
        // English text has about four bytes per token; a wrong guess costs a second call.
        let mut buffer = vec![0; text.len() / 3 + 16];
        let mut count = call(&mut buffer);
        if count < 0 && count != i32::MIN {
            buffer.resize(usize::try_from(-count).unwrap_or(0), 0);
            count = call(&mut buffer);
        }
        let count = usize::try_from(count)
            .map_err(|_| TokenizeError::Refused { reason: "the token count overflowed".to_owned() })?;
        Ok(buffer.iter().take(count).filter_map(|token| u32::try_from(*token).ok()).collect())
    }
}

/// The vocabulary for texts in the middle of a prompt.
struct Inside<'t> {
    tokenizer: &'t Tokenizer,
    mode: TokenizeMode,
}

impl Vocabulary for Inside<'_> {
    fn tokens(&self, text: &str) -> Result<Vec<Token>, TokenizeError> {
        self.tokenizer.call(text, self.mode)
    }

    fn bytes(&self, token: Token) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.tokenizer.handle.token_bytes(token, true, &mut bytes);
        bytes
    }

    fn longest(&self) -> usize {
        self.tokenizer.reach().longest
    }
}

#[cfg(test)]
mod tests;
