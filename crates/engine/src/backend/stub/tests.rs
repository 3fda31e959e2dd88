//! The stub keeps the rules that the engine's tests rely on.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::backend::{
    AdapterError, AdapterUse, Batch, BatchRow, Context, ContextError, ContextOptions, DecodeOutcome, KvLayout, Pooling,
    Restore, SeqId, StateError, StatePart,
};

mod answers;
mod faults;

const WINDOW: MemoryKind = MemoryKind::Window { size: 4 };
const KINDS: [MemoryKind; 4] = [MemoryKind::Attention, WINDOW, MemoryKind::Recurrent, MemoryKind::Hybrid];

fn options() -> ContextOptions {
    ContextOptions { n_ctx: 64, n_batch: 64, n_ubatch: 8, n_seq_max: 3, ..ContextOptions::default() }
}

fn context_of(backend: &StubBackend, options: &ContextOptions) -> Box<dyn Context> {
    let model = backend.load_model(&ModelOptions::new("a model")).unwrap();
    model.new_context(options, Arc::default()).unwrap()
}

fn context(kind: MemoryKind) -> Box<dyn Context> {
    context_of(&StubBackend::new(kind), &options())
}

fn batch(seq: SeqId, from: u32, tokens: &[Token]) -> Batch {
    let rows = (from..).zip(tokens).map(|(pos, &token)| BatchRow { token, pos, seq, want_logits: true });
    Batch { rows: rows.collect() }
}

/// Reads tokens into a sequence and returns the logits of the last.
fn read(context: &mut dyn Context, seq: SeqId, from: u32, tokens: &[Token]) -> Vec<f32> {
    assert_eq!(context.decode(&batch(seq, from, tokens)), DecodeOutcome::Done);
    context.logits(tokens.len() - 1).unwrap().to_vec()
}

/// The logits after a history that was read in one go by a fresh context.
fn cold(kind: MemoryKind, tokens: &[Token]) -> Vec<f32> {
    read(context(kind).as_mut(), 0, 0, tokens)
}

fn pack(context: &mut dyn Context, seq: SeqId, range: std::ops::Range<u32>) -> Vec<u8> {
    let mut out = vec![0; context.pack_size(seq, range.clone()).unwrap()];
    let written = context.pack_range(seq, range, &mut out).unwrap();
    out.truncate(written);
    out
}

fn state(context: &mut dyn Context, seq: SeqId, part: StatePart) -> Vec<u8> {
    let mut out = vec![0; context.state_size(seq, part).unwrap()];
    let written = context.state_read(seq, part, &mut out).unwrap();
    out.truncate(written);
    out
}

/// A row of a history: its segments, cut at the given places, and its partial state.
fn row(context: &mut dyn Context, seq: SeqId, cuts: &[u32]) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
    let memory = context.info().memory;
    let segments = if memory.has_segments() {
        cuts.windows(2).map(|ends| pack(context, seq, ends[0]..ends[1])).collect()
    } else {
        Vec::new()
    };
    let partial = memory.has_partial().then(|| state(context, seq, StatePart::Partial));
    (segments, partial)
}

fn restore(
    context: &mut dyn Context,
    seq: SeqId,
    n_tokens: u32,
    row: &(Vec<Vec<u8>>, Option<Vec<u8>>),
) -> Result<(), StateError> {
    let segments: Vec<&[u8]> = row.0.iter().map(Vec::as_slice).collect();
    context.restore(Restore { seq, n_tokens, segments: &segments, partial: row.1.as_deref() })
}

#[test]
fn chunks_neighbours_and_sequence_ids_do_not_matter() {
    let tokens: Vec<Token> = (60..90).collect();
    for kind in KINDS {
        let expected = cold(kind, &tokens);
        let mut context = context(kind);
        let mut mixed = batch(2, 0, &tokens[..7]);
        mixed.rows.extend(batch(1, 0, &[1, 2, 3]).rows);
        assert_eq!(context.decode(&mixed), DecodeOutcome::Done);
        let first = context.logits(6).unwrap().to_vec();
        assert_eq!(first, cold(kind, &tokens[..7]));
        assert_eq!(read(context.as_mut(), 2, 7, &tokens[7..]), expected, "{kind:?}");
    }
}

#[test]
fn every_part_of_the_history_matters() {
    let tokens: Vec<Token> = (60..80).collect();
    for kind in KINDS {
        let expected = cold(kind, &tokens);
        for place in 0..tokens.len() {
            let mut other = tokens.clone();
            other[place] += 1;
            assert_ne!(cold(kind, &other), expected, "{kind:?} {place}");
        }
    }
    let other = StubBackend::new(MemoryKind::Attention).load_model(&ModelOptions::new("another model")).unwrap();
    let mut context = other.new_context(&options(), Arc::default()).unwrap();
    assert_ne!(read(context.as_mut(), 0, 0, &tokens), cold(MemoryKind::Attention, &tokens));
}

#[test]
fn a_restored_sequence_goes_on_like_the_live_one() {
    let tokens: Vec<Token> = (60..80).collect();
    for kind in KINDS {
        for kv in [KvLayout::Unified, KvLayout::Split] {
            let backend = StubBackend::new(kind);
            let options = ContextOptions { kv, n_cells: Some(256), ..options() };
            let mut live = context_of(&backend, &options);
            read(live.as_mut(), 0, 0, &tokens);
            let saved = row(live.as_mut(), 0, &[0, 5, 6, 20]);
            let whole = state(live.as_mut(), 0, StatePart::Whole);
            let mut fresh = context_of(&backend, &options);
            read(fresh.as_mut(), 2, 0, &[9, 9, 9]);
            restore(fresh.as_mut(), 2, 20, &saved).unwrap();
            fresh.state_write(1, StatePart::Whole, &whole).unwrap();
            assert_eq!((fresh.pos_min(2), fresh.pos_max(2)), (live.pos_min(0), live.pos_max(0)));
            let expected = read(live.as_mut(), 0, 20, &[33, 34]);
            assert_eq!(read(fresh.as_mut(), 2, 20, &[33, 34]), expected, "{kind:?} {kv:?}");
            assert_eq!(read(fresh.as_mut(), 1, 20, &[33, 34]), expected, "{kind:?} {kv:?}");
            assert_eq!(backend.faults().counts().refused, 0);
        }
    }
}

#[test]
fn attention_may_be_cut_anywhere() {
    let tokens: Vec<Token> = (60..80).collect();
    let mut context = context(MemoryKind::Attention);
    read(context.as_mut(), 0, 0, &tokens);
    let saved = row(context.as_mut(), 0, &[0, 8, 20]);
    assert!(context.remove(0, 11..u32::MAX));
    assert_eq!((context.pos_min(0), context.pos_max(0)), (Some(0), Some(10)));
    let expected = cold(MemoryKind::Attention, &[&tokens[..11], &[7]].concat());
    assert_eq!(read(context.as_mut(), 0, 11, &[7]), expected);
    restore(context.as_mut(), 1, 11, &saved).unwrap();
    assert_eq!(read(context.as_mut(), 1, 11, &[7]), expected);
    // A hole in the middle is a history of its own.
    assert!(context.remove(1, 3..5));
    assert_ne!(read(context.as_mut(), 1, 12, &[7]), cold(MemoryKind::Attention, &[&tokens[..11], &[7, 7]].concat()));
    assert!(matches!(context.pack_size(1, 0..8), Err(StateError::RangeNotHeld { held_start: 0, held_end: 13, .. })));
}

#[test]
fn a_window_says_yes_and_then_lacks_what_it_forgot() {
    let tokens: Vec<Token> = (60..80).collect();
    let mut context = context(WINDOW);
    read(context.as_mut(), 0, 0, &tokens);
    assert_eq!((context.pos_min(0), context.pos_max(0)), (Some(16), Some(19)), "the last four positions");
    assert!(context.remove(0, 18..u32::MAX));
    assert_eq!((context.pos_min(0), context.pos_max(0)), (Some(16), Some(17)), "two are missing below");
    let right = cold(WINDOW, &[&tokens[..18], &[7]].concat());
    assert_ne!(read(context.as_mut(), 0, 18, &[7]), right, "and the answer is wrong");
    assert!(context.remove(0, 10..u32::MAX));
    assert_eq!((context.pos_min(0), context.pos_max(0)), (None, None), "the window is empty, the full layers are not");
    assert_eq!(context.decode(&batch(0, 0, &[1])), DecodeOutcome::Invalid);
    assert_ne!(read(context.as_mut(), 0, 10, &[7]), cold(WINDOW, &[&tokens[..10], &[7]].concat()));
    let whole = context_of(&StubBackend::new(WINDOW), &ContextOptions { swa_full: true, ..options() });
    let mut whole = whole;
    read(whole.as_mut(), 0, 0, &tokens);
    assert!(whole.remove(0, 10..u32::MAX));
    assert_eq!(read(whole.as_mut(), 0, 10, &[7]), cold(WINDOW, &[&tokens[..10], &[7]].concat()), "with all kept");
}

#[test]
fn running_states_cannot_forget_a_single_token() {
    let tokens: Vec<Token> = (60..80).collect();
    for kind in [MemoryKind::Recurrent, MemoryKind::Hybrid] {
        let mut context = context(kind);
        let expected = read(context.as_mut(), 0, 0, &tokens);
        assert_eq!((context.pos_min(0), context.pos_max(0)), (Some(19), Some(19)));
        assert!(!context.remove(0, 19..u32::MAX));
        assert!(context.remove(0, 20..u32::MAX), "there is nothing to forget");
        assert_eq!(read(context.as_mut(), 0, 20, &[7]), cold(kind, &[&tokens[..], &[7]].concat()), "nothing changed");
        assert!(context.remove(0, 0..u32::MAX), "all of it can go");
        assert_eq!(context.pos_max(0), None);
        assert_eq!(read(context.as_mut(), 0, 0, &tokens), expected);
    }
}

#[test]
fn a_partial_state_rolls_a_live_sequence_back() {
    let tokens: Vec<Token> = (60..80).collect();
    for kind in [WINDOW, MemoryKind::Recurrent, MemoryKind::Hybrid] {
        let mut context = context(kind);
        read(context.as_mut(), 0, 0, &tokens[..9]);
        let partial = state(context.as_mut(), 0, StatePart::Partial);
        read(context.as_mut(), 0, 9, &tokens[9..]);
        context.state_write(0, StatePart::Partial, &partial).unwrap();
        if kind != MemoryKind::Recurrent {
            assert_eq!(context.decode(&batch(0, 9, &[7])), DecodeOutcome::Invalid, "the full layers hold more");
        }
        assert!(context.remove(0, 9..u32::MAX));
        assert_eq!(context.pos_max(0), Some(8));
        assert_eq!(read(context.as_mut(), 0, 9, &[7]), cold(kind, &[&tokens[..9], &[7]].concat()), "{kind:?}");
    }
    let mut plain = context(MemoryKind::Attention);
    assert_eq!(plain.state_size(0, StatePart::Partial), Err(StateError::Unsupported { part: "partial state" }));
}

#[test]
fn wrong_chains_are_refused_and_leave_nothing_behind() {
    let one: Vec<Token> = (60..80).collect();
    let two: Vec<Token> = (61..81).collect();
    for kind in KINDS {
        let backend = StubBackend::new(kind);
        let mut context = context_of(&backend, &ContextOptions { n_cells: Some(256), ..options() });
        read(context.as_mut(), 0, 0, &one);
        let saved = row(context.as_mut(), 0, &[0, 8, 20]);
        read(context.as_mut(), 1, 0, &two);
        let other = row(context.as_mut(), 1, &[0, 8, 20]);
        if kind.has_segments() {
            let mixed = (vec![saved.0[0].clone(), other.0[1].clone()], saved.1.clone());
            assert!(matches!(restore(context.as_mut(), 2, 20, &mixed), Err(StateError::Malformed { .. })));
            let gap = (vec![saved.0[1].clone()], saved.1.clone());
            assert_eq!(restore(context.as_mut(), 2, 20, &gap), Err(StateError::Gap { expected: 0, got: 8 }));
            let short = (vec![saved.0[0].clone()], saved.1.clone());
            assert_eq!(restore(context.as_mut(), 2, 20, &short), Err(StateError::Gap { expected: 20, got: 8 }));
            let mut damaged = saved.clone();
            damaged.0[1][40] ^= 1;
            assert!(matches!(restore(context.as_mut(), 2, 20, &damaged), Err(StateError::Malformed { .. })));
            assert_eq!(backend.faults().counts().refused, 4);
        }
        if kind.has_partial() {
            assert!(restore(context.as_mut(), 2, 19, &saved).is_err(), "not at its boundary");
            assert_eq!(restore(context.as_mut(), 2, 20, &(saved.0.clone(), None)), Err(StateError::PartialMissing));
        }
        if kind.has_partial() && kind.has_segments() {
            let mixed = (saved.0.clone(), other.1.clone());
            assert!(matches!(restore(context.as_mut(), 2, 20, &mixed), Err(StateError::Malformed { .. })), "{kind:?}");
        }
        assert_eq!(context.pos_max(2), None);
        assert_eq!(context.restore_finish(), Err(StateError::OutOfOrder));
        assert_eq!(restore(context.as_mut(), 2, 65, &saved), Err(StateError::NoRoom { n_tokens: 65 }));
        let mut stranger = context_of(&backend.clone(), &options());
        restore(stranger.as_mut(), 0, 20, &saved).unwrap();
        let model = backend.load_model(&ModelOptions::new("another")).unwrap();
        let mut stranger = model.new_context(&options(), Arc::default()).unwrap();
        assert!(matches!(restore(stranger.as_mut(), 0, 20, &saved), Err(StateError::Malformed { .. })));
    }
}

#[test]
fn unified_cells_are_shared_and_run_out() {
    let tokens = [7; 40];
    let mut context = context_of(&StubBackend::new(MemoryKind::Attention), &options());
    read(context.as_mut(), 0, 0, &tokens);
    assert_eq!(context.decode(&batch(1, 0, &tokens[..25])), DecodeOutcome::NoRoom);
    assert_eq!(context.pos_max(1), None, "nothing was changed");
    assert_eq!(context.logits(0), None);
    read(context.as_mut(), 1, 0, &tokens[..24]);
    assert_eq!(context.decode(&batch(0, 40, &[1])), DecodeOutcome::NoRoom);
    let saved = row(context.as_mut(), 0, &[0, 40]);
    assert_eq!(restore(context.as_mut(), 2, 40, &saved), Err(StateError::NoRoom { n_tokens: 40 }));
    assert!(context.copy(0, 2), "marks take no cells");
    assert!(context.remove(0, 0..u32::MAX));
    assert_eq!(context.decode(&batch(2, 40, &[1])), DecodeOutcome::NoRoom, "the copy still holds them");
    assert!(context.remove(2, 20..u32::MAX));
    assert_eq!(read(context.as_mut(), 2, 20, &[1]), cold(MemoryKind::Attention, &[&tokens[..20], &[1]].concat()));
    context.clear();
    read(context.as_mut(), 0, 0, &[3; 64]);
}

#[test]
fn split_cells_belong_to_one_sequence() {
    let split = ContextOptions { kv: KvLayout::Split, n_batch: 128, ..options() };
    let mut context = context_of(&StubBackend::new(MemoryKind::Hybrid), &split);
    assert_eq!(context.info().n_cells, 192);
    for seq in 0..3 {
        read(context.as_mut(), seq, 0, &[7; 64]);
        assert_eq!(context.decode(&batch(seq, 64, &[7])), DecodeOutcome::NoRoom);
    }
    assert!(context.remove(0, 0..u32::MAX));
    assert_eq!(context.decode(&batch(0, 0, &[7; 65])), DecodeOutcome::NoRoom);
    assert!(context.copy(1, 0));
    assert_eq!(context.pos_max(0), Some(63));
}

#[test]
fn batches_that_do_not_follow_are_invalid() {
    let backend = StubBackend::new(MemoryKind::Attention);
    let mut context = context_of(&backend, &options());
    read(context.as_mut(), 0, 0, &[1, 2, 3]);
    let wrong = [
        batch(0, 2, &[1]),
        batch(0, 4, &[1]),
        batch(1, 1, &[1]),
        batch(3, 0, &[1]),
        batch(0, 3, &[999]),
        Batch::default(),
    ];
    for batch in &wrong {
        assert_eq!(context.decode(batch), DecodeOutcome::Invalid, "{batch:?}");
    }
    let mut twice = batch(0, 3, &[1]);
    twice.rows.extend(batch(0, 3, &[1]).rows);
    assert_eq!(context.decode(&twice), DecodeOutcome::Invalid);
    assert_eq!(context.decode(&batch(1, 0, &[1; 65])), DecodeOutcome::Invalid, "more rows than n_batch");
    assert_eq!(backend.faults().counts().invalid, 8);
    assert_eq!(context.pos_max(0), Some(2));
}

#[test]
fn wrong_options_and_ids_are_refused() {
    let backend = StubBackend::new(MemoryKind::Attention);
    let mut vocab_only = ModelOptions::new("v");
    vocab_only.vocab_only = true;
    let model = backend.load_model(&vocab_only).unwrap();
    assert!(matches!(model.new_context(&options(), Arc::default()), Err(ContextError::VocabOnly)));
    let model = backend.load_model(&ModelOptions::new("m")).unwrap();
    let wrong = ContextOptions { n_seq_max: 0, ..options() };
    assert!(matches!(model.new_context(&wrong, Arc::default()), Err(ContextError::BadOption { .. })));
    let mut context = context(MemoryKind::Attention);
    assert!(!context.remove(3, 0..1) && !context.copy(0, 0) && !context.copy(0, 3));
    assert!(matches!(context.pack_size(3, 0..1), Err(StateError::UnknownSequence { seq: 3, n_seq_max: 3 })));
    read(context.as_mut(), 0, 0, &[1, 2]);
    assert!(matches!(context.pack_size(0, 1..1), Err(StateError::RangeNotHeld { .. })));
    let needed = context.pack_size(0, 0..2).unwrap();
    let short = context.pack_range(0, 0..2, &mut vec![0; needed - 1]);
    assert_eq!(short, Err(StateError::BufferTooSmall { needed, given: needed - 1 }));
}

fn any_kind() -> impl Strategy<Value = MemoryKind> {
    prop::sample::select(KINDS.to_vec())
}

proptest! {
    #[test]
    fn a_row_restores_at_every_boundary_of_any_chain(
        kind in any_kind(), tokens in prop::collection::vec(0_u32..265, 2..40), cuts in prop::collection::btree_set(1_u32..40, 0..5),
        next in 0_u32..265,
    ) {
        let end = u32::try_from(tokens.len()).unwrap();
        let mut ends: Vec<u32> = cuts.into_iter().filter(|&cut| cut < end).collect();
        ends.insert(0, 0);
        ends.push(end);
        let backend = StubBackend::new(kind);
        let mut live = context_of(&backend, &options());
        read(live.as_mut(), 0, 0, &tokens);
        let saved = row(live.as_mut(), 0, &ends);
        let mut fresh = context_of(&backend, &options());
        restore(fresh.as_mut(), 1, end, &saved).unwrap();
        prop_assert_eq!(row(fresh.as_mut(), 1, &ends), saved);
        prop_assert_eq!(read(fresh.as_mut(), 1, end, &[next]), read(live.as_mut(), 0, end, &[next]));
    }

    #[test]
    fn damaged_bytes_are_refused(kind in any_kind(), place in any::<prop::sample::Index>(), flip in 1_u8..=255, keep in any::<prop::sample::Index>()) {
        let backend = StubBackend::new(kind);
        let mut context = context_of(&backend, &options());
        read(context.as_mut(), 0, 0, &[1, 2, 3, 4, 5, 6]);
        let part = if kind.has_partial() { StatePart::Partial } else { StatePart::Whole };
        let bytes = state(context.as_mut(), 0, part);
        let mut damaged = bytes.clone();
        damaged[place.index(bytes.len())] ^= flip;
        prop_assert!(context.state_write(0, part, &damaged).is_err());
        let cut = &bytes[..keep.index(bytes.len())];
        prop_assert!(context.state_write(0, part, cut).is_err());
        prop_assert_eq!(context.pos_max(0), Some(5), "refused bytes change nothing");
    }
}
