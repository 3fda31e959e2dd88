//! What a reply measures while it grows: when it was submitted, started, drawn, and how it ended.
//!
//! Owned by a `Reply`. Nothing is shared and nothing is locked before the end; then the metrics, one log line and the
//! spans of the trace are written, once, also for a reply to a client that disconnected. The log line has names and numbers,
//! never a word of a prompt or a reply.

use std::sync::Arc;
use std::time::Duration;

use poncho_api::{Completion, FinishReason};
use tokio::time::Instant;

use crate::error::ApiError;
use crate::telemetry::metrics::histogram::Histogram;
use crate::telemetry::metrics::{Measured, Metrics, Outcome};
use crate::telemetry::traces::scope::Scope;
use crate::telemetry::traces::{Attribute, Step};

/// See the module.
pub(crate) struct ReplyTimes {
    metrics: Arc<Metrics>,
    scope: Option<Arc<Scope>>,
    model: String,
    /// When the request was there.
    arrived: Instant,
    /// When the engine got it.
    submitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Instant,
    gaps: Histogram,
    is_over: bool,
}

impl ReplyTimes {
    /// A reply to a request that arrived and was submitted then.
    pub(crate) fn begin(metrics: Arc<Metrics>, model: &str, arrived: Instant, submitted: Instant) -> Self {
        Self {
            metrics,
            scope: Scope::current(),
            model: model.to_owned(),
            arrived,
            submitted,
            started: None,
            first_token: None,
            last_token: submitted,
            gaps: Histogram::default(),
            is_over: false,
        }
    }

    /// When the request was there.
    pub(crate) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// It has its sequence.
    pub(crate) fn started(&mut self) {
        self.started = Some(Instant::now());
    }

    /// Tokens came.
    pub(crate) fn tokens(&mut self, count: usize) {
        (0..count).for_each(|_| self.token());
    }

    fn token(&mut self) {
        let now = Instant::now();
        if self.first_token.is_none() {
            self.first_token = Some(now);
        } else {
            self.gaps.observe(now - self.last_token);
        }
        self.last_token = now;
    }

    /// The engine's last word was good.
    pub(crate) fn finished(&mut self, completion: &Completion) {
        let first_token = self.first_token.map(|first| first - self.arrived);
        let total = self.arrived.elapsed();
        let measured = Measured { completion, first_token, inter_token: &self.gaps, total };
        self.metrics.reply_finished(&self.model, &measured);
        let outcome = match completion.finish_reason {
            FinishReason::Stop => Outcome::Stop,
            FinishReason::Length => Outcome::Length,
            FinishReason::Cancelled => Outcome::Cancelled,
        };
        tracing::info!(
            request = self.scope.as_ref().map(|scope| scope.id.as_str()),
            model = self.model,
            hit = completion.hit.as_str(),
            outcome = outcome.as_str(),
            prompt = completion.prompt_tokens,
            read = completion.cache_delta.read,
            generated = completion.completion_tokens,
            queue_us = micros(completion.queue_time),
            restore_us = micros(completion.restore_time),
            first_token_us = first_token.map(micros),
            total_us = micros(total),
            "replied"
        );
        self.trace_finished(completion);
        self.over(outcome);
    }

    /// It ended with an error.
    pub(crate) fn failed(&mut self, error: &ApiError) {
        tracing::info!(
            request = self.scope.as_ref().map(|scope| scope.id.as_str()),
            model = self.model,
            outcome = Outcome::Failed.as_str(),
            code = error.code(),
            total_us = micros(self.arrived.elapsed()),
            "replied"
        );
        self.trace_unfinished(Outcome::Failed);
        self.over(Outcome::Failed);
    }

    fn over(&mut self, outcome: Outcome) {
        self.is_over = true;
        self.metrics.reply_over(&self.model, outcome);
    }

    /// The steps as the engine measured them.
    fn trace_finished(&self, completion: &Completion) {
        let Some(trace) = self.scope.as_ref().and_then(|scope| scope.trace.as_ref()) else { return };
        trace.step(Step::Receive, trace.began(), self.submitted, Vec::new());
        let admitted = self.submitted + completion.queue_time;
        let restored = admitted + completion.restore_time;
        let read = self.submitted + completion.prefill_time;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let model = Attribute::text("gen_ai.request.model", &self.model);
        trace.step(Step::Queue, self.submitted, admitted, vec![model.clone()]);
        let restoring = vec![
            model.clone(),
            Attribute::text("poncho.hit", completion.hit.as_str()),
            Attribute::number("poncho.read_tokens", count(completion.cache_delta.read)),
        ];
        trace.step(Step::Restore, admitted, restored, restoring);
        let reading =
            vec![model.clone(), Attribute::number("gen_ai.usage.input_tokens", count(completion.prompt_tokens))];
        trace.step(Step::Prefill, restored, read.max(restored), reading);
        let writing = vec![
            model,
            Attribute::number("gen_ai.usage.output_tokens", count(completion.completion_tokens)),
            Attribute::text("gen_ai.response.finish_reason", completion.finish_reason.as_str()),
        ];
        trace.step(Step::Decode, read, read + completion.generation_time, writing);
    }

    /// The steps as far as they were seen here.
    fn trace_unfinished(&self, outcome: Outcome) {
        let Some(trace) = self.scope.as_ref().and_then(|scope| scope.trace.as_ref()) else { return };
        let now = Instant::now();
        trace.step(Step::Receive, trace.began(), self.submitted, Vec::new());
        let steps = [
            (Step::Queue, Some(self.submitted), self.started),
            (Step::Prefill, self.started, self.first_token),
            (Step::Decode, self.first_token, None),
        ];
        for (step, from, until) in steps {
            let Some(from) = from else { return };
            let mut attributes = vec![Attribute::text("gen_ai.request.model", &self.model)];
            if until.is_none() {
                attributes.push(Attribute::text("poncho.outcome", outcome.as_str()));
            }
            trace.step(step, from, until.unwrap_or(now), attributes);
        }
    }
}

impl Drop for ReplyTimes {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.trace_unfinished(Outcome::Abandoned);
        self.over(Outcome::Abandoned);
    }
}

/// Microseconds as a number that fits everywhere.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
