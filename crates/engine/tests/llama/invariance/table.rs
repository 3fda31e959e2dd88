//! The table of what changes a bit of the logits: the test beside it judges it on a processor, and the benchmark `device`
//! prints it for a GPU.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use poncho_engine::backend::{
    Batch, BatchRow, Context, ContextOptions, DecodeOutcome, FlashAttention, KvLayout, Model, Restore,
};

fn context(model: &Arc<dyn Model>, flash_attention: FlashAttention, kv: KvLayout) -> Box<dyn Context> {
    let options = ContextOptions {
        n_ctx: 512,
        n_cells: Some(2048),
        n_batch: 512,
        n_ubatch: 512,
        n_seq_max: 4,
        threads: Some(1),
        threads_batch: Some(1),
        kv,
        flash_attention,
        ..ContextOptions::default()
    };
    model.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap()
}

fn rows(tokens: &[u32], from: usize, seq: u32) -> Vec<BatchRow> {
    let position = |place: usize| u32::try_from(from + place).unwrap();
    let last = tokens.len() - 1;
    let row = |(place, token): (usize, &u32)| BatchRow {
        token: *token,
        pos: position(place),
        seq,
        want_logits: place == last,
    };
    tokens.iter().enumerate().map(row).collect()
}

fn decode(context: &mut dyn Context, rows: Vec<BatchRow>) {
    assert_eq!(context.decode(&Batch { rows }), DecodeOutcome::Done);
}

fn bits(context: &dyn Context, row: usize) -> Vec<u32> {
    context.logits(row).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

/// Reads tokens in chunks of this size; returns the logits after the last.
fn read(context: &mut dyn Context, tokens: &[u32], chunk: usize, seq: u32) -> Vec<u32> {
    let mut last = 0;
    for (number, part) in tokens.chunks(chunk).enumerate() {
        decode(context, rows(part, number * chunk, seq));
        last = part.len() - 1;
    }
    bits(context, last)
}

/// One line of the table: what changes, and whether the bits stay the same.
pub(crate) struct Line {
    pub(crate) what: &'static str,
    pub(crate) same: bool,
    /// Whether a promise stands on it.
    pub(crate) promised: bool,
}

/// Tokens that differ by number.
fn tokens_of(number: u32, count: usize) -> Vec<u32> {
    (0..u32::try_from(count).unwrap())
        .map(|position| (position * 31 + number * 101 + position * position) % 250)
        .collect()
}

/// All lines for a prompt of this length.
pub(crate) fn table(model: &Arc<dyn Model>, flash: FlashAttention, length: usize) -> Vec<Line> {
    let tokens = tokens_of(1, length);
    let token = tokens_of(2, 1);
    let other = tokens_of(3, 40);
    let fresh = |kv| context(model, flash, kv);
    let reference = |kv| {
        let mut context = fresh(kv);
        let whole = read(&mut *context, &tokens, length, 0);
        decode(&mut *context, rows(&token, length, 0));
        (whole, bits(&*context, 0))
    };
    let (unified, _) = reference(KvLayout::Unified);
    let (split, after) = reference(KvLayout::Split);
    let chunked = |chunk| read(&mut *fresh(KvLayout::Unified), &tokens, chunk, 0) == unified;
    let resident = |kv| {
        let mut context = fresh(kv);
        read(&mut *context, &other, 40, 1);
        read(&mut *context, &tokens, length, 0)
    };
    let beside = {
        let mut context = fresh(KvLayout::Split);
        read(&mut *context, &tokens, length, 0);
        read(&mut *context, &other, 40, 1);
        let mut both = rows(&token, length, 0);
        both.extend(rows(&token, 40, 1));
        decode(&mut *context, both);
        bits(&*context, 0) == after
    };
    let mixed = {
        let mut context = fresh(KvLayout::Split);
        let mut both = rows(&tokens, 0, 0);
        both.extend(rows(&other, 0, 1));
        decode(&mut *context, both);
        bits(&*context, length - 1) == split
    };
    let restored = {
        let mut context = fresh(KvLayout::Split);
        read(&mut *context, &tokens, length, 0);
        let end = u32::try_from(length).unwrap();
        let mut packed = vec![0; context.pack_size(0, 0..end).unwrap()];
        let used = context.pack_range(0, 0..end, &mut packed).unwrap();
        let mut context = fresh(KvLayout::Split);
        context.restore(Restore { seq: 2, n_tokens: end, segments: &[&packed[..used]], partial: None }).unwrap();
        decode(&mut *context, rows(&token, length, 2));
        bits(&*context, 0) == after
    };
    let line = |what, same, promised| Line { what, same, promised };
    vec![
        line("prefill in two chunks", chunked(length / 2), false),
        line("prefill in chunks of 16 rows", chunked(16), false),
        line("prefill in chunks of 2 rows", chunked(2), false),
        line("one row at a time", chunked(1), false),
        line("another sequence resident, unified KV", resident(KvLayout::Unified) == unified, false),
        line("another sequence resident, split KV", resident(KvLayout::Split) == split, true),
        line("prefill mixed with other rows, split KV", mixed, false),
        line("one decode row alone or beside another, split KV", beside, false),
        line("the same again", reference(KvLayout::Split).0 == split, true),
        line("restore into another sequence, then go on", restored, true),
    ]
}
