//! The text of every token of a vocabulary, read once for the grammars of a model.
//!
//! Made by the model's handle at the first grammar, and shared by all of them. Read-only.

use llama_cpp_sys_4 as sys;

use super::handle::ModelHandle;
use crate::backend::Token;

/// The text of every token, with that of control tokens.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where each token's text ends.
    ends: Vec<usize>,
    is_eog: Vec<bool>,
}

impl Pieces {
    pub(super) fn read(handle: &ModelHandle) -> Self {
        let mut pieces = Self { bytes: Vec::new(), ends: Vec::new(), is_eog: Vec::new() };
        let mut buffer = vec![0u8; 64];
        for token in (0..handle.n_vocab()).filter_map(|token| handle.checked_token(token)) {
            let mut written = piece(handle, token, &mut buffer);
            if written < 0 {
                buffer.resize(usize::try_from(written.unsigned_abs()).unwrap_or(0), 0);
                written = piece(handle, token, &mut buffer);
            }
            let text = usize::try_from(written).ok().and_then(|len| buffer.get(..len));
            pieces.bytes.extend_from_slice(text.unwrap_or_default());
            pieces.ends.push(pieces.bytes.len());
            // SAFETY: the vocabulary is valid and the token is one of it.
            pieces.is_eog.push(unsafe { sys::llama_vocab_is_eog(handle.vocab(), token) });
        }
        pieces
    }

    pub(super) fn text(&self, token: Token) -> Option<&[u8]> {
        let token = usize::try_from(token).ok()?;
        let start = token.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        self.bytes.get(start..*self.ends.get(token)?)
    }

    pub(super) fn is_eog(&self, token: Token) -> bool {
        usize::try_from(token).ok().and_then(|token| self.is_eog.get(token)).copied().unwrap_or(false)
    }
}

fn piece(handle: &ModelHandle, token: sys::llama_token, buffer: &mut [u8]) -> i32 {
    let len = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
    // SAFETY: the token is one of the vocabulary and the buffer has `len` bytes.
    unsafe { sys::llama_token_to_piece(handle.vocab(), token, buffer.as_mut_ptr().cast(), len, 0, true) }
}
