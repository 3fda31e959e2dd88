//! Which settings share rows, on real llama.cpp: a row that one setting wrote continues under another, on every kind of
//! memory, as its own live sequence does.

use poncho_engine::Completion;
use poncho_engine::backend::KvLayout;

use crate::llama::real::{KINDS, config, load, trace};
use crate::settings::{APART, SHARED, each_pair_shares_rows, no_pair_shares_rows, write_all};
use crate::support::memory_cache;

/// What a log probability may differ by where the order of a sum differs.
const ROUNDING: f32 = 1e-3;

/// Settings under which a sum has another order: more than one thread.
const OTHER_ORDER: [&str; 1] = ["--threads"];

fn assert_close(reply: &Completion, live: &Completion, what: &str) {
    assert_eq!(reply.generated, live.generated, "{what}");
    for (now, then) in reply.logprobs.iter().zip(&live.logprobs) {
        let (now, then) = (now.token.logprob, then.token.logprob);
        assert!((now - then).abs() < ROUNDING, "{what}: {now} instead of {then}");
    }
}

/// Everyday use 2: `run` and `serve` did not find each other's rows, nor did two values of `--parallel`. They share them
/// now, and nothing changes by it: a single conversation continues bit for bit in either layout, with any number of
/// sequences and any context size.
#[test]
fn rows_of_llama_cpp_serve_every_setting_that_leaves_the_numbers_as_they_are() {
    for kind in KINDS {
        let cache = memory_cache();
        let written = write_all(&SHARED, &config(kind, KvLayout::Unified, 1), |config| load(config, &cache), &cache);
        each_pair_shares_rows(&written, |writer, reader, reply| {
            let what = format!("{kind:?}, written with {}, read with {}", writer.by, reader.by);
            assert_close(reply, &writer.live, &what);
            if OTHER_ORDER.iter().all(|name| ![writer.by, reader.by].contains(name)) {
                assert_eq!(trace(reply), trace(&writer.live), "{what}");
            }
        });
    }
}

#[test]
fn rows_of_llama_cpp_never_serve_a_setting_that_changes_the_numbers() {
    for kind in KINDS {
        let cache = memory_cache();
        let base = config(kind, KvLayout::Unified, 1);
        let mut written = write_all(&APART, &base, |config| load(config, &cache), &cache);
        // A recurrent model has no values that lie otherwise without flash attention.
        if kind == poncho_testkit::ModelKind::Recurrent {
            written.retain(|(_, written)| written.by != "--flash-attn");
        }
        no_pair_shares_rows(&written);
    }
}
