//! The longest stored prefix of a 100,000-token prompt among 10,000 rows, against the SHA-256 of the same tokens.
//!
//! The shapes: a long shared beginning, nothing shared, long chains. In each, one row stands for the whole prompt, so
//! that the lookup compares every token.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use poncho_cache::{Cache, CacheConfig, Needs};

use crate::Outcome;
use crate::measure::{duel, timed};
use crate::report::{Report, Target, seconds};
use crate::sample_rows::{NAMESPACE, make_folders, save, tokens, write_row};

const ROWS: u32 = 10_000;
const PROMPT: u32 = 100_000;
const ROUNDS: usize = 201;

/// Brings in the rows of a shape.
type Fill = fn(&Cache, &[u32], &Bytes) -> Outcome<()>;

pub(crate) fn lookups(report: &mut Report, folder: &Path) -> Outcome<()> {
    let prompt = tokens(1, PROMPT);
    let payload = Bytes::from_static(&[7; 64]);
    let fill = |fill: Fill| -> Outcome<(Cache, Duration)> {
        let cache = Cache::open(CacheConfig::in_memory(1 << 30))?;
        let (filled, took) = timed(|| fill(&cache, &prompt, &payload));
        filled?;
        Ok((cache, took))
    };
    let shapes: [(&str, Fill); 3] = [
        ("all rows share 50,000 tokens", shared_beginning),
        ("rows share nothing", nothing_shared),
        ("a chain of 1,000 rows", chain),
    ];
    for (name, shape) in shapes {
        let (cache, took) = fill(shape)?;
        look_up(report, &Shape { name, cache: &cache, prompt: &prompt, took, judged: true })?;
    }

    // Far beyond any conversation: a new row every ten tokens, ten thousand times. Saved one by one it would take long,
    // so it is opened from files. Every row of the plan is pinned and touched, so it is shown and not judged.
    let folder = folder.join("lookup");
    make_folders(&folder)?;
    let mut parent = None;
    for start in (0..PROMPT).step_by(10) {
        parent = Some(write_row(&folder, &prompt, parent, start..start + 10, 64)?);
    }
    let (cache, took) = timed(|| Cache::open(CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(&folder, u64::MAX) }));
    let cache = cache?;
    look_up(report, &Shape { name: "a chain of 10,000 rows", cache: &cache, prompt: &prompt, took, judged: false })?;
    drop(cache);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

fn shared_beginning(cache: &Cache, prompt: &[u32], payload: &Bytes) -> Outcome<()> {
    let shared = prompt.get(..50_000).ok_or("the prompt is too short")?;
    for number in 1..ROWS {
        save(cache, &[shared, &tokens(number + 1, 100)].concat(), payload)?;
    }
    save(cache, prompt, payload)?;
    Ok(())
}

fn nothing_shared(cache: &Cache, prompt: &[u32], payload: &Bytes) -> Outcome<()> {
    for number in 1..ROWS {
        save(cache, &own_tokens(number, 1000), payload)?;
    }
    save(cache, prompt, payload)?;
    Ok(())
}

/// Rows of 100, 200 ... tokens, each on top of the one before, and others up to the number wanted.
fn chain(cache: &Cache, prompt: &[u32], payload: &Bytes) -> Outcome<()> {
    const STEP: usize = 100;
    for end in (STEP..=prompt.len()).step_by(STEP) {
        save(cache, prompt.get(..end).ok_or("the prompt is too short")?, payload)?;
    }
    let chained = u32::try_from(prompt.len() / STEP)?;
    for number in chained..ROWS {
        save(cache, &own_tokens(number, 100), payload)?;
    }
    Ok(())
}

/// Vocabularies are small; the first token alone sets these apart.
fn own_tokens(number: u32, count: u32) -> Vec<u32> {
    let mut own = tokens(number + 1, count);
    own.insert(0, 1_000_000 + number);
    own
}

/// A filled cache and how it came to be.
struct Shape<'a> {
    name: &'static str,
    cache: &'a Cache,
    prompt: &'a [u32],
    took: Duration,
    judged: bool,
}

fn look_up(report: &mut Report, shape: &Shape<'_>) -> Outcome<()> {
    let Shape { name, cache, prompt, took, judged } = *shape;
    if cache.len() != usize::try_from(ROWS)? {
        return Err(format!("{} rows instead of {ROWS}", cache.len()).into());
    }
    let mut segments = 0;
    let ours = || {
        let (plan, time) = timed(|| cache.lookup(&NAMESPACE, black_box(prompt), Needs::ATTENTION));
        let plan = plan.ok_or("the row is gone")?;
        if plan.reach() != PROMPT {
            return Err("the prompt is not found whole".into());
        }
        segments = plan.rows().len();
        Ok(time)
    };
    let theirs = || Ok(timed(|| black_box(NAMESPACE.key(black_box(prompt)))).1);
    let outcome = duel(ROUNDS, ours, theirs)?;
    let detail = format!(
        "{segments} rows in the plan; SHA-256 of the tokens {}; filled in {}",
        seconds(outcome.theirs.median()),
        seconds(took.as_secs_f64()),
    );
    let target = |bound| if judged { Target::Below(bound) } else { Target::None };
    let milliseconds = outcome.ours.map(|seconds| seconds * 1e3);
    let title = format!("lookup of 100,000 tokens in 10,000 rows: {name}");
    report.samples(&title, "ms", &milliseconds, detail, target(1.0));
    let hashes = outcome.ratio.map(|ratio| 1.0 / ratio);
    report.samples("the same, in SHA-256 of the tokens", "times", &hashes, String::new(), target(2.0));
    let per_row = cache.index_bytes() as f64 / f64::from(ROWS);
    report.value("memory of that index for each row", "bytes", per_row, "tokens included", Target::None);
    Ok(())
}
