//! What a reply measures while it grows: when it was submitted, started, drawn, and how it ended.
//!
//! Owned by a `Reply`. Nothing is shared and nothing is locked before the end; then the metrics, one log line and the
//! spans of the trace are written, once, also for a reply to a client that disconnected. The log line has names and numbers,
//! never a word of a prompt or a reply.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use poncho_api::{Completion, FinishReason, Normalised, Started};
use tokio::time::Instant;

use crate::error::ApiError;
use crate::telemetry::metrics::histogram::Histogram;
use crate::telemetry::metrics::{Measured, Metrics, Outcome};
use crate::telemetry::record::Recorded;
use crate::telemetry::reply_line::{End, REPLY_TARGET, ReplyLine};
use crate::telemetry::savings::Savings;
use crate::telemetry::traces::Step;
use crate::telemetry::traces::scope::Scope;
use crate::telemetry::units::micros;

/// Where the figures of a reply go.
#[derive(Default)]
pub(crate) struct Sinks {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) savings: Arc<Savings>,
    /// Its place in the record of requests, if it has one.
    pub(crate) recorded: Option<Recorded>,
}

/// See the module.
pub(crate) struct ReplyTimes {
    sinks: Sinks,
    scope: Option<Arc<Scope>>,
    model: String,
    /// When the request was there.
    arrived: Instant,
    /// When the engine got it.
    submitted: Instant,
    /// When it got its sequence, and what was found of its prompt.
    started: Option<(Instant, Started)>,
    first_token: Option<Instant>,
    last_token: Instant,
    /// Tokens that came.
    seen: usize,
    gaps: Histogram,
    is_over: bool,
}

impl ReplyTimes {
    /// A reply to a request that arrived and was submitted then.
    pub(crate) fn begin(sinks: Sinks, model: &str, arrived: Instant, submitted: Instant) -> Self {
        Self {
            sinks,
            scope: Scope::current(),
            model: model.to_owned(),
            arrived,
            submitted,
            started: None,
            first_token: None,
            last_token: submitted,
            seen: 0,
            gaps: Histogram::default(),
            is_over: false,
        }
    }

    /// When the request was there.
    pub(crate) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// It has its sequence.
    pub(crate) fn started(&mut self, found: Started) {
        self.started = Some((Instant::now(), found));
        if let Some(recorded) = &self.sinks.recorded {
            recorded.started(found);
        }
    }

    /// Tokens came.
    pub(crate) fn tokens(&mut self, count: usize) {
        self.seen += count;
        (0..count).for_each(|_| self.token());
    }

    fn token(&mut self) {
        let now = Instant::now();
        if self.first_token.is_none() {
            self.first_token = Some(now);
            if let Some(recorded) = &self.sinks.recorded {
                recorded.first_token();
            }
        } else {
            self.gaps.observe(now - self.last_token);
        }
        self.last_token = now;
    }

    /// The engine's last word was good.
    pub(crate) fn finished(&mut self, completion: &Completion, normalised: &[Normalised]) {
        let first_token = self.first_token.map(|first| first - self.arrived);
        let total = self.arrived.elapsed();
        let measured = Measured { completion, first_token, inter_token: &self.gaps, total };
        self.sinks.metrics.reply_finished(&self.model, &measured);
        self.sinks.savings.add(&self.model, completion);
        let (outcome, end) = match completion.finish_reason {
            FinishReason::Stop => (Outcome::Stop, End::Finished),
            FinishReason::Length => (Outcome::Length, End::TokenLimit),
            FinishReason::Cancelled => (Outcome::Cancelled, End::Cancelled),
        };
        let cached = completion.cached_tokens.min(completion.prompt_tokens);
        let line = ReplyLine {
            model: &self.model,
            prompt: Some((completion.prompt_tokens, cached)),
            // By the engine's clock: a reply that is sent whole arrives here at its end.
            first_token: first_token.map(|_| (self.submitted - self.arrived) + completion.prefill_time),
            generated: completion.completion_tokens,
            generation_time: completion.generation_time,
            total,
            end,
        };
        tracing::info!(
            target: REPLY_TARGET,
            request = self.request(),
            model = self.model,
            hit = completion.hit.as_str(),
            outcome = outcome.as_str(),
            prompt_tokens = completion.prompt_tokens,
            cached_tokens = cached,
            new_tokens = completion.prompt_tokens - cached,
            generated_tokens = completion.completion_tokens,
            queue_us = micros(completion.queue_time),
            restore_us = micros(completion.restore_time),
            first_token_us = line.first_token.map(micros),
            total_us = micros(total),
            "{line}"
        );
        self.trace_finished(completion);
        if let Some(recorded) = &self.sinks.recorded {
            recorded.finished(completion, outcome, normalised);
        }
        self.over(outcome);
    }

    /// It ended with an error.
    pub(crate) fn failed(&mut self, error: &ApiError) {
        let (outcome, end) = match error {
            ApiError::CancelledByName => (Outcome::Cancelled, End::Cancelled),
            error => (Outcome::Failed, End::Failed(error.code())),
        };
        self.log_unfinished(outcome, end, error.code());
        self.trace_unfinished(outcome);
        self.record_unfinished(outcome, error.code());
        self.over(outcome);
    }

    fn record_unfinished(&self, outcome: Outcome, code: Option<&str>) {
        if let Some(recorded) = &self.sinks.recorded {
            recorded.cut_short(outcome, code, self.seen);
        }
    }

    /// The line of a reply without a last word of the engine: what was seen of it here.
    fn log_unfinished(&self, outcome: Outcome, end: End<'_>, code: Option<&str>) {
        let line = ReplyLine {
            model: &self.model,
            prompt: self.started.map(|(_, found)| (found.prompt, found.cached_tokens)),
            first_token: self.first_token.map(|first| first - self.arrived),
            generated: self.seen,
            generation_time: self.first_token.map_or(Duration::ZERO, |first| self.last_token - first),
            total: self.arrived.elapsed(),
            end,
        };
        tracing::info!(
            target: REPLY_TARGET,
            request = self.request(),
            model = self.model,
            outcome = outcome.as_str(),
            code,
            prompt_tokens = line.prompt.map(|(prompt, _)| prompt),
            cached_tokens = line.prompt.map(|(_, cached)| cached),
            new_tokens = line.prompt.map(|(prompt, cached)| prompt.saturating_sub(cached)),
            generated_tokens = line.generated,
            first_token_us = line.first_token.map(micros),
            total_us = micros(line.total),
            "{line}"
        );
    }

    fn request(&self) -> Option<&str> {
        self.scope.as_ref().map(|scope| scope.id.as_str())
    }

    fn over(&mut self, outcome: Outcome) {
        self.is_over = true;
        self.sinks.metrics.reply_over(&self.model, outcome);
    }

    /// The steps as the engine measured them.
    fn trace_finished(&self, completion: &Completion) {
        let Some(trace) = self.scope.as_ref().and_then(|scope| scope.trace.as_ref()) else { return };
        trace.step(Step::Receive, trace.began(), self.submitted, Vec::new());
        let admitted = self.submitted + completion.queue_time;
        let restored = admitted + completion.restore_time;
        let read = self.submitted + completion.prefill_time;
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let model = KeyValue::new("gen_ai.request.model", self.model.clone());
        trace.step(Step::Queue, self.submitted, admitted, vec![model.clone()]);
        let restoring = vec![
            model.clone(),
            KeyValue::new("poncho.hit", completion.hit.as_str()),
            KeyValue::new("poncho.cached_tokens", count(completion.cached_tokens)),
        ];
        trace.step(Step::Restore, admitted, restored, restoring);
        let reading = vec![model.clone(), KeyValue::new("gen_ai.usage.input_tokens", count(completion.prompt_tokens))];
        trace.step(Step::Prefill, restored, read.max(restored), reading);
        let writing = vec![
            model,
            KeyValue::new("gen_ai.usage.output_tokens", count(completion.completion_tokens)),
            KeyValue::new("gen_ai.response.finish_reason", completion.finish_reason.as_str()),
        ];
        trace.step(Step::Decode, read, read + completion.generation_time, writing);
    }

    /// The steps as far as they were seen here.
    fn trace_unfinished(&self, outcome: Outcome) {
        let Some(trace) = self.scope.as_ref().and_then(|scope| scope.trace.as_ref()) else { return };
        let now = Instant::now();
        let started = self.started.map(|(at, _)| at);
        trace.step(Step::Receive, trace.began(), self.submitted, Vec::new());
        let steps = [
            (Step::Queue, Some(self.submitted), started),
            (Step::Prefill, started, self.first_token),
            (Step::Decode, self.first_token, None),
        ];
        for (step, from, until) in steps {
            let Some(from) = from else { return };
            let mut attributes = vec![KeyValue::new("gen_ai.request.model", self.model.clone())];
            if until.is_none() {
                attributes.push(KeyValue::new("poncho.outcome", outcome.as_str()));
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
        self.log_unfinished(Outcome::Abandoned, End::Disconnected, None);
        self.trace_unfinished(Outcome::Abandoned);
        self.record_unfinished(Outcome::Abandoned, None);
        self.over(Outcome::Abandoned);
    }
}

/// A request was refused before its replies began.
pub(crate) fn refused(model: &str, arrived: Instant, error: &ApiError) {
    let line = ReplyLine {
        model,
        prompt: None,
        first_token: None,
        generated: 0,
        generation_time: Duration::ZERO,
        total: arrived.elapsed(),
        end: End::Failed(error.code()),
    };
    let scope = Scope::current();
    tracing::info!(
        target: REPLY_TARGET,
        request = scope.as_ref().map(|scope| scope.id.as_str()),
        model,
        outcome = Outcome::Failed.as_str(),
        code = error.code(),
        total_us = micros(line.total),
        "{line}"
    );
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::{Mutex, PoisonError};

    use poncho_api::HitKind;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Keeps every line and every field of the replies.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Log {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == REPLY_TARGET
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn event(&self, event: &Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0 += &format!("{field}={value:?} ");
        }
    }

    fn logged(work: impl FnOnce(ReplyTimes)) -> Vec<String> {
        let log = Log::default();
        let now = Instant::now();
        tracing::subscriber::with_default(log.clone(), || {
            work(ReplyTimes::begin(Sinks::default(), "stub", now, now));
        });
        let lines = log.0.lock().unwrap();
        lines.clone()
    }

    fn completion(finish_reason: FinishReason) -> Completion {
        Completion {
            reply: "secret".to_owned(),
            generated: vec![1, 2, 3],
            context_tokens: vec![1; 35],
            committed_tokens: 34,
            finish_key: None,
            hit: HitKind::Partial,
            hit_tier: None,
            cached_tokens: 31,
            new_tokens: 1,
            finish_reason,
            stop_sequence: Some("secret".to_owned()),
            queue_time: Duration::ZERO,
            restore_time: Duration::ZERO,
            prefill_time: Duration::from_millis(50),
            generation_time: Duration::from_secs(1),
            prompt_tokens: 32,
            completion_tokens: 3,
            drafts: poncho_api::DraftReport::default(),
            logprobs: Vec::new(),
        }
    }

    /// Everyday use 14: a reply had no line at the default level, and a client that left had none at any.
    #[test]
    fn every_reply_has_one_line_however_it_ends_and_no_word_of_its_text() {
        let found = Started { prompt: 32, cached_tokens: 31 };
        let finished = |reason: FinishReason| {
            logged(|mut times| {
                times.started(found);
                times.tokens(3);
                times.finished(&completion(reason), &[]);
            })
        };
        let failed = logged(|mut times| times.failed(&ApiError::field("messages", "secret")));
        let abandoned = logged(|mut times| {
            times.started(found);
            times.tokens(1);
        });
        let tokens = "31 cached + 1 new tokens, first token after ";
        let expected = [
            (finished(FinishReason::Stop), format!("{tokens}50 ms, 3 generated at 2.0 tokens/s, finished")),
            (finished(FinishReason::Length), format!("{tokens}50 ms, 3 generated at 2.0 tokens/s, token limit")),
            (finished(FinishReason::Cancelled), "cancelled by the server".to_owned()),
            (failed, "stub: failed".to_owned()),
            (abandoned, "1 generated, client disconnected".to_owned()),
        ];
        for (lines, expected) in expected {
            let [line] = &lines[..] else { panic!("one line, not {lines:?}") };
            assert!(line.contains(&expected), "{line}");
            assert!(!line.contains("secret") && line.contains("model=\"stub\""), "{line}");
        }
    }
}
