//! The page for Prometheus: cache counters, what the models do, and how long requests took.
//!
//! Replies hand over at their end what they measured, the outer layer counts answers, and `render` writes the page.
//! Cache and model numbers are read when the page is asked for and never copied. It must never grow with what clients
//! send: labels are models, hit kinds, outcomes, routes and statuses. docs/metrics.md lists every name; a test compares.

mod aliases;
pub(crate) mod histogram;
mod page;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use poncho_api::{CacheReport, Completion, HitTier, NodeModel, Phase, SharedTierReport, StatusReport, Tier};

use self::histogram::Histogram;
use self::page::{Kind, Page};
use super::drafts::saved_seconds;

/// What the server measured itself.
#[derive(Default)]
pub(crate) struct Metrics {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By model and hit kind.
    replies: BTreeMap<(String, &'static str), ReplySums>,
    /// By model and how replies ended.
    outcomes: BTreeMap<(String, Outcome), u64>,
    /// By route and status.
    answers: BTreeMap<(String, u16), u64>,
}

/// What replies with the same labels took.
#[derive(Default)]
struct ReplySums {
    first_token: Histogram,
    inter_token: Histogram,
    queue_wait: Histogram,
    duration: Histogram,
    cached_tokens: u64,
    /// Replies by where their prefix was found.
    tiers: BTreeMap<&'static str, u64>,
    new_tokens: u64,
}

/// How a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Stop,
    Length,
    /// Cancelled by the server.
    Cancelled,
    /// With an error.
    Failed,
    /// Its client went away.
    Abandoned,
}

impl Outcome {
    /// The one spelling.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Abandoned => "abandoned",
        }
    }
}

/// What a reply measured while it grew.
pub(crate) struct Measured<'r> {
    pub(crate) completion: &'r Completion,
    /// From its arrival to the first token; `None` if there was none.
    pub(crate) first_token: Option<Duration>,
    /// Between its tokens.
    pub(crate) inter_token: &'r Histogram,
    /// From its arrival to its end.
    pub(crate) total: Duration,
}

/// Figures of the page that are not measured here.
pub(crate) struct Surroundings<'a> {
    pub(crate) cache: &'a CacheReport,
    pub(crate) models: &'a [Arc<dyn NodeModel>],
    /// Requests in flight.
    pub(crate) in_flight: usize,
    /// Spans that reached a collector, and spans that were given up.
    pub(crate) spans: (u64, u64),
}

impl Metrics {
    /// A reply came to its end in the engine.
    pub(crate) fn reply_finished(&self, model: &str, measured: &Measured<'_>) {
        let completion = measured.completion;
        let mut state = self.lock();
        let sums = state.replies.entry((model.to_owned(), completion.hit.as_str())).or_default();
        if let Some(first_token) = measured.first_token {
            sums.first_token.observe(first_token);
        }
        sums.inter_token.add(measured.inter_token);
        sums.queue_wait.observe(completion.queue_time);
        sums.duration.observe(measured.total);
        let cached = completion.cached_tokens.min(completion.prompt_tokens);
        sums.cached_tokens += cached as u64;
        if let Some(tier) = completion.hit_tier.map(HitTier::as_str) {
            *sums.tiers.entry(tier).or_default() += 1;
        }
        sums.new_tokens += (completion.prompt_tokens - cached) as u64;
    }

    /// A reply is over, one way or another; counted once for each.
    pub(crate) fn reply_over(&self, model: &str, outcome: Outcome) {
        *self.lock().outcomes.entry((model.to_owned(), outcome)).or_default() += 1;
    }

    /// An answer left; `route` is the pattern of the path, not the path.
    pub(crate) fn answered(&self, route: &str, status: u16) {
        *self.lock().answers.entry((route.to_owned(), status)).or_default() += 1;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole page.
    pub(crate) fn render(&self, around: &Surroundings<'_>) -> String {
        let mut page = Page::default();
        page.head("poncho_build_info", Kind::Gauge, "Always 1; its label is the version.");
        page.sample("poncho_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
        page.one("poncho_http_in_flight", Kind::Gauge, "Requests being answered.", around.in_flight as u64);
        self.own_part(&mut page);
        let (sent, dropped) = around.spans;
        page.one("poncho_trace_spans_sent_total", Kind::Counter, "Spans that a collector took.", sent);
        let help = "Spans given up because the queue was full or the collector did not take them.";
        page.one("poncho_trace_spans_dropped_total", Kind::Counter, help, dropped);
        cache_part(&mut page, around.cache);
        model_part(&mut page, around.models);
        aliases::write(&mut page, around.models);
        page.into_text()
    }

    fn own_part(&self, page: &mut Page) {
        let state = self.lock();
        page.head("poncho_http_responses_total", Kind::Counter, "Answers by route and status.");
        for ((route, status), count) in &state.answers {
            page.sample("poncho_http_responses_total", &[("route", route), ("status", &status.to_string())], count);
        }
        page.head("poncho_replies_total", Kind::Counter, "Replies by how they ended.");
        for ((model, outcome), count) in &state.outcomes {
            page.sample("poncho_replies_total", &[("model", model), ("outcome", outcome.as_str())], count);
        }
        type Read = fn(&ReplySums) -> &Histogram;
        let times: [(&str, &str, Read); 4] = [
            ("time_to_first_token", "Arrival to first token.", |sums| &sums.first_token),
            ("inter_token", "Between two tokens of a reply, as the server got them.", |sums| &sums.inter_token),
            ("queue_wait", "Submission to the engine until a sequence was free.", |sums| &sums.queue_wait),
            ("request_duration", "Arrival to end of reply.", |sums| &sums.duration),
        ];
        for (name, help, read) in times {
            let family = state.replies.iter().map(|((model, hit), sums)| (model.as_str(), *hit, read(sums)));
            page.histograms(&format!("poncho_{name}_seconds"), help, family);
        }
        page.head(
            "poncho_prompt_tokens_total",
            Kind::Counter,
            "Tokens of prompts: from the cache, or new, which means computed.",
        );
        for ((model, hit), sums) in &state.replies {
            for (source, count) in [("cached", sums.cached_tokens), ("new", sums.new_tokens)] {
                let labels = [("model", model.as_str()), ("hit", *hit), ("source", source)];
                page.sample("poncho_prompt_tokens_total", &labels, count);
            }
        }
        page.head("poncho_hit_tier_total", Kind::Counter, "Replies by the tier in which a prefix was found.");
        for ((model, hit), sums) in &state.replies {
            for (tier, count) in &sums.tiers {
                let labels = [("model", model.as_str()), ("hit", *hit), ("tier", *tier)];
                page.sample("poncho_hit_tier_total", &labels, *count);
            }
        }
    }
}

fn cache_part(page: &mut Page, cache: &CacheReport) {
    for counter in &cache.counters {
        page.one(&format!("poncho_cache_{}_total", counter.name), Kind::Counter, &counter.help, counter.value);
    }
    page.head("poncho_cache_tier_bytes", Kind::Gauge, "Bytes held per tier.");
    for tier in &cache.tiers {
        page.sample("poncho_cache_tier_bytes", &[("tier", tier.tier.as_str())], tier.bytes);
    }
    page.head("poncho_cache_tier_rows", Kind::Gauge, "Rows held per tier.");
    for tier in &cache.tiers {
        page.sample("poncho_cache_tier_rows", &[("tier", tier.tier.as_str())], tier.rows);
    }
    page.head("poncho_cache_tier_on", Kind::Gauge, "1 while the tier works, 0 while it is switched off.");
    for tier in &cache.tiers {
        let is_on = match &tier.health {
            Some(health) => health.off.is_none(),
            None if tier.tier == Tier::Ram => tier.quota > 0,
            None => continue,
        };
        page.sample("poncho_cache_tier_on", &[("tier", tier.tier.as_str())], u8::from(is_on));
    }
    if let Some(shared) = &cache.shared {
        shared_part(page, shared);
    }
    if let Some(peers) = &cache.peers {
        peer_part(page, peers);
    }
    page.one("poncho_cache_write_queue", Kind::Gauge, "Saves that wait for a writer.", cache.write_queue as u64);
    page.one("poncho_cache_pinned_rows", Kind::Gauge, "Rows that are being read.", cache.pinned_rows as u64);
    page.one("poncho_cache_index_bytes", Kind::Gauge, "Memory of the index.", cache.index_bytes as u64);
}

fn shared_part(page: &mut Page, shared: &SharedTierReport) {
    let on = "1 while the shared tier is used, 0 while it is left alone.";
    page.one("poncho_shared_on", Kind::Gauge, on, u64::from(shared.on));
    page.one("poncho_shared_queue", Kind::Gauge, "Rows that wait for their upload.", shared.counts.queued_offers);
    for (name, help, value) in [
        ("found", "Lookups in the shared tier that found a row.", shared.counts.found),
        ("missed", "Lookups in the shared tier that found none.", shared.counts.missed),
        ("failures", "Calls of the shared tier that failed or came too late.", shared.counts.failures),
        ("fetched_bytes", "Bytes fetched from the shared tier.", shared.counts.fetched_bytes),
        ("uploaded_rows", "Rows uploaded to the shared tier.", shared.counts.uploaded_rows),
        ("uploaded_bytes", "Bytes uploaded to the shared tier.", shared.counts.uploaded_bytes),
        ("dropped_rows", "Rows that were not uploaded to the shared tier.", shared.counts.dropped_offers),
    ] {
        page.one(&format!("poncho_shared_{name}_total"), Kind::Counter, help, value);
    }
}

fn peer_part(page: &mut Page, peers: &SharedTierReport) {
    let on = "1 while other nodes of the cluster are known, 0 while there are none.";
    page.one("poncho_peer_on", Kind::Gauge, on, u64::from(peers.on));
    for (name, help, value) in [
        ("found", "Lookups in other nodes that found a row.", peers.counts.found),
        ("missed", "Lookups in other nodes that found none.", peers.counts.missed),
        ("failures", "Pulls from other nodes that failed or came too late.", peers.counts.failures),
        ("pulled_bytes", "Bytes pulled from other nodes.", peers.counts.fetched_bytes),
        ("served_rows", "Rows that other nodes pulled from this one.", peers.counts.uploaded_rows),
        ("served_bytes", "Bytes that other nodes pulled from this one.", peers.counts.uploaded_bytes),
        ("refused", "Requests for rows without the cluster key.", peers.counts.dropped_offers),
    ] {
        page.one(&format!("poncho_peer_{name}_total"), Kind::Counter, help, value);
    }
}

fn model_part(page: &mut Page, models: &[Arc<dyn NodeModel>]) {
    let reports: Vec<_> = models.iter().map(|model| (model.report().id.as_str(), model.status())).collect();
    page.head("poncho_model_phase", Kind::Gauge, "1 for what the model is doing.");
    for (id, report) in &reports {
        for phase in Phase::ALL {
            let labels = [("model", *id), ("phase", phase.as_str())];
            page.sample("poncho_model_phase", &labels, u8::from(report.phase == phase));
        }
    }
    type Read = fn(&StatusReport) -> u64;
    let numbers: [(&str, Kind, &str, Read); 15] = [
        ("pending", Kind::Gauge, "Requests that wait for a sequence.", |report| report.pending as u64),
        ("queue_depth", Kind::Gauge, "Requests that have not ended.", |report| report.queue_depth as u64),
        ("active", Kind::Gauge, "Requests that run.", |report| report.active as u64),
        ("sessions", Kind::Gauge, "Sessions that hold a sequence.", |report| report.sessions as u64),
        ("ticks_total", Kind::Counter, "Decode calls.", |report| report.ticks),
        ("prefilled_tokens_total", Kind::Counter, "Prompt tokens computed.", |report| report.prefilled_tokens),
        ("generated_tokens_total", Kind::Counter, "Tokens drawn.", |report| report.generated_tokens),
        ("decode_nanos_total", Kind::Counter, "Time in decode calls.", |report| report.decode_nanos),
        ("overhead_nanos_total", Kind::Counter, "Time between decode calls.", |report| report.overhead_nanos),
        ("starts_total", Kind::Counter, "Times that the worker was started.", |report| report.starts),
        ("drafted_tokens_total", Kind::Counter, "Draft tokens computed.", |report| report.drafts.drafted),
        ("accepted_tokens_total", Kind::Counter, "Draft tokens in replies.", |report| report.drafts.accepted),
        ("reply_steps_total", Kind::Counter, "Steps that drew tokens, by request.", |report| report.drafts.steps),
        ("draft_index_tokens", Kind::Gauge, "Stored tokens to draft from.", |report| report.drafts.index_tokens),
        ("draft_index_bytes", Kind::Gauge, "Memory of the index of drafts.", |report| report.drafts.index_bytes),
    ];
    for (name, kind, help, read) in numbers {
        let name = format!("poncho_model_{name}");
        page.head(&name, kind, help);
        for (id, report) in &reports {
            page.sample(&name, &[("model", id)], read(report));
        }
    }
    page.head(
        "poncho_model_draft_saved_seconds",
        Kind::Gauge,
        "Time that drafts saved all replies, less what they cost.",
    );
    for (id, report) in &reports {
        page.sample("poncho_model_draft_saved_seconds", &[("model", id)], saved_seconds(report.drafts));
    }
    page.head("poncho_model_drafts_off", Kind::Gauge, "1 for a model without drafts, by the reason.");
    for (id, report) in &reports {
        if let Some(obstacle) = report.drafts.off {
            page.sample("poncho_model_drafts_off", &[("model", id), ("reason", obstacle.as_str())], 1);
        }
    }
    let hits: Vec<_> = reports.iter().filter_map(|(id, report)| Some((*id, report.last_hit?))).collect();
    page.head(
        "poncho_model_last_hit_cached_tokens",
        Kind::Gauge,
        "Prompt tokens of the last request that came from the cache.",
    );
    for (id, hit) in &hits {
        page.sample(
            "poncho_model_last_hit_cached_tokens",
            &[("model", id), ("hit", hit.kind.as_str())],
            hit.cached_tokens,
        );
    }
    page.head("poncho_model_last_hit_prompt_tokens", Kind::Gauge, "Tokens of the last request's prompt.");
    for (id, hit) in &hits {
        page.sample("poncho_model_last_hit_prompt_tokens", &[("model", id), ("hit", hit.kind.as_str())], hit.prompt);
    }
}
