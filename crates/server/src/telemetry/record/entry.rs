//! One request in the record, and what is shown of it.
//!
//! Written by `record.rs`, shown by `dialects/poncho/requests.rs`. Title and prompt are text of the caller: `shown` must
//! never give them to another owner.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use poncho_api::{Completion, Generate, HitTier, Normalised, PastLookup, RequestProgress, RequestStage, Started};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Submitted;
use super::opening::Opening;
use super::shown::{ShownEnd, ShownRequest, ShownState, UnderWay};
use crate::owner::Owner;
use crate::telemetry::drafts::DraftFacts;
use crate::telemetry::metrics::Outcome;
use crate::telemetry::units::milliseconds;

/// See the module.
pub(crate) struct Entry {
    pub(crate) number: u64,
    /// The number that the engine reports for it; replies to one prompt share it.
    pub(crate) label: u64,
    pub(crate) owner: Owner,
    pub(crate) model: String,
    request_id: Option<String>,
    conversation: u64,
    title: String,
    /// When it arrived.
    arrived: Instant,
    arrived_at: Duration,
    pub(super) found: Option<Started>,
    pub(super) first_token: Option<Instant>,
    pub(super) end: Option<Ended>,
    /// The prompt and about how many bytes it has, as long as there is room for it.
    pub(crate) prompt: Option<(Box<Generate>, usize)>,
    pub(super) version: u64,
    pub(crate) cancel: watch::Sender<bool>,
}

/// How a request ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    outcome: Outcome,
    code: Option<String>,
    generated: usize,
    total: Duration,
    figures: Option<Figures>,
}

/// What the engine measured.
#[derive(Debug, Clone)]
struct Figures {
    hit: &'static str,
    source: Option<HitTier>,
    prompt: usize,
    cached: usize,
    queue: Duration,
    restore: Duration,
    prefill: Duration,
    decode: Duration,
    drafts: Option<DraftFacts>,
    hygiene: Vec<Normalised>,
}

impl Ended {
    pub(super) fn finished(completion: &Completion, outcome: Outcome, normalised: &[Normalised]) -> Self {
        let before = completion.queue_time + completion.restore_time;
        let figures = Figures {
            hit: completion.hit.as_str(),
            source: completion.hit_tier,
            prompt: completion.prompt_tokens,
            cached: completion.cached_tokens.min(completion.prompt_tokens),
            queue: completion.queue_time,
            restore: completion.restore_time,
            prefill: completion.prefill_time.saturating_sub(before),
            decode: completion.generation_time,
            drafts: DraftFacts::of(completion.drafts),
            hygiene: normalised.to_vec(),
        };
        let generated = completion.completion_tokens;
        Self { outcome, code: None, generated, total: Duration::ZERO, figures: Some(figures) }
    }

    pub(super) fn cut_short(outcome: Outcome, code: Option<String>, generated: usize) -> Self {
        Self { outcome, code, generated, total: Duration::ZERO, figures: None }
    }
}

impl Entry {
    pub(super) fn new(
        number: u64,
        label: u64,
        submitted: &Submitted<'_>,
        opening: &Opening,
        cancel: watch::Sender<bool>,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            number,
            label,
            owner: submitted.owner,
            model: submitted.model.to_owned(),
            request_id: submitted.request_id.map(str::to_owned),
            conversation: opening.conversation,
            title: opening.title.clone(),
            arrived: submitted.arrived,
            arrived_at: now.saturating_sub(submitted.arrived.elapsed()),
            found: None,
            first_token: None,
            end: None,
            prompt: None,
            version: 0,
            cancel,
        }
    }

    pub(super) fn ended(&mut self, ended: Ended) {
        self.end = Some(Ended { total: self.arrived.elapsed(), ..ended });
    }

    /// Whether it has not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.end.is_none()
    }

    /// How its prompt was looked up.
    pub(crate) fn past(&self) -> PastLookup {
        let figures = self.end.as_ref().and_then(|end| end.figures.as_ref());
        let cached = figures.map(|figures| figures.cached).or(self.found.map(|found| found.cached_tokens));
        PastLookup { cached_tokens: cached.unwrap_or(0), at: self.arrived_at.as_secs() }
    }

    /// What hygiene did to it.
    pub(crate) fn hygiene(&self) -> Vec<Normalised> {
        let figures = self.end.as_ref().and_then(|end| end.figures.as_ref());
        figures.map(|figures| figures.hygiene.clone()).unwrap_or_default()
    }

    /// What is shown of it. `is_own` is whether the caller sent it; `progress` is what its model reports.
    pub(crate) fn shown(&self, is_own: bool, progress: Option<&RequestProgress>) -> ShownRequest {
        let own = |text: &str| is_own.then(|| text.to_owned());
        ShownRequest {
            id: self.number,
            request_id: self.request_id.as_deref().and_then(own),
            model: self.model.clone(),
            key: self.owner.0,
            conversation: format!("{:016x}", self.conversation),
            title: own(&self.title),
            arrived_ms: u64::try_from(self.arrived_at.as_millis()).unwrap_or(u64::MAX),
            state: match &self.end {
                Some(end) => ShownState::Ended(end.shown(self.found)),
                None => ShownState::UnderWay(self.under_way(progress)),
            },
        }
    }

    /// A request that has not ended.
    fn under_way(&self, progress: Option<&RequestProgress>) -> UnderWay {
        let generating = self.first_token.is_some();
        // The model's report is as old as its last decode call.
        let stage = progress.map_or(RequestStage::Queued, |progress| progress.stage);
        let stage = if generating { RequestStage::Generating } else { stage };
        let known = self.found.map(|found| (found.prompt, found.cached_tokens));
        let known = known.or(progress.map(|progress| (progress.prompt_tokens, progress.cached_tokens)));
        let rate = progress.filter(|progress| progress.stage == stage).and_then(|progress| progress.tokens_per_second);
        let left = progress.filter(|_| stage == RequestStage::Prefilling).zip(rate).map(|(progress, rate)| {
            let left = progress.prompt_tokens.saturating_sub(progress.processed_tokens);
            (left as f64 / rate.max(f64::MIN_POSITIVE) * 1000.0).round()
        });
        UnderWay {
            stage: stage.as_str(),
            prompt_tokens: known.map(|(prompt, _)| prompt),
            cached_tokens: known.map(|(_, cached)| cached),
            new_tokens: known.map(|(prompt, cached)| prompt.saturating_sub(cached)),
            processed_tokens: progress.map(|progress| progress.processed_tokens),
            generated_tokens: progress.map_or(0, |progress| progress.generated_tokens),
            tokens_per_second: rate.map(|rate| (rate * 10.0).round() / 10.0),
            left_ms: left.filter(|left| left.is_finite()),
            age_ms: milliseconds(self.arrived.elapsed()),
        }
    }
}

impl Ended {
    fn shown(&self, found: Option<Started>) -> ShownEnd {
        let figures = self.figures.as_ref();
        let prompt = figures.map(|figures| figures.prompt).or(found.map(|found| found.prompt));
        let cached = figures.map(|figures| figures.cached).or(found.map(|found| found.cached_tokens));
        let time = |read: fn(&Figures) -> Duration| figures.map(|figures| milliseconds(read(figures)));
        ShownEnd {
            stage: "ended",
            outcome: self.outcome.as_str(),
            error: self.code.clone(),
            prompt_tokens: prompt,
            cached_tokens: cached,
            // How far a prompt came that was given up is not known.
            new_tokens: figures.map(|figures| figures.prompt.saturating_sub(figures.cached)),
            generated_tokens: self.generated,
            hit: figures.map(|figures| figures.hit),
            source: figures.and_then(|figures| figures.source).map(HitTier::as_str),
            queue_ms: time(|figures| figures.queue),
            restore_ms: time(|figures| figures.restore),
            prefill_ms: time(|figures| figures.prefill),
            decode_ms: time(|figures| figures.decode),
            total_ms: milliseconds(self.total),
            drafts: figures.and_then(|figures| figures.drafts.clone()),
            hygiene: figures.map(|figures| figures.hygiene.clone()),
        }
    }
}
