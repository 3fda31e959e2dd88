//! The memory by way of which the states of a context reach a device and come back.
//!
//! Held by a context and used by `sequence.rs` for each state that is packed or set. It must never lock memory after the
//! context is made: a token would wait for that.

use crate::backend::HostBuffer;
use crate::backend::llama::buffer;
use crate::backend::llama::state::io::{LockedSpan, Way};

/// Bytes that several threads copy at a time.
const SCRATCH: usize = 32 << 20;

/// See the module.
pub(in crate::backend::llama) struct Passage {
    /// Page-locked; `None` for a context in host memory.
    scratch: Option<HostBuffer>,
    locked_spans: fn() -> Vec<LockedSpan>,
    /// The result of the last call of that function.
    spans: Vec<LockedSpan>,
}

// SAFETY: the spans are addresses of memory that is never freed, and nothing is read through them here.
unsafe impl Send for Passage {}

impl Passage {
    /// For a context with its states on a device, or in host memory.
    pub(in crate::backend::llama) fn new(on_device: bool) -> Self {
        let scratch = if on_device { buffer::page_locked(SCRATCH) } else { None };
        Self { scratch, locked_spans: buffer::locked_spans, spans: Vec::new() }
    }

    /// With memory that a test chose.
    #[cfg(test)]
    pub(in crate::backend::llama) fn with(scratch: HostBuffer, locked_spans: fn() -> Vec<LockedSpan>) -> Self {
        Self { scratch: Some(scratch), locked_spans, spans: Vec::new() }
    }

    /// The way of one state; at most `threads` threads copy it.
    pub(in crate::backend::llama) fn way(&mut self, threads: usize) -> Way<'_> {
        let scratch = self.scratch.as_mut().map_or(&mut [][..], |buffer| buffer.as_mut());
        self.spans = if scratch.is_empty() { Vec::new() } else { (self.locked_spans)() };
        Way { scratch, locked: &self.spans, threads }
    }
}
