//! Reports for the api, made of what cache, files and file system say.
//!
//! Called by the host. Everything that reads a file blocks, so callers run it off the async threads.

use std::path::Path;
use std::time::Duration;

use poncho_api::{
    CacheReport, CopyCheck, Counter, EvictionSum, ModelFile, ModelFiles, ModelOptions, OwnerId, PinOutcome,
    PressureReport, RowPage, RowReport, RowTokens, SharedTierReport, TierHealth, TierReport,
};
use poncho_cache::{Cache, CheckedCopy, HitTier, Key, Pinned, RemoteRates, RemoteStatus, RowInfo};
use poncho_gguf::{self as gguf, Keep, Metadata};
use serde_json::{Number, Value};

/// Tokens of a row by which a person recognises it: the first words of a system prompt.
const FIRST_TOKENS: usize = 64;
/// Has a place of its own in the report.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// The cache at this moment.
pub(super) fn cache(cache: &Cache) -> CacheReport {
    let snapshot = cache.counters();
    let counters =
        snapshot.described().map(|(name, help, value)| Counter { name: name.to_owned(), help: help.to_owned(), value });
    let health = cache.health();
    let tiers = snapshot.tiers().map(|(tier, bytes, rows)| {
        let health = health.iter().find(|health| health.tier == tier);
        let health = health.map(|health| TierHealth { off: health.off.clone(), slow: health.slow.clone() });
        TierReport { tier, bytes, quota: cache.config().quota(tier), rows, health }
    });
    let remote = cache.remote().map(|remote| remote.reports()).unwrap_or_default();
    let remote_tier = |wanted: HitTier| {
        let found = remote.iter().find(|(tier, ..)| *tier == wanted);
        found.map(|(_, status, rates)| report_of(status.clone(), *rates))
    };
    CacheReport {
        counters: counters.collect(),
        tiers: tiers.collect(),
        rows: cache.len(),
        pinned_rows: cache.pinned_rows(),
        write_queue: cache.queue_depth(),
        index_bytes: cache.index_bytes(),
        pressure: pressure(cache),
        shared: remote_tier(HitTier::Shared),
        peers: remote_tier(HitTier::Peer),
    }
}

fn report_of(status: RemoteStatus, rates: Option<RemoteRates>) -> SharedTierReport {
    let measured = rates.and_then(|rates| rates.bytes_per_second).filter(|rate| *rate >= 1.0);
    SharedTierReport {
        location: status.location,
        on: status.available,
        last_error: status.last_error,
        counts: status.counts,
        megabyte: measured.and_then(|rate| Duration::try_from_secs_f64(1e6 / rate).ok()),
        round_trip: rates.and_then(|rates| rates.round_trip),
    }
}

fn pressure(cache: &Cache) -> PressureReport {
    let report = cache.pressure().report();
    PressureReport {
        on: cache.pressure().is_enabled(),
        samples: report.samples,
        evictions: report.evictions,
        held_back: report.held_back,
        last_sample: report.last_sample.map(|sample| (sample.used, sample.total)),
        last_action: report.last_action.map(|action| (action.wanted, action.freed)),
        last_error: report.last_error.map(|error| error.to_string()),
    }
}

/// Some rows by key, of all owners or of one.
pub(super) fn rows(cache: &Cache, owner: Option<OwnerId>, offset: usize, limit: usize) -> RowPage {
    let all = owner.map_or_else(|| cache.rows(), |owner| cache.rows_of(owner));
    let first = |key: &Key| cache.tokens_of(key).map(|tokens| tokens.into_iter().take(FIRST_TOKENS).collect());
    let page = all.iter().skip(offset).take(limit).map(|one| {
        let first = if one.meta.start == 0 { first(&one.key) } else { None };
        row(one, first.unwrap_or_default())
    });
    RowPage { total: all.len(), rows: page.collect() }
}

fn row(row: &RowInfo, first: Vec<u32>) -> RowReport {
    RowReport {
        key: row.key,
        parent: row.meta.parent,
        fingerprint: row.meta.namespace.fingerprint,
        tokens: row.meta.token_count,
        start: row.meta.start,
        children: row.children,
        tiers: row.tiers.clone(),
        pending: row.pending,
        bytes: row.bytes,
        hits: row.meta.hits,
        created: row.meta.created,
        last_used: row.meta.last_used,
        reason: row.meta.reason,
        pinned: row.pinned,
        first,
    }
}

/// The outcome of pinning a row.
pub(super) fn pinned(outcome: Pinned) -> PinOutcome {
    match outcome {
        Pinned::Yes => PinOutcome::Pinned,
        Pinned::NoRow => PinOutcome::NoRow,
        Pinned::TooLarge { limit, .. } => PinOutcome::TooLarge { limit },
        Pinned::TooMany { limit } => PinOutcome::TooMany { limit },
    }
}

/// The checks of a row's copies.
pub(super) fn checked(copies: Vec<CheckedCopy>) -> Vec<CopyCheck> {
    let check = |CheckedCopy { tier, checked_bytes, problem }| CopyCheck { tier, checked_bytes, problem };
    copies.into_iter().map(check).collect()
}

/// The tokens of a row, of any owner or of one.
pub(super) fn tokens(cache: &Cache, owner: Option<OwnerId>, key: &Key) -> Option<RowTokens> {
    let stored = cache.prompt_of(key)?;
    let is_own = owner.is_none_or(|owner| stored.owners.contains(&owner));
    is_own.then_some(RowTokens { fingerprint: stored.namespace.fingerprint, tokens: stored.tokens })
}

/// Evictions over time.
pub(super) fn evictions(cache: &Cache) -> Vec<EvictionSum> {
    let all = cache.evictions().into_iter().map(|sum| EvictionSum {
        hour: sum.hour,
        tier: sum.tier,
        cause: sum.cause,
        rows: sum.rows,
        bytes: sum.bytes,
    });
    all.collect()
}

/// What a model file says of itself.
pub(super) fn model_file(path: &Path, longest_array: usize) -> ModelFile {
    let mut file = ModelFile::default();
    for (key, value) in Metadata::open(path, &Keep::arrays_up_to(longest_array)).unwrap_or_default() {
        match &value {
            gguf::Value::Text(text) if key == CHAT_TEMPLATE => file.chat_template = Some(text.lossy().into_owned()),
            _ if key.starts_with(CHAT_TEMPLATE) => {}
            value => drop(file.metadata.insert(key, value_json(value))),
        }
    }
    file
}

fn value_json(value: &gguf::Value) -> Value {
    match value {
        gguf::Value::U8(value) => (*value).into(),
        gguf::Value::I8(value) => (*value).into(),
        gguf::Value::U16(value) => (*value).into(),
        gguf::Value::I16(value) => (*value).into(),
        gguf::Value::U32(value) => (*value).into(),
        gguf::Value::I32(value) => (*value).into(),
        gguf::Value::U64(value) => (*value).into(),
        gguf::Value::I64(value) => (*value).into(),
        // By way of its shortest text, so that 1e-5 does not become 0.000009999999747378752.
        gguf::Value::F32(value) => value.to_string().parse().ok().and_then(Number::from_f64).into(),
        gguf::Value::F64(value) => Number::from_f64(*value).into(),
        gguf::Value::Bool(value) => (*value).into(),
        gguf::Value::Text(value) => value.lossy().into(),
        // Longer than any text of a model.
        gguf::Value::LongText(_) => Value::Null,
        gguf::Value::Array(array) => array.values.iter().map(value_json).collect(),
    }
}

/// The files of a loaded model.
pub(super) fn files(options: &ModelOptions) -> ModelFiles {
    let paths = std::iter::once(&options.path).chain(&options.split_paths);
    let found: Vec<std::fs::Metadata> = paths.filter_map(|path| std::fs::metadata(path).ok()).collect();
    ModelFiles {
        bytes: found.iter().filter(|file| file.is_file()).map(std::fs::Metadata::len).sum(),
        modified: found.iter().filter_map(|file| file.modified().ok()).max(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_keep_their_type_and_their_short_form() {
        assert_eq!(value_json(&gguf::Value::F32(1e-5)).to_string(), "0.00001");
        assert_eq!(value_json(&gguf::Value::F32(f32::NAN)), Value::Null);
        let values = vec![gguf::Value::I8(-1), gguf::Value::I8(2)];
        let array = gguf::Array { element: gguf::Kind::I8, count: 2, values };
        assert_eq!(value_json(&gguf::Value::Array(Box::new(array))), json!([-1, 2]));
        assert_eq!(value_json(&gguf::Value::U64(u64::MAX)), json!(u64::MAX));
    }
}
