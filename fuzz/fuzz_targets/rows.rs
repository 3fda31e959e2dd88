//! Stored states with damage that a checksum would not see, restored into real tiny models of every memory kind.
//!
//! A state is refused or it restores; then the model goes on from it. Input: one byte for the kind, one for the part that
//! is damaged and how, then an edit script over that part (`edits.rs`) or the whole part.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use poncho_engine::backend::{ContextOptions, KvLayout, Restore};
use poncho_fuzz::edits;
use poncho_fuzz::models::{Restorable, read, small_options};
use poncho_testkit::ModelKind;

thread_local! {
    /// Each kind with one pool of cells, then each with split cells.
    static STATES: RefCell<Vec<Restorable>> = RefCell::new(
        [KvLayout::Unified, KvLayout::Split]
            .into_iter()
            .flat_map(|kv| {
                let options = ContextOptions { kv, ..small_options() };
                ModelKind::ALL.map(|kind| Restorable::new(kind, &options))
            })
            .collect(),
    );
}

fuzz_target!(|data: &[u8]| {
    let Some((&[kind, how], script)) = data.split_first_chunk::<2>() else { return };
    STATES.with_borrow_mut(|states| {
        let count = states.len();
        let state = &mut states[usize::from(kind) % count];
        let mut segments = state.segments.clone();
        let mut partial = state.partial.clone();
        let in_partial = partial.is_some() && (how & 3 == 0 || segments.is_empty());
        let at = usize::from(how & 3) % segments.len().max(1);
        let damaged = if in_partial { partial.as_mut() } else { segments.get_mut(at) };
        if let Some(damaged) = damaged {
            if how & 4 == 4 {
                *damaged = script.to_vec();
            } else {
                let reach = if how & 8 == 8 { damaged.len() } else { 512 };
                edits::apply(script, damaged, reach);
            }
        }
        let cut = if how & 16 == 16 { u32::from(how >> 5) + 1 } else { 0 };
        let n_tokens = Restorable::TOKENS - cut;
        let borrowed: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
        let restore = Restore { seq: 1, n_tokens, segments: &borrowed, partial: partial.as_deref() };
        let restored = state.context.restore(restore);
        if restored.is_ok() {
            let _ = read(state.context.as_mut(), 1, n_tokens..n_tokens + 2);
        }
        state.context.remove(1, 0..u32::MAX);
    });
});
