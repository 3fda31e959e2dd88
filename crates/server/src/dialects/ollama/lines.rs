//! Replies in Ollama's shape: whole answers and the lines of streams, for generate and chat alike.
//!
//! A tool call is sent when it is complete, because its arguments go out as an object. If they are not
//! an object in the end, the call was cut off and is left out: clients read the arguments as an object and would fail on anything else.

use std::time::{Duration, SystemTime};

use poncho_api::{CallDelta, Delta, Finish, Finished, TokenLogprob, TokenProbability};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::types::{CallOut, CalledOut, ChatSaid, GenerateSaid, Line, LogprobOut, MessageOut, Said, Timings, TokenOut};
use crate::dialects::openai::convert::{finite, token_text};
use crate::dialects::shared::{PonchoReport, Reporting};
use crate::http::heartbeat::Heartbeat;
use crate::http::ndjson::Lines;

/// The endpoint that replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Generate {
        /// Whether the tokens are sent back, so that the conversation can go on from them.
        tells_context: bool,
    },
}

/// See the module.
pub(crate) struct ReplyLines {
    /// The model's name as the client wrote it.
    name: String,
    endpoint: Endpoint,
    arrived: Instant,
    wants_logprobs: bool,
    reporting: Reporting,
    calls: OpenCalls,
}

/// What a line says.
#[derive(Default)]
struct Piece {
    content: String,
    thinking: String,
    calls: Vec<CallOut>,
    logprobs: Vec<LogprobOut>,
}

impl Piece {
    fn is_empty(&self) -> bool {
        self.content.is_empty() && self.thinking.is_empty() && self.calls.is_empty() && self.logprobs.is_empty()
    }
}

/// What the last line says beside that.
struct End {
    reason: &'static str,
    timings: Option<Timings>,
    context: Option<Vec<u32>>,
    poncho: Option<PonchoReport>,
}

impl ReplyLines {
    pub(crate) fn new(name: &str, endpoint: Endpoint, arrived: Instant) -> Self {
        let calls = OpenCalls::default();
        Self { name: name.to_owned(), endpoint, arrived, wants_logprobs: false, reporting: Reporting::default(), calls }
    }

    pub(crate) fn with_logprobs(self, wants_logprobs: bool) -> Self {
        Self { wants_logprobs, ..self }
    }

    pub(crate) fn with_reporting(self, reporting: Reporting) -> Self {
        Self { reporting, ..self }
    }

    /// The model's name as the client wrote it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The answer to a request that asked for nothing.
    pub(crate) fn idle(&self, reason: &'static str) -> Line<'_> {
        self.line(Piece::default(), Some(End { reason, timings: None, context: None, poncho: self.reporting.alone() }))
    }

    /// The whole answer.
    pub(crate) fn whole(&self, finished: Finished) -> Line<'_> {
        let end = self.end(&finished);
        let calls = finished.output.tool_calls.into_iter().enumerate();
        let piece = Piece {
            content: finished.output.content,
            thinking: finished.output.reasoning,
            calls: calls.filter_map(|(index, call)| call_out(index, call.id, call.name, &call.arguments)).collect(),
            logprobs: self.logprobs(&finished.logprobs),
        };
        self.line(piece, Some(end))
    }

    fn line(&self, piece: Piece, end: Option<End>) -> Line<'_> {
        let Piece { content, thinking, calls, logprobs } = piece;
        let said = match self.endpoint {
            Endpoint::Chat => {
                let message = MessageOut { role: "assistant", content, thinking, tool_calls: calls };
                Said::Chat(ChatSaid { message })
            }
            Endpoint::Generate { .. } => Said::Generate(GenerateSaid { response: content, thinking }),
        };
        let (done_reason, timings, context, poncho) = match end {
            Some(end) => (Some(end.reason), end.timings, end.context, end.poncho),
            None => (None, None, None, None),
        };
        Line {
            model: &self.name,
            created_at: timestamp(SystemTime::now()),
            said,
            done: done_reason.is_some(),
            done_reason,
            context,
            timings,
            logprobs,
            poncho,
        }
    }

    fn text(&self, piece: Piece, end: Option<End>) -> String {
        serde_json::to_string(&self.line(piece, end)).unwrap_or_default()
    }

    fn end(&self, finished: &Finished) -> End {
        let completion = &finished.completion;
        let timings = Timings {
            total_duration: nanoseconds(self.arrived.elapsed()),
            // Models are loaded before requests come.
            load_duration: 0,
            prompt_eval_count: completion.prompt_tokens,
            prompt_eval_duration: nanoseconds(completion.prefill_time),
            eval_count: completion.completion_tokens,
            eval_duration: nanoseconds(completion.generation_time),
        };
        let tells_context = self.endpoint == Endpoint::Generate { tells_context: true };
        End {
            reason: match finished.finish {
                Finish::Stop | Finish::ToolCalls => "stop",
                Finish::Length => "length",
            },
            timings: Some(timings),
            context: tells_context.then(|| completion.context_tokens.clone()),
            poncho: self.reporting.of(finished),
        }
    }

    fn logprobs(&self, logprobs: &[TokenLogprob]) -> Vec<LogprobOut> {
        let wanted = logprobs.iter().filter(|_| self.wants_logprobs);
        let written = wanted.map(|logprob| LogprobOut {
            token: token_out(&logprob.token),
            top_logprobs: logprob.top.iter().map(token_out).collect(),
        });
        written.collect()
    }
}

impl Lines for ReplyLines {
    fn waiting(&mut self, heartbeat: Heartbeat) -> String {
        let line = Line { poncho: Some(heartbeat.into()), ..self.line(Piece::default(), None) };
        serde_json::to_string(&line).unwrap_or_default()
    }

    fn delta(&mut self, delta: Delta) -> Vec<String> {
        let calls = self.calls.take(delta.calls);
        let logprobs = self.logprobs(&delta.logprobs);
        let piece = Piece { content: delta.content, thinking: delta.reasoning, calls, logprobs };
        if piece.is_empty() { Vec::new() } else { vec![self.text(piece, None)] }
    }

    fn done(&mut self, mut finished: Finished) -> Vec<String> {
        let end = self.end(&finished);
        let rest = std::mem::take(&mut finished.rest);
        let calls = finished.output.tool_calls.into_iter().enumerate().skip(self.calls.told);
        let piece = Piece {
            content: rest.content,
            thinking: rest.reasoning,
            calls: calls.filter_map(|(index, call)| call_out(index, call.id, call.name, &call.arguments)).collect(),
            logprobs: self.logprobs(&rest.logprobs),
        };
        let more = if piece.is_empty() { None } else { Some(self.text(piece, None)) };
        more.into_iter().chain([self.text(Piece::default(), Some(end))]).collect()
    }
}

/// The calls of a reply as they grow.
#[derive(Default)]
struct OpenCalls {
    /// Id, name and arguments so far.
    all: Vec<(String, String, String)>,
    /// How many have been sent.
    told: usize,
}

impl OpenCalls {
    /// Takes more of the calls in; returns those that are complete now, which a later call shows.
    fn take(&mut self, deltas: Vec<CallDelta>) -> Vec<CallOut> {
        for delta in deltas {
            if let Some((id, name)) = delta.start {
                self.all.push((id, name, String::new()));
            }
            if let Some((_, _, arguments)) = self.all.get_mut(delta.index) {
                arguments.push_str(&delta.arguments);
            }
        }
        let complete = self.all.len().saturating_sub(1);
        let mut ready = Vec::new();
        while self.told < complete {
            let Some((id, name, arguments)) = self.all.get(self.told) else { break };
            // One that cannot be parsed yet is sent with the whole reply.
            let Some(call) = call_out(self.told, id.clone(), name.clone(), arguments) else { break };
            ready.push(call);
            self.told += 1;
        }
        ready
    }
}

fn call_out(index: usize, id: String, name: String, arguments: &str) -> Option<CallOut> {
    let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
    let arguments = RawValue::from_string(arguments.to_owned()).ok().filter(|raw| raw.get().starts_with('{'))?;
    Some(CallOut { id, function: CalledOut { index, name, arguments } })
}

fn token_out(token: &TokenProbability) -> TokenOut {
    TokenOut { token: token_text(token), logprob: finite(token.logprob), bytes: token.bytes.clone() }
}

/// Nanoseconds, at least one: clients divide by them.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// The last second of the year 9999, since 1970: a year has four digits.
const LAST_DATE: Duration = Duration::from_secs(253_402_300_799);

/// A time as Ollama writes it. Files and clients name others too; those become the nearest date that can be written.
pub(crate) fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().min(LAST_DATE);
    humantime::format_rfc3339_micros(SystemTime::UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn delta(index: usize, start: Option<&str>, arguments: &str) -> CallDelta {
        let start = start.map(|name| (format!("call_{index}"), name.to_owned()));
        CallDelta { index, start, arguments: arguments.to_owned() }
    }

    fn told(calls: &[CallOut]) -> Vec<String> {
        calls.iter().map(|call| format!("{}{}", call.function.name, call.function.arguments.get())).collect()
    }

    #[test]
    fn a_call_is_told_when_the_next_one_begins() {
        let mut calls = OpenCalls::default();
        assert!(calls.take(vec![delta(0, Some("f"), "{\"a\"")]).is_empty());
        assert!(calls.take(vec![delta(0, None, ":1}")]).is_empty());
        let ready = calls.take(vec![delta(1, Some("g"), ""), delta(2, Some("h"), "{")]);
        assert_eq!(told(&ready), ["f{\"a\":1}", "g{}"]);
        assert_eq!((ready[1].function.index, calls.told), (1, 2), "the last one waits for the end");
    }

    #[test]
    fn a_call_that_cannot_be_read_waits() {
        let mut calls = OpenCalls::default();
        assert!(calls.take(vec![delta(0, Some("f"), "{\"a\":"), delta(1, Some("g"), "{}")]).is_empty());
        assert_eq!(calls.told, 0);
        for wrong in ["{", "[]", "5", "\"{}\"", "{} x"] {
            assert!(call_out(0, String::new(), String::new(), wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn times_are_written_as_clients_read_them() {
        assert_eq!(timestamp(UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_042)), "2023-11-14T22:13:20.000042Z");
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(timestamp(UNIX_EPOCH + LAST_DATE + Duration::from_secs(1)), "9999-12-31T23:59:59.000000Z");
        assert_eq!((nanoseconds(Duration::ZERO), nanoseconds(Duration::from_micros(2))), (1, 2000));
    }
}
