//! A running server at one moment, from four of its pages.
//!
//! `take` fetches, `read` is pure. The server may be of another version: missing facts are empty, and only a server that
//! cannot be reached is an error.

use std::collections::BTreeMap;
use std::time::Instant;

use poncho_client::Client;
use poncho_terminal::{now, printable_line};
use serde_json::Value;

use crate::client::Loaded;
use crate::client::prometheus::Page;

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) at: Instant,
    pub(crate) models: Vec<ModelFacts>,
    pub(crate) tiers: Vec<TierFacts>,
    /// Requests served, by hit kind.
    pub(crate) hits: BTreeMap<String, f64>,
    pub(crate) sessions: Vec<SessionFacts>,
    /// Requests that have not ended, oldest first.
    pub(crate) requests: Vec<RequestFacts>,
    /// Requests being answered.
    pub(crate) in_flight: f64,
    /// Saves that wait for a writer.
    pub(crate) write_queue: u64,
    pub(crate) rows: u64,
}

/// A model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ModelFacts {
    pub(crate) id: String,
    pub(crate) phase: String,
    pub(crate) active: f64,
    pub(crate) pending: f64,
    pub(crate) sessions: f64,
    /// Prompt tokens computed and tokens drawn since it was loaded.
    pub(crate) prefilled: f64,
    pub(crate) generated: f64,
    /// Tokens that a step drew on average since it was loaded; `None` before the first step and without drafts.
    pub(crate) per_step: Option<f64>,
    /// Seconds that drafts saved since then; `None` without drafts.
    pub(crate) saved: Option<f64>,
    pub(crate) size: u64,
    pub(crate) context: u64,
    pub(crate) until: String,
    pub(crate) last_hit: Option<LastHit>,
}

/// How its last prompt was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LastHit {
    pub(crate) kind: String,
    pub(crate) cached: f64,
    pub(crate) prompt: f64,
}

/// A tier of the cache.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct TierFacts {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) quota: u64,
    pub(crate) rows: u64,
    /// Why it is switched off.
    pub(crate) off: Option<String>,
}

/// A session that holds a sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SessionFacts {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) tokens: u64,
}

/// A request that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestFacts {
    pub(crate) model: String,
    pub(crate) session: String,
    pub(crate) stage: String,
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    /// Prompt tokens that are cached or computed.
    pub(crate) processed: u64,
    pub(crate) generated: u64,
    pub(crate) tokens_per_second: Option<f64>,
    pub(crate) age_ms: u64,
}

impl RequestFacts {
    /// Whether its prompt is being computed.
    pub(crate) fn is_prefilling(&self) -> bool {
        self.stage == "prefilling"
    }
}

impl Snapshot {
    /// Reads a server.
    pub(crate) async fn take(client: &Client) -> anyhow::Result<Self> {
        let (metrics, cache, loaded, sessions) = tokio::join!(
            client.get_text("/metrics"),
            client.get("/api/cache"),
            client.get("/api/ps"),
            client.get("/api/sessions")
        );
        let page = Page::parse(&metrics?);
        let loaded = loaded?.and_then(|answer| serde_json::from_value(answer).ok());
        let loaded = loaded.unwrap_or(Loaded { models: Vec::new() });
        // A server of another version may have no such page.
        let sessions = sessions.ok().flatten().unwrap_or_default();
        Ok(Self::read(&page, &cache?.unwrap_or_default(), &loaded, &sessions))
    }

    fn read(page: &Page, cache: &Value, loaded: &Loaded, sessions: &Value) -> Self {
        let mut hits = BTreeMap::new();
        for sample in page.all("poncho_request_duration_seconds_count") {
            if let Some(kind) = sample.label("hit") {
                *hits.entry(printable_line(kind)).or_default() += sample.value;
            }
        }
        Self {
            at: Instant::now(),
            models: models(page, loaded),
            tiers: list(cache, "tiers").iter().map(tier).collect(),
            hits,
            sessions: list(sessions, "sessions").iter().map(session).collect(),
            requests: list(sessions, "requests").iter().map(request).collect(),
            in_flight: page.plain("poncho_http_in_flight").unwrap_or(0.0),
            write_queue: number(cache, "write_queue"),
            rows: number(cache, "rows"),
        }
    }
}

/// The models of both pages, by name.
fn models(page: &Page, loaded: &Loaded) -> Vec<ModelFacts> {
    let mut models: BTreeMap<String, ModelFacts> = BTreeMap::new();
    for sample in page.all("poncho_model_phase").filter(|sample| sample.value > 0.0) {
        if let Some((id, phase)) = sample.label("model").zip(sample.label("phase")) {
            models.insert(id.to_owned(), counted(page, id, phase));
        }
    }
    for model in &loaded.models {
        // `/api/ps` adds the tag `latest` to a name without a tag.
        let bare = model.name.strip_suffix(":latest").unwrap_or(&model.name);
        let id = if models.contains_key(bare) { bare } else { &model.name };
        let facts = models.entry(id.to_owned()).or_insert_with(|| ModelFacts {
            id: printable_line(id),
            phase: "unknown".to_owned(),
            ..ModelFacts::default()
        });
        (facts.size, facts.context, facts.until) = (model.size, model.context_length, model.until(now()));
    }
    models.into_values().collect()
}

fn counted(page: &Page, id: &str, phase: &str) -> ModelFacts {
    let value = |name: &str| page.value(&format!("poncho_model_{name}"), "model", id).unwrap_or(0.0);
    let last = page.all("poncho_model_last_hit_cached_tokens").find(|sample| sample.label("model") == Some(id));
    let steps = value("reply_steps_total");
    let is_off = page.all("poncho_model_drafts_off").any(|sample| sample.label("model") == Some(id));
    ModelFacts {
        id: printable_line(id),
        phase: printable_line(phase),
        active: value("active"),
        pending: value("pending"),
        sessions: value("sessions"),
        prefilled: value("prefilled_tokens_total"),
        generated: value("generated_tokens_total"),
        saved: page.value("poncho_model_draft_saved_seconds", "model", id).filter(|_| steps > 0.0 && !is_off),
        per_step: (steps > 0.0 && !is_off).then(|| (steps + value("accepted_tokens_total")) / steps),
        last_hit: last.map(|sample| LastHit {
            kind: printable_line(sample.label("hit").unwrap_or_default()),
            cached: sample.value,
            prompt: value("last_hit_prompt_tokens"),
        }),
        ..ModelFacts::default()
    }
}

fn tier(tier: &Value) -> TierFacts {
    TierFacts {
        name: text(tier, "tier"),
        bytes: number(tier, "bytes"),
        quota: number(tier, "quota"),
        rows: number(tier, "rows"),
        off: tier.get("off_because").and_then(Value::as_str).map(printable_line),
    }
}

fn session(session: &Value) -> SessionFacts {
    SessionFacts { id: text(session, "id"), model: text(session, "model"), tokens: number(session, "tokens") }
}

fn request(request: &Value) -> RequestFacts {
    RequestFacts {
        model: text(request, "model"),
        session: text(request, "session"),
        stage: text(request, "stage"),
        prompt: number(request, "prompt_tokens"),
        cached: number(request, "cached_tokens"),
        processed: number(request, "processed_tokens"),
        generated: number(request, "generated_tokens"),
        tokens_per_second: request.get("tokens_per_second").and_then(Value::as_f64),
        age_ms: number(request, "age_ms"),
    }
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

fn text(value: &Value, name: &str) -> String {
    printable_line(value.get(name).and_then(Value::as_str).unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Two models, one of which writes.
    pub(crate) fn example() -> Snapshot {
        let page = Page::parse(
            "poncho_http_in_flight 2\n\
             poncho_model_phase{model=\"a\",phase=\"idle\"} 0\n\
             poncho_model_phase{model=\"a\",phase=\"generating\"} 1\n\
             poncho_model_active{model=\"a\"} 2\n\
             poncho_model_pending{model=\"a\"} 3\n\
             poncho_model_generated_tokens_total{model=\"a\"} 100\n\
             poncho_model_prefilled_tokens_total{model=\"a\"} 1000\n\
             poncho_model_reply_steps_total{model=\"a\"} 40\n\
             poncho_model_accepted_tokens_total{model=\"a\"} 60\n\
             poncho_model_draft_saved_seconds{model=\"a\"} 3.21\n\
             poncho_model_last_hit_cached_tokens{model=\"a\",hit=\"partial\"} 70\n\
             poncho_model_last_hit_prompt_tokens{model=\"a\",hit=\"partial\"} 90\n\
             poncho_request_duration_seconds_count{model=\"a\",hit=\"partial\"} 4\n\
             poncho_request_duration_seconds_count{model=\"b:1\",hit=\"partial\"} 1\n\
             poncho_request_duration_seconds_count{model=\"a\",hit=\"cold\"} 2\n",
        );
        let cache = json!({"rows": 9, "write_queue": 1, "tiers": [
            {"tier": "ram", "bytes": 256, "quota": 1024, "rows": 4, "on": true, "off_because": null},
            {"tier": "disk", "bytes": 10, "quota": 0, "rows": 5, "on": false, "off_because": "no \u{1b}space"},
        ]});
        let loaded = json!({"models": [
            {"name": "a:latest", "size": 2048, "context_length": 512, "expires_at": "2318-01-01T00:00:00Z"},
            {"name": "b:1", "size": 1},
        ]});
        let sessions = json!({
            "sessions": [{"id": "s1", "model": "a", "tokens": 77, "key": "00"}],
            "requests": [
                {"model": "a", "session": null, "stage": "prefilling", "prompt_tokens": 2705, "cached_tokens": 6,
                 "new_tokens": 2699, "processed_tokens": 518, "generated_tokens": 0, "tokens_per_second": 107.5,
                 "age_ms": 4800},
                {"model": "a", "session": "s2", "stage": "generating", "prompt_tokens": 32, "cached_tokens": 31,
                 "new_tokens": 1, "processed_tokens": 32, "generated_tokens": 12, "tokens_per_second": 9.5,
                 "age_ms": 1300},
            ],
        });
        Snapshot::read(&page, &cache, &serde_json::from_value(loaded).unwrap(), &sessions)
    }

    #[test]
    fn the_pages_are_merged() {
        let seen = example();
        let [a, b] = &seen.models[..] else { panic!("{:?}", seen.models) };
        assert_eq!((a.id.as_str(), a.phase.as_str(), a.active, a.pending), ("a", "generating", 2.0, 3.0));
        assert_eq!((a.size, a.context, a.until.as_str()), (2048, 512, "forever"));
        assert_eq!((b.id.as_str(), b.phase.as_str(), b.size), ("b:1", "unknown", 1));
        assert_eq!(seen.hits, BTreeMap::from([("cold".to_owned(), 2.0), ("partial".to_owned(), 5.0)]));
        assert_eq!(seen.tiers[1].off.as_deref(), Some("no \u{241b}space"));
        assert_eq!((seen.in_flight, seen.write_queue, seen.rows, seen.sessions.len()), (2.0, 1, 9, 1));
        let [reading, writing] = &seen.requests[..] else { panic!("{:?}", seen.requests) };
        assert_eq!((reading.processed, reading.prompt, reading.tokens_per_second), (518, 2705, Some(107.5)));
        assert!(reading.is_prefilling() && !writing.is_prefilling() && writing.session == "s2");
    }

    #[test]
    fn empty_pages_are_an_empty_server() {
        let seen =
            Snapshot::read(&Page::default(), &Value::Null, &Loaded { models: Vec::new() }, &json!({"sessions": 1}));
        assert!(seen.models.is_empty() && seen.tiers.is_empty() && seen.hits.is_empty());
        assert!(seen.sessions.is_empty() && seen.requests.is_empty());
    }
}
