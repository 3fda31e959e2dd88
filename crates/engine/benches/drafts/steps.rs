//! Times of decode calls by the number of their rows: after a call with the same number, and after a call with one row.
//!
//! A library that prepares a call for its number of rows makes the difference. It decides whether a draft should keep the
//! number of rows of the last step.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{Backend, Batch, BatchRow, Context, ContextOptions, DecodeOutcome, ModelOptions};

/// Tokens before the first step.
const PROMPT: u32 = 2048;
const CALLS: usize = 48;

/// Prints the medians.
pub(crate) fn print(path: &Path) {
    let model = LlamaBackend.load_model(&ModelOptions::new(path)).unwrap();
    let options = ContextOptions { n_ctx: 8192, n_seq_max: 1, ..ContextOptions::default() };
    let mut context = model.new_context(&options, Arc::new(AtomicBool::new(false))).unwrap();
    for start in (0..PROMPT).step_by(512) {
        let rows = (start..start + 512).map(|pos| BatchRow { token: 1000 + pos, pos, seq: 0, want_logits: false });
        assert_eq!(context.decode(&Batch { rows: rows.collect() }), DecodeOutcome::Done);
    }
    println!(
        "| rows | the same as before, ms | after one row, ms | one row after it, ms | alternating with one more, ms |"
    );
    println!("| --- | --- | --- | --- | --- |");
    for rows in [1, 2, 3, 4, 5, 6, 7, 8, 12, 16] {
        let same: Vec<f64> = (0..CALLS).map(|_| call(&mut *context, rows)).collect();
        let (mut after, mut one, mut more) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..CALLS {
            one.push(call(&mut *context, 1));
            after.push(call(&mut *context, rows));
        }
        for _ in 0..CALLS {
            call(&mut *context, rows + 1);
            more.push(call(&mut *context, rows));
        }
        println!("| {rows} | {:.2} | {:.2} | {:.2} | {:.2} |", median(same), median(after), median(one), median(more));
    }
}

/// Milliseconds of a call with all logits; its cells are free again afterwards.
fn call(context: &mut dyn Context, rows: u32) -> f64 {
    let batch = (PROMPT..PROMPT + rows).map(|pos| BatchRow { token: 1000 + pos, pos, seq: 0, want_logits: true });
    let batch = Batch { rows: batch.collect() };
    let began = Instant::now();
    assert_eq!(context.decode(&batch), DecodeOutcome::Done);
    for row in 0..batch.rows.len() {
        assert!(context.logits(row).is_some());
    }
    let millis = began.elapsed().as_secs_f64() * 1e3;
    assert!(context.remove(0, PROMPT..u32::MAX));
    millis
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
