//! The tool `cache`: what is stored, in which tier, how large, and what it saved.
//!
//! Asks `/api/cache`, `/api/savings` and, for a list of rows, `/api/cache/rows`.

use std::collections::BTreeMap;

use poncho_client::Client;
use poncho_server::CacheTier;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reading::report;
use super::schema::{reads, typed};
use crate::error::ToolError;

pub(super) const NAME: &str = "cache";

/// The most rows of an answer: models pay for every word.
const MOST_ROWS: u64 = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// How many stored rows to list, at most 100; none if it is left out.
    rows: Option<u64>,
}

/// The cache at a glance.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Cache {
    /// Stored rows; each is the state of a model after some tokens.
    rows: u64,
    /// Bytes of memory that the index needs.
    index_bytes: u64,
    tiers: Vec<CacheTier>,
    /// What the cache saved, by model, over all days that are kept.
    savings: Vec<Saved>,
    /// The first of those days.
    since: Option<String>,
    /// The rows that were asked for, by key.
    listed: Vec<Row>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Saved {
    model: String,
    requests: u64,
    /// Prompt tokens that came from the cache.
    cached_tokens: u64,
    /// Prompt tokens that were computed.
    new_tokens: u64,
    /// An estimate: the time that computing the cached tokens would have taken, less that of restoring them.
    saved_seconds: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Row {
    key: String,
    tokens: u64,
    tiers: Vec<String>,
    bytes: u64,
    hits: Option<u64>,
    /// Seconds since 1970.
    created: u64,
    /// Why it was saved.
    reason: String,
    /// Its first words, if it is yours and its model is loaded.
    text: Option<String>,
}

/// `/api/cache`, as far as it is read.
#[derive(Deserialize)]
struct Report {
    rows: u64,
    index_bytes: u64,
    tiers: Vec<CacheTier>,
}

/// `/api/savings`, the newest day first.
#[derive(Deserialize)]
struct Savings {
    days: Vec<Day>,
}

#[derive(Deserialize)]
struct Day {
    day: String,
    models: Vec<DaySums>,
}

#[derive(Deserialize)]
struct DaySums {
    model: String,
    requests: u64,
    cached_tokens: u64,
    new_tokens: u64,
    saved_seconds: Option<f64>,
}

/// `/api/cache/rows`, as far as it is read.
#[derive(Deserialize)]
struct Rows {
    rows: Vec<Row>,
}

pub(super) fn tool() -> Tool {
    let description = "Shows the prompt cache of the Poncho server: rows and bytes of each tier, its limits and health, \
        and the tokens and seconds that it saved for each model.";
    typed::<Arguments, Cache>(NAME, description, reads("Prompt cache"))
}

pub(super) async fn call(client: &Client, asked: Arguments) -> Result<Cache, ToolError> {
    let listed = match asked.rows.unwrap_or(0) {
        0 => Vec::new(),
        count @ 1..=MOST_ROWS => report::<Rows>(client, &format!("/api/cache/rows?limit={count}")).await?.rows,
        count => {
            let reason = format!("rows is {count} and may be at most {MOST_ROWS}");
            return Err(ToolError::Arguments { reason });
        }
    };
    let Report { rows, index_bytes, tiers } = report(client, "/api/cache").await?;
    let Savings { days } = report(client, "/api/savings").await?;
    let since = days.last().map(|day| day.day.clone());
    Ok(Cache { rows, index_bytes, tiers, savings: summed(days), since, listed })
}

fn summed(days: Vec<Day>) -> Vec<Saved> {
    let mut all: BTreeMap<String, Saved> = BTreeMap::new();
    for DaySums { model, requests, cached_tokens, new_tokens, saved_seconds } in
        days.into_iter().flat_map(|day| day.models)
    {
        let empty = Saved { model: model.clone(), requests: 0, cached_tokens: 0, new_tokens: 0, saved_seconds: None };
        let sum = all.entry(model).or_insert(empty);
        sum.requests = sum.requests.saturating_add(requests);
        sum.cached_tokens = sum.cached_tokens.saturating_add(cached_tokens);
        sum.new_tokens = sum.new_tokens.saturating_add(new_tokens);
        sum.saved_seconds = match (sum.saved_seconds, saved_seconds) {
            (None, None) => None,
            (sum, more) => Some(sum.unwrap_or(0.0) + more.unwrap_or(0.0)),
        };
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_summed_by_model() {
        let sums = |model: &str, cached_tokens: u64, saved_seconds: Option<f64>| DaySums {
            model: model.to_owned(),
            requests: 1,
            cached_tokens,
            new_tokens: 1,
            saved_seconds,
        };
        let day = |models: Vec<DaySums>| Day { day: "2026-01-02".to_owned(), models };
        let summed = summed(vec![
            day(vec![sums("a", 5, Some(1.5)), sums("b", 7, None)]),
            day(vec![sums("a", 6, Some(0.5)), sums("c", u64::MAX, None)]),
            day(vec![sums("c", 1, Some(2.0))]),
        ]);
        let shown: Vec<_> = summed.iter().map(|sum| (&*sum.model, sum.cached_tokens, sum.saved_seconds)).collect();
        assert_eq!(shown, [("a", 11, Some(2.0)), ("b", 7, None), ("c", u64::MAX, Some(2.0))]);
    }
}
