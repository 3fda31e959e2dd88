//! Four sequences at once on real llama.cpp: put back into another context, they go on bit for bit as the live ones do,
//! step by step in the same batches.
//!
//! On the backend's own calls, because only there a test decides which rows share a decode call; what requests do one at a
//! time, from every tier and after a restart, is in `rows.rs`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{
    Backend, Batch, BatchRow, Context, ContextOptions, DecodeOutcome, KvLayout, Model, ModelOptions, Restore, StatePart,
};
use poncho_engine::reply::sampler::argmax;
use poncho_testkit::{default_model_path, model_path};

use crate::llama::real::KINDS;
use crate::support::prompt;

const SEQUENCES: u32 = 4;
const STEPS: usize = 6;

fn context(model: &Arc<dyn Model>, kv: KvLayout) -> Box<dyn Context> {
    let options = ContextOptions {
        n_ctx: 512,
        n_cells: Some(2048),
        n_batch: 512,
        n_ubatch: 512,
        n_seq_max: SEQUENCES,
        threads: Some(1),
        threads_batch: Some(1),
        kv,
        ..ContextOptions::default()
    };
    model.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap()
}

/// What a sequence is put back from.
struct Saved {
    n_tokens: u32,
    segments: Vec<Vec<u8>>,
    partial: Option<Vec<u8>>,
}

/// As a conversation is saved: what its first turn left, and what came since.
fn save(context: &mut dyn Context, seq: u32, boundary: u32) -> Saved {
    let n_tokens = context.pos_max(seq).unwrap() + 1;
    let memory = context.info().memory;
    let mut segments = Vec::new();
    if memory.has_segments() {
        for range in [0..boundary, boundary..n_tokens] {
            let mut bytes = vec![0; context.pack_size(seq, range.clone()).unwrap()];
            let written = context.pack_range(seq, range, &mut bytes).unwrap();
            bytes.truncate(written);
            segments.push(bytes);
        }
    }
    let partial = memory.has_partial().then(|| {
        let mut bytes = vec![0; context.state_size(seq, StatePart::Partial).unwrap()];
        let written = context.state_read(seq, StatePart::Partial, &mut bytes).unwrap();
        bytes.truncate(written);
        bytes
    });
    Saved { n_tokens, segments, partial }
}

/// One decode call with a row for each sequence: the bits of all logits, and the next token of each.
fn step(context: &mut dyn Context, next: &mut [u32], positions: &mut [u32]) -> Vec<u32> {
    let rows = (0..SEQUENCES).zip(next.iter().zip(positions.iter()));
    let rows = rows.map(|(seq, (token, pos))| BatchRow { token: *token, pos: *pos, seq, want_logits: true });
    assert_eq!(context.decode(&Batch { rows: rows.collect() }), DecodeOutcome::Done);
    let mut bits = Vec::new();
    for (row, (token, position)) in next.iter_mut().zip(positions).enumerate() {
        let logits = context.logits(row).unwrap();
        bits.extend(logits.iter().map(|logit| logit.to_bits()));
        *token = argmax(logits).unwrap();
        *position += 1;
    }
    bits
}

fn resumes_together(path: &Path, kv: KvLayout, what: &str) {
    let backend: Arc<dyn Backend> = Arc::new(LlamaBackend);
    let model = backend.load_model(&ModelOptions::new(path)).unwrap();
    let mut live = context(&model, kv);
    let (mut next, mut positions) = (Vec::new(), Vec::new());
    for seq in 0..SEQUENCES {
        let tokens = prompt(seq, 60 + 17 * seq as usize);
        let last = tokens.len() - 1;
        let row = |(place, token): (usize, &u32)| BatchRow {
            token: *token,
            pos: u32::try_from(place).unwrap(),
            seq,
            want_logits: place == last,
        };
        assert_eq!(live.decode(&Batch { rows: tokens.iter().enumerate().map(row).collect() }), DecodeOutcome::Done);
        next.push(argmax(live.logits(last).unwrap()).unwrap());
        positions.push(u32::try_from(tokens.len()).unwrap());
    }
    for _ in 0..STEPS {
        step(&mut *live, &mut next, &mut positions);
    }
    let saved: Vec<Saved> = (0..SEQUENCES).map(|seq| save(&mut *live, seq, 50)).collect();
    let mut restored = context(&model, kv);
    for (seq, saved) in (0..SEQUENCES).zip(&saved) {
        let segments: Vec<&[u8]> = saved.segments.iter().map(Vec::as_slice).collect();
        let partial = saved.partial.as_deref();
        restored.restore(Restore { seq, n_tokens: saved.n_tokens, segments: &segments, partial }).unwrap();
    }
    let (mut next_too, mut positions_too) = (next.clone(), positions.clone());
    for number in 0..STEPS {
        let wanted = step(&mut *live, &mut next, &mut positions);
        let got = step(&mut *restored, &mut next_too, &mut positions_too);
        let differing = wanted.iter().zip(&got).filter(|(wanted, got)| wanted != got).count();
        assert_eq!(differing, 0, "{what} {kv:?}, step {number}");
        assert_eq!(next, next_too);
    }
}

#[test]
fn four_sequences_go_on_together_bit_for_bit() {
    for kind in KINDS {
        for kv in [KvLayout::Split, KvLayout::Unified] {
            resumes_together(&model_path(kind), kv, &format!("{kind:?}"));
        }
    }
}

#[test]
fn four_conversations_of_the_default_model_go_on_together_bit_for_bit() {
    for kv in [KvLayout::Split, KvLayout::Unified] {
        resumes_together(&default_model_path(), kv, "SmolLM2");
    }
}
