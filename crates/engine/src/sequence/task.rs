//! One request in flight: its tokens, how far they are computed, and how its next token is drawn.
//!
//! Owned by `Tasks`, from admission to the last event. It knows the lease of its sequence and nothing of other requests; it
//! must never touch the context.

use std::sync::Arc;
use std::time::{Duration, Instant};

use poncho_api::{RequestProgress, RequestStage};
use poncho_cache::{HitKind, HitTier, Namespace};

use crate::backend::{Grammar, GrammarError, Model, SeqId, SpecialText};
use crate::calls::event::{Completion, FinishReason, StreamEvent, TokenLogprob, TokenProbability};
use crate::calls::request::{Mode, Request, RequestId};
use crate::calls::stream::EventSender;
use crate::draft::request::RequestDrafts;
use crate::error::EngineError;
use crate::reply::logprobs::logprobs;
use crate::reply::markers::SamplingMode;
use crate::reply::output::Output;
use crate::reply::sampler::{Draw, SampleError, Sampler};
use crate::schedule::batch::{Prefill, Work};
use crate::schedule::grid::Grid;
use crate::schedule::pace::SHORT;
use crate::schedule::prefix_sharing::{LeaderState, Progress, WaitsFor};
use crate::sequence::held::Held;
use crate::sequence::slots::Lease;
use crate::shared::adapters::AdapterSet;
use crate::state::remote_fetch::Fetching;
use crate::state::restore::Restored;

/// Why a request is over.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// With its facts.
    Finished {
        /// Why.
        reason: FinishReason,
        /// The stop sequence that ended it, by its place in the request.
        stop: Option<usize>,
    },
    /// With an error.
    Failed(EngineError),
}

impl End {
    pub(crate) const CANCELLED: Self = Self::Finished { reason: FinishReason::Cancelled, stop: None };
}

/// A request that has no sequence yet.
pub(crate) struct Waiting {
    pub(crate) request: Box<Request>,
    pub(crate) grammar: Option<Box<dyn Grammar>>,
    pub(crate) events: EventSender,
    pub(crate) submitted: Instant,
    /// What is being fetched for it from the shared tier.
    pub(crate) fetched: Option<Fetched>,
}

/// A fetch from the shared tier for a request. Dropping it cancels the fetch.
pub(crate) struct Fetched {
    pub(crate) fetching: Fetching,
    /// Tokens that were known without it.
    pub(crate) known: usize,
}

/// See the module.
pub(crate) struct Task {
    pub(crate) id: RequestId,
    /// Its sequence, and how many of `tokens` that holds.
    pub(crate) lease: Lease,
    pub(crate) request: Request,
    pub(crate) events: EventSender,
    /// Prompt and drawn tokens.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// Logits that are kept for a save or for the next request; meaningless without `logits_for`.
    logits: Vec<f32>,
    /// How many tokens the sequence held when `logits` came out.
    logits_for: Option<usize>,
    /// Those after the prompt, if others came before its last save.
    prompt_logits: Vec<f32>,
    pub(crate) namespace: Namespace,
    pub(crate) adapters: Arc<AdapterSet>,
    pub(crate) hit: HitKind,
    /// Where what was there already was found.
    pub(crate) tier: Option<HitTier>,
    /// A fetch that runs beside it.
    pub(crate) fetched: Option<Fetched>,
    /// Tokens that were there already.
    pub(crate) read: usize,
    /// How much of the prompt its tenant has sent before, for a tenant that may learn of nothing else.
    pub(crate) own_reach: Option<usize>,
    /// Positions, ascending, at which the prefill pauses for a save. For models that cannot be cut.
    pub(crate) stops: Vec<usize>,
    /// Tokens held at the last save.
    pub(crate) last_save: usize,
    /// Set once the saves at the end of the prompt were made.
    pub(crate) prompt_saved: bool,
    /// Time of calls that gave way to other requests.
    pub(crate) lost: Duration,
    /// The request that computes a prefix of the prompt for this one; nothing is computed meanwhile.
    pub(crate) waits_for: Option<WaitsFor>,
    pub(crate) end: Option<End>,
    /// Its guesses at what comes next.
    pub(crate) drafts: RequestDrafts,
    generation_limit: usize,
    sampler: Sampler,
    output: Output,
    logprobs: Vec<TokenLogprob>,
    submitted: Instant,
    admitted: Instant,
    /// The time that finding and restoring its prompt took.
    pub(crate) restore_time: Duration,
    first_logits: Option<Instant>,
}

/// The parts of a new task.
pub(crate) struct NewTask {
    pub(crate) id: RequestId,
    pub(crate) lease: Lease,
    pub(crate) request: Request,
    pub(crate) events: EventSender,
    pub(crate) namespace: Namespace,
    pub(crate) adapters: Arc<AdapterSet>,
    pub(crate) sampler: Sampler,
    pub(crate) output: Output,
    pub(crate) drafts: RequestDrafts,
    pub(crate) submitted: Instant,
    /// When it got its sequence.
    pub(crate) admitted: Instant,
    pub(crate) fetched: Option<Fetched>,
}

impl Task {
    pub(crate) fn new(new: NewTask) -> Self {
        let resumed = new.request.resume.as_ref().map_or(&[][..], |resume| &resume.tokens);
        Self {
            id: new.id,
            lease: new.lease,
            prompt_len: new.request.tokens.len(),
            tokens: [&new.request.tokens, resumed].concat(),
            logits: Vec::new(),
            logits_for: None,
            prompt_logits: Vec::new(),
            namespace: new.namespace,
            adapters: new.adapters,
            hit: HitKind::Cold,
            tier: None,
            fetched: new.fetched,
            read: 0,
            own_reach: None,
            stops: Vec::new(),
            last_save: 0,
            prompt_saved: false,
            lost: Duration::ZERO,
            waits_for: None,
            end: None,
            drafts: new.drafts,
            generation_limit: 0,
            sampler: new.sampler,
            output: new.output,
            logprobs: Vec::new(),
            submitted: new.submitted,
            admitted: new.admitted,
            restore_time: Duration::ZERO,
            first_logits: None,
            events: new.events,
            request: new.request,
        }
    }

    pub(crate) fn seq(&self) -> SeqId {
        self.lease.seq()
    }

    /// How many of its tokens the sequence holds.
    pub(crate) fn n_past(&self) -> usize {
        self.lease.n_past()
    }

    /// How far it is, for requests that begin alike.
    pub(crate) fn progress(&self) -> Progress<'_> {
        Progress { tokens: &self.tokens, prompt_len: self.prompt_len, n_past: self.n_past() }
    }

    /// How it stands for requests that wait for it.
    pub(crate) fn leader_state(&self) -> LeaderState {
        match self.end {
            None => LeaderState::Running,
            Some(End::Finished { .. }) => LeaderState::Finished,
            Some(End::Failed(_)) => LeaderState::Failed,
        }
    }

    /// The tokens that stored states may cover. On a grid, generated tokens are computed one by one, as they were the
    /// first time, so a state that has them is another one.
    pub(crate) fn restorable(&self, grid: Option<Grid>) -> &[u32] {
        let end = if grid.is_some() { self.prompt_len } else { self.tokens.len() };
        self.tokens.get(..end).unwrap_or(&self.tokens)
    }

    /// Its sequence was filled with what is known of its prompt.
    pub(crate) fn restored(&mut self, restored: &Restored) {
        if self.hit == HitKind::Cold {
            self.hit = restored.hit();
        }
        (self.read, self.last_save) = (restored.n_past, restored.n_past);
        let arrived = |fetched: &Fetched| fetched.fetching.imported().filter(|_| restored.n_past > fetched.known);
        let is_stored = restored.tier.is_some_and(|tier| tier != HitTier::Sequence);
        let arrived = self.fetched.as_ref().filter(|_| is_stored).and_then(arrived);
        self.tier = arrived.map(|arrived| arrived.tier).or(restored.tier);
    }

    pub(crate) fn set_generation_limit(&mut self, limit: usize) {
        self.generation_limit = limit;
    }

    /// Tokens that may follow the one that the next step draws.
    pub(crate) fn tokens_left(&self) -> usize {
        self.generation_limit.saturating_sub(self.generated() + 1)
    }

    /// When it got its sequence.
    pub(crate) fn admitted(&self) -> Instant {
        self.admitted
    }

    /// Since it was submitted.
    pub(crate) fn waited(&self) -> Duration {
        self.submitted.elapsed()
    }

    pub(crate) fn generated(&self) -> usize {
        self.tokens.len().saturating_sub(self.prompt_len)
    }

    /// Whether the prompt is not wholly computed yet.
    pub(crate) fn is_prefilling(&self) -> bool {
        self.n_past() < self.prompt_len
    }

    /// Whether no caller waits for it.
    pub(crate) fn is_background(&self) -> bool {
        self.events.is_detached()
    }

    /// Its work for the next tick. On a grid, the prompt is read chunk by chunk, and tokens that were generated are
    /// computed one by one, as they were the first time.
    pub(crate) fn work(&self, grid: Option<Grid>) -> Work {
        let end = if grid.is_some() && self.is_prefilling() { self.prompt_len } else { self.tokens.len() };
        let remaining = end.saturating_sub(self.n_past());
        if !self.is_prefilling() && (remaining <= 1 || grid.is_some()) {
            return Work::Decode;
        }
        let pause = self.stops.iter().find(|stop| **stop > self.n_past());
        let until_pause = pause.map_or(remaining, |pause| remaining.min(pause - self.n_past()));
        Work::Prefill(Prefill { position: self.n_past(), remaining, until_pause, grid: grid.map(|grid| grid.0) })
    }

    /// Whether little of its prompt is left to compute: then it goes before long prompts.
    pub(crate) fn is_short(&self) -> bool {
        self.is_prefilling() && self.prompt_len - self.n_past() <= SHORT
    }

    /// The most of its first `count` tokens that may be saved: on a grid, a boundary within the prompt or all of it.
    pub(crate) fn savable(&self, count: usize, grid: Option<Grid>) -> usize {
        let Some(grid) = grid else { return count };
        let read = count.min(self.prompt_len);
        if read == self.prompt_len && self.logits_for == Some(read) { read } else { grid.floor(read) }
    }

    /// Whether logits of the last row are wanted when the sequence holds `n_past` tokens: at the end of what there is,
    /// and where a row will be saved.
    pub(crate) fn wants_logits_at(&self, n_past: usize) -> bool {
        n_past == self.tokens.len() || self.stops.contains(&n_past)
    }

    /// The kept logits, if they belong to the first `count` tokens.
    pub(crate) fn logits_at(&self, count: usize) -> Option<&[f32]> {
        if self.logits_for == Some(count) {
            return Some(&self.logits);
        }
        (count == self.prompt_len && !self.prompt_logits.is_empty()).then_some(self.prompt_logits.as_slice())
    }

    /// The sequence holds other tokens now than those that the kept logits belong to.
    pub(crate) fn forget_logits(&mut self) {
        self.logits_for = None;
        self.prompt_logits.clear();
    }

    /// Keeps logits that came out after `n_past` tokens.
    pub(crate) fn keep_logits(&mut self, logits: Vec<f32>) {
        self.logits = logits;
        self.logits_for = Some(self.n_past());
    }

    /// The same, from the context's own buffer.
    pub(crate) fn copy_logits(&mut self, logits: &[f32]) {
        if !self.prompt_saved && self.logits_for == Some(self.prompt_len) && self.n_past() > self.prompt_len {
            self.prompt_logits = std::mem::take(&mut self.logits);
        }
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.logits_for = Some(self.n_past());
    }

    /// Draws the next token from these logits and sends what follows from it.
    pub(crate) fn draw(&mut self, logits: &[f32], model: &dyn Model) {
        let now = Instant::now();
        self.first_logits.get_or_insert(now);
        if self.request.mode == Mode::PrefillOnly {
            self.finish(FinishReason::Length, None);
            return;
        }
        let drawn = match self.output.forced_token() {
            Some(token) => Ok(token),
            None => self.sampler.sample(
                logits,
                match self.output.sampling_mode() {
                    SamplingMode::Request => Draw::Own,
                    SamplingMode::Greedy => Draw::Greedy,
                },
            ),
        };
        let token = match drawn {
            Ok(token) => token,
            // The grammar is complete or can go nowhere: the reply ends here.
            Err(SampleError::GrammarStuck) => {
                self.finish(FinishReason::Stop, None);
                return;
            }
            Err(SampleError::GrammarTooCostly(error)) => {
                self.end = Some(End::Failed(EngineError::GrammarTooCostly { reason: error.to_string() }));
                return;
            }
            Err(error) => {
                let error = EngineError::Backend { call: "sample".to_owned(), reason: error.to_string() };
                self.end = Some(End::Failed(error));
                return;
            }
        };
        let logprob = self.request.logprobs.and_then(|top| token_logprob(model, logits, token, top));
        self.tokens.push(token);
        self.keep(token, self.generated(), logprob, model);
    }

    /// The reply begins with what was generated before: sends its events again and brings sampler and output to its end.
    /// Its log probabilities are gone with the logits.
    pub(crate) fn replay(&mut self, model: &dyn Model) {
        let Some(resume) = self.request.resume.take() else { return };
        self.sampler.skip_to(resume.draws);
        for (before, token) in resume.tokens.into_iter().enumerate() {
            if self.end.is_some() {
                // The reply was over, and its last event got lost.
                self.tokens.truncate(self.prompt_len + before);
                return;
            }
            self.keep(token, before + 1, None, model);
        }
    }

    /// Sends what follows from the token that makes `generated` of them.
    fn keep(&mut self, token: u32, generated: usize, logprob: Option<TokenLogprob>, model: &dyn Model) {
        let draws = self.sampler.draws();
        self.events.send(StreamEvent::Token { id: token, logprob: logprob.clone(), draws });
        self.logprobs.extend(logprob);
        if model.is_eog(token) && !self.request.ignore_eos {
            self.finish(FinishReason::Stop, None);
            return;
        }
        let accepted = self.sampler.accept(token);
        let stuck = accepted.is_err();
        let stop = self.output.push(token, model, &self.events);
        if let (Err(error @ GrammarError::TooCostly), None) = (accepted, stop) {
            self.end = Some(End::Failed(EngineError::GrammarTooCostly { reason: error.to_string() }));
        } else if stop.is_some() {
            self.finish(FinishReason::Stop, stop);
        } else if stuck {
            self.finish(FinishReason::Stop, None);
        } else if generated >= self.generation_limit {
            self.finish(FinishReason::Length, None);
        }
    }

    /// How the prompt was found and how much of it, as its caller may see it: nothing of what other tenants have sent.
    pub(crate) fn reported_hit(&self) -> (HitKind, usize) {
        let (hit, cached) = match self.own_reach {
            Some(0) if self.read > 0 => (HitKind::Cold, 0),
            Some(own) if own < self.read => (HitKind::Partial, own),
            _ => (self.hit, self.read),
        };
        (hit.reported(cached, self.prompt_len), cached)
    }

    /// Reports to the caller how much of the prompt is read.
    pub(crate) fn report_progress(&self) {
        let (_, cached_tokens) = self.reported_hit();
        let processed_tokens = self.processed(cached_tokens);
        self.events.send(StreamEvent::Progress { prompt: self.prompt_len, cached_tokens, processed_tokens });
    }

    /// Prompt tokens that need no more work, where the caller may know of `cached` of them.
    fn processed(&self, cached: usize) -> usize {
        let computed = self.n_past().saturating_sub(self.read);
        cached.saturating_add(computed).min(self.prompt_len)
    }

    /// How far it is, as status answers show it.
    pub(crate) fn report(&self, now: Instant) -> RequestProgress {
        let (_, cached) = self.reported_hit();
        let computed = self.n_past().saturating_sub(self.read);
        let (stage, count, since) = match self.first_logits {
            None => (RequestStage::Prefilling, computed, self.admitted + self.restore_time),
            Some(first) => (RequestStage::Generating, self.generated(), first),
        };
        let is_read = stage == RequestStage::Generating;
        RequestProgress {
            stage,
            prompt_tokens: self.prompt_len,
            cached_tokens: cached,
            processed_tokens: if is_read { self.prompt_len } else { self.processed(cached) },
            generated_tokens: self.generated(),
            tokens_per_second: rate(count, now.saturating_duration_since(since)),
        }
    }

    fn finish(&mut self, reason: FinishReason, stop: Option<usize>) {
        self.end = Some(End::Finished { reason, stop });
    }

    /// The facts of a finished request; sends what the output still held back.
    pub(crate) fn complete(
        &mut self,
        reason: FinishReason,
        stop: Option<usize>,
        finish_key: Option<poncho_cache::Key>,
        model: &dyn Model,
    ) -> Completion {
        self.output.finish(stop.is_some(), model, &self.events);
        let now = Instant::now();
        let first = self.first_logits.unwrap_or(now);
        let generated = self.tokens.iter().skip(self.prompt_len).copied().collect::<Vec<_>>();
        let (hit, cached_tokens) = self.reported_hit();
        Completion {
            reply: self.output.take_reply(),
            completion_tokens: generated.len(),
            generated,
            committed_tokens: self.n_past(),
            finish_key,
            hit,
            hit_tier: self.tier.filter(|_| cached_tokens > 0),
            cached_tokens,
            new_tokens: self.n_past().min(self.prompt_len).saturating_sub(cached_tokens),
            finish_reason: reason,
            stop_sequence: stop.and_then(|place| self.request.stop.get(place)).cloned(),
            queue_time: self.admitted.duration_since(self.submitted),
            restore_time: self.restore_time,
            prefill_time: first.duration_since(self.submitted),
            generation_time: now.duration_since(first),
            prompt_tokens: self.prompt_len,
            drafts: self.drafts.report,
            logprobs: std::mem::take(&mut self.logprobs),
            context_tokens: self.tokens.clone(),
        }
    }
}

/// Tokens per second; `None` if there were none yet.
#[expect(clippy::cast_precision_loss, reason = "counts of tokens are far below 2^52")]
fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// What a finished request leaves in its sequence; `None` if that is empty.
pub(crate) fn left_by(task: Task) -> (Lease, Option<Held>) {
    let Task { lease, tokens, namespace, logits, logits_for, request, prompt_len, .. } = task;
    let n_past = lease.n_past();
    let held = (n_past > 0).then(|| Held {
        tokens,
        n_past,
        logits: (logits_for == Some(n_past)).then_some(logits),
        on_grid: if request.exact { n_past.min(prompt_len) } else { 0 },
        namespace,
        tenant: request.tenant,
    });
    (lease, held)
}

fn token_logprob(model: &dyn Model, logits: &[f32], token: u32, top: u8) -> Option<TokenLogprob> {
    let found = logprobs(logits, token, top)?;
    let named = |ranked: crate::reply::logprobs::Ranked| {
        let mut bytes = Vec::new();
        model.token_bytes(ranked.token, SpecialText::Render, &mut bytes);
        TokenProbability { id: ranked.token, bytes, logprob: ranked.logprob }
    };
    Some(TokenLogprob { token: named(found.chosen), top: found.top.into_iter().map(named).collect() })
}
