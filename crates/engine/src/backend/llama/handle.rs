//! The pointer to a loaded model, and the calls that need nothing else.
//!
//! Shared by the model and by everything made from it: contexts, adapters, grammars and templates. It is freed with the last
//! of them. llama.cpp only reads a loaded model, apart from the calls that take [`ModelHandle::exclusive`].

use std::ffi::{CString, c_char};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llama_cpp_sys_4 as sys;

use super::gguf_check::GgufFacts;
use super::pieces::Pieces;
use crate::backend::Token;

/// The model pointer, freed with the last user.
pub(super) struct ModelHandle {
    model: NonNull<sys::llama_model>,
    vocab: NonNull<sys::llama_vocab>,
    n_vocab: u32,
    /// Whether a token sees only those before it, as the file states.
    causal: bool,
    /// Rows of the table in which positions are looked up.
    position_rows: Option<u64>,
    /// Held by the few calls that change the model: listing adapters, creating contexts.
    changes: Mutex<()>,
    /// The text of every token, for grammars; read at the first one.
    pieces: OnceLock<Arc<Pieces>>,
}

// SAFETY: after loading, llama.cpp only reads the model; contexts on several threads share it by design.
unsafe impl Send for ModelHandle {}
// SAFETY: as above.
unsafe impl Sync for ModelHandle {}

impl ModelHandle {
    /// Takes over a model that was just loaded, and its vocabulary.
    pub(super) fn new(
        model: NonNull<sys::llama_model>,
        vocab: NonNull<sys::llama_vocab>,
        n_vocab: u32,
        facts: &GgufFacts,
    ) -> Self {
        let GgufFacts { causal, position_rows, .. } = *facts;
        Self { model, vocab, n_vocab, causal, position_rows, changes: Mutex::new(()), pieces: OnceLock::new() }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.model.as_ptr()
    }

    pub(super) fn vocab(&self) -> *const sys::llama_vocab {
        self.vocab.as_ptr()
    }

    /// The right to call something that changes the model.
    pub(super) fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn n_vocab(&self) -> u32 {
        self.n_vocab
    }

    pub(super) fn pieces(&self) -> Arc<Pieces> {
        Arc::clone(self.pieces.get_or_init(|| Arc::new(Pieces::read(self))))
    }

    pub(super) fn causal(&self) -> bool {
        self.causal
    }

    /// The most positions that a sequence may have; `None` for any number.
    pub(super) fn position_rows(&self) -> Option<u64> {
        self.position_rows
    }

    /// The token as llama.cpp counts it, if it is one of the vocabulary's.
    pub(super) fn checked_token(&self, token: Token) -> Option<sys::llama_token> {
        if token < self.n_vocab { i32::try_from(token).ok() } else { None }
    }

    /// Appends the bytes of a token; the text of a control token only if `render`.
    pub(super) fn token_bytes(&self, token: Token, render: bool, out: &mut Vec<u8>) {
        let Some(token) = self.checked_token(token) else { return };
        let start = out.len();
        // Most tokens are short; longer ones say how long they are.
        let mut room = 32;
        for _ in 0..2 {
            out.resize(start + room, 0);
            let Some(buffer) = out.get_mut(start..) else { break };
            let length = i32::try_from(buffer.len()).unwrap_or(i32::MAX);
            // SAFETY: the token is one of the vocabulary's and the buffer has `length` bytes.
            let written = unsafe {
                sys::llama_token_to_piece(self.vocab(), token, buffer.as_mut_ptr().cast(), length, 0, render)
            };
            if let Ok(written) = usize::try_from(written) {
                out.truncate(start + written);
                return;
            }
            room = usize::try_from(written.unsigned_abs()).unwrap_or(0);
        }
        out.truncate(start);
    }

    /// A metadata value of the file.
    pub(super) fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        fill_text(|buffer, len| {
            // SAFETY: the buffer has `len` bytes and the key is NUL-terminated.
            unsafe { sys::llama_model_meta_val_str(self.as_ptr(), key.as_ptr(), buffer, len) }
        })
    }
}

impl Drop for ModelHandle {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a successful load and everything made from it held this handle.
        unsafe { sys::llama_model_free(self.model.as_ptr()) }
    }
}

/// Calls a function that writes text into a buffer and returns its full length, growing the buffer once if needed.
pub(super) fn fill_text(mut call: impl FnMut(*mut c_char, usize) -> i32) -> Option<String> {
    let mut buffer = vec![0u8; 256];
    let mut needed = usize::try_from(call(buffer.as_mut_ptr().cast(), buffer.len())).ok()?;
    if needed >= buffer.len() {
        buffer.resize(needed + 1, 0);
        needed = usize::try_from(call(buffer.as_mut_ptr().cast(), buffer.len())).ok()?;
    }
    buffer.truncate(needed.min(buffer.len()));
    Some(String::from_utf8_lossy(&buffer).into_owned())
}
