//! A reply as it grows: engine events in, content, thinking, tool calls and logprobs out.
//!
//! The dialects read a `Reply` piece by piece or wait for its end. It owns the engine's stream: dropping it cancels the
//! request. What is new in a piece is worked out by `delta.rs`, so that the pieces always add up to a parse. It must
//! never take back what was sent.

use std::time::Duration;

use poncho_engine::backend::ChatOutput;
use poncho_engine::{Completion, FinishReason, Stream, StreamEvent, TokenLogprob};

use crate::chat::delta::Growing;
use crate::chat::hygiene::Normalised;
use crate::chat::turn::ReplyForm;
use crate::http::error::ApiError;
use crate::models::served::ServedModel;
use crate::telemetry::timing::ReplyTimes;

/// What is new since the last piece.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<CallDelta>,
    pub(crate) logprobs: Vec<TokenLogprob>,
}

impl Delta {
    fn is_silent(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Whether there is nothing to tell at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_silent() && self.logprobs.is_empty()
    }
}

/// More of a tool call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// Its place among the calls of the reply.
    pub(crate) index: usize,
    /// Its id and the tool's name, once, when it begins.
    pub(crate) start: Option<(String, String)>,
    pub(crate) arguments: String,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

/// A reply that came to its end.
pub(crate) struct Finished {
    /// What was not yet told.
    pub(crate) rest: Delta,
    /// All of it; every call has an id.
    pub(crate) output: ChatOutput,
    pub(crate) finish: Finish,
    pub(crate) completion: Completion,
    /// Generated tokens that were thinking, without its marks.
    pub(crate) reasoning_tokens: usize,
    /// What was done to the prompt before it was rendered.
    pub(crate) normalised: Vec<Normalised>,
    /// One for each generated token but those that only end the reply.
    pub(crate) logprobs: Vec<TokenLogprob>,
}

/// What was found of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Started {
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// How many of them need not be computed.
    pub(crate) read: usize,
}

/// What a reader of a reply gets.
pub(crate) enum ReplyEvent {
    /// The request is being worked on; comes first, or not at all.
    Started(Started),
    Delta(Delta),
    Done(Box<Finished>),
    Failed(ApiError),
}

/// What a reply is made of.
pub(crate) struct NewReply {
    pub(crate) model: ServedModel,
    pub(crate) stream: Stream,
    pub(crate) form: ReplyForm,
    pub(crate) times: ReplyTimes,
    pub(crate) time_limit: Option<Duration>,
}

/// See the module.
pub(crate) struct Reply {
    facts: NewReply,
    text: ReplyText,
    growing: Growing,
    /// Drawn since the last piece.
    logprobs: Vec<TokenLogprob>,
    /// Whether it was ended here, because it went on to a call too many.
    is_cut: bool,
    ended: bool,
}

impl Reply {
    pub(crate) fn new(facts: NewReply) -> Self {
        Self {
            growing: Growing::new(facts.form.call_prefix, facts.form.most_calls.unwrap_or(usize::MAX)),
            facts,
            text: ReplyText::default(),
            logprobs: Vec::new(),
            is_cut: false,
            ended: false,
        }
    }

    /// The next piece; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<ReplyEvent> {
        while !self.ended {
            let mut event = Some(self.wait().await);
            // What has piled up meanwhile becomes one piece: a slow reader does not make more work.
            while let Some(known) = event {
                match self.absorb(known) {
                    // The engine's first event: nothing was taken in before it.
                    Some(event @ ReplyEvent::Started(_)) => return Some(event),
                    Some(last) => {
                        self.ended = true;
                        return Some(last);
                    }
                    None => event = self.facts.stream.try_next().map(Ok),
                }
            }
            let Some(mut delta) = self.new_part() else { continue };
            self.cut_further_calls();
            if !delta.is_silent() {
                delta.logprobs = std::mem::take(&mut self.logprobs);
                return Some(ReplyEvent::Delta(delta));
            }
        }
        None
    }

    /// Waits for the whole reply.
    pub(crate) async fn finish(mut self) -> Result<Finished, ApiError> {
        let most_calls = self.facts.form.most_calls;
        // Sees further calls begin. Nobody waits for pieces, so what it reads counts as not yet told.
        let mut watched = Growing::new(self.facts.form.call_prefix, most_calls.unwrap_or(usize::MAX));
        loop {
            let event = self.wait().await;
            match self.absorb(event) {
                None if most_calls.is_some() => {
                    std::mem::swap(&mut self.growing, &mut watched);
                    let _ = self.new_part();
                    self.cut_further_calls();
                    std::mem::swap(&mut self.growing, &mut watched);
                }
                None | Some(ReplyEvent::Started(_)) => {}
                Some(ReplyEvent::Done(finished)) => return Ok(*finished),
                Some(ReplyEvent::Failed(error)) => return Err(error),
                Some(ReplyEvent::Delta(_)) => return Err(ApiError::Internal { doing: "read a reply" }),
            }
        }
    }

    /// Ends a reply that goes on to a call which the client did not ask for.
    fn cut_further_calls(&mut self) {
        if self.growing.has_too_many_calls() && !self.is_cut {
            self.is_cut = true;
            self.facts.model.cancel(self.facts.stream.id());
        }
    }

    async fn wait(&mut self) -> Result<StreamEvent, ApiError> {
        let gone = ApiError::Cancelled;
        let Some(limit) = self.facts.time_limit else { return self.facts.stream.next().await.ok_or(gone) };
        match tokio::time::timeout_at(self.facts.times.arrived() + limit, self.facts.stream.next()).await {
            Ok(event) => event.ok_or(gone),
            Err(_) => Err(ApiError::Timeout { limit }),
        }
    }

    /// Takes an event in; returns what the reader must hear of at once: the start and the end.
    fn absorb(&mut self, event: Result<StreamEvent, ApiError>) -> Option<ReplyEvent> {
        match event {
            Err(error) => return Some(self.fail(error)),
            Ok(StreamEvent::Error(error)) => return Some(self.fail(error.into())),
            Ok(StreamEvent::Done(completion)) => return Some(self.end(*completion)),
            Ok(StreamEvent::Started { prompt, read }) => {
                self.facts.times.started();
                return Some(ReplyEvent::Started(Started { prompt, read }));
            }
            Ok(StreamEvent::Token { id, logprob }) => {
                self.facts.times.token();
                self.logprobs.extend(logprob.filter(|_| !self.facts.model.is_end_of_generation(id)));
            }
            Ok(StreamEvent::Text(text)) => self.text.text(&text),
            Ok(StreamEvent::ThinkingDelta(text)) => self.text.thinking(&text, &self.facts.form),
            Ok(StreamEvent::ThinkingEnd { .. }) => self.text.thinking_end(&self.facts.form),
            Ok(StreamEvent::ToolCallDelta(text)) => self.text.text(&text),
            Ok(StreamEvent::ToolCallEnd { .. }) => {}
        }
        None
    }

    fn fail(&mut self, error: ApiError) -> ReplyEvent {
        self.facts.times.failed(&error);
        ReplyEvent::Failed(error)
    }

    fn end(&mut self, mut completion: Completion) -> ReplyEvent {
        self.facts.times.finished(&completion);
        if completion.finish_reason == FinishReason::Cancelled && !self.is_cut {
            return ReplyEvent::Failed(ApiError::Cancelled);
        }
        let mut output = self.parse_whole(completion.finish_reason != FinishReason::Stop);
        let most_calls = self.facts.form.most_calls.unwrap_or(usize::MAX);
        // What was asked for is there; that the model would have gone on is not the client's concern.
        let is_cut = self.is_cut || output.tool_calls.len() > most_calls;
        output.tool_calls.truncate(most_calls);
        let own_ids = self.facts.form.call_prefix.is_some() || output.tool_calls.iter().all(|call| call.id.is_empty());
        let mut rest = self.growing.rest(&output);
        rest.logprobs = std::mem::take(&mut self.logprobs);
        for (call, id) in output.tool_calls.iter_mut().zip(self.growing.call_ids()) {
            call.id.clone_from(id);
        }
        if let Some(recording) = self.facts.form.recording.as_ref().filter(|_| !is_cut) {
            recording.keep(&output, own_ids, &completion);
        }
        let finish = match completion.finish_reason {
            FinishReason::Length if !is_cut => Finish::Length,
            FinishReason::Length => Finish::ToolCalls,
            FinishReason::Stop | FinishReason::Cancelled if output.tool_calls.is_empty() => Finish::Stop,
            FinishReason::Stop | FinishReason::Cancelled => Finish::ToolCalls,
        };
        let reasoning_tokens = self.tokens_of(&output.reasoning, &completion.generated);
        let mut logprobs = std::mem::take(&mut completion.logprobs);
        logprobs.retain(|logprob| !self.facts.model.is_end_of_generation(logprob.token.id));
        let normalised = std::mem::take(&mut self.facts.form.normalised);
        ReplyEvent::Done(Box::new(Finished {
            rest,
            output,
            finish,
            completion,
            reasoning_tokens,
            normalised,
            logprobs,
        }))
    }

    /// How many of the generated tokens spell a text.
    fn tokens_of(&self, text: &str, generated: &[u32]) -> usize {
        if text.is_empty() {
            return 0;
        }
        let pieces: Vec<Vec<u8>> = generated.iter().map(|token| self.facts.model.token_bytes(*token)).collect();
        tokens_spelling(text.as_bytes(), &pieces)
    }

    /// What is new; `None` if it cannot be read yet, such as in the middle of a marker.
    fn new_part(&mut self) -> Option<Delta> {
        let form = &self.facts.form;
        match &form.parser {
            Some(parser) => self.growing.more(&self.text.raw, &**parser, form),
            None => Some(self.growing.plain(&self.text.plain, &self.text.reasoning)),
        }
    }

    /// The whole reply. A text that is not what the template promises is shown as it is: the client loses nothing.
    fn parse_whole(&self, is_cut: bool) -> ChatOutput {
        let Some(parser) = &self.facts.form.parser else { return self.text.as_content() };
        parser.parse(&self.text.raw, is_cut).unwrap_or_else(|error| {
            tracing::warn!(model = self.facts.model.id(), %error, "the reply does not have its template's form");
            parser.parse(&self.text.raw, true).unwrap_or_else(|_| self.text.as_content())
        })
    }
}

/// How many of the pieces a text touches where it first occurs in them; all of them if it does not.
fn tokens_spelling(text: &[u8], pieces: &[Vec<u8>]) -> usize {
    let whole = pieces.concat();
    let Some(start) = whole.windows(text.len().max(1)).position(|window| window == text) else { return pieces.len() };
    let mut at = 0;
    let touched = pieces.iter().filter(|piece| {
        let from = at;
        at += piece.len();
        from < start + text.len() && at > start
    });
    touched.count()
}

/// The text as the model wrote it, put together again from what the engine told apart.
#[derive(Default)]
struct ReplyText {
    raw: String,
    /// The same without thinking.
    plain: String,
    reasoning: String,
    in_thinking: bool,
}

impl ReplyText {
    fn text(&mut self, text: &str) {
        self.raw.push_str(text);
        self.plain.push_str(text);
    }

    fn thinking(&mut self, text: &str, form: &ReplyForm) {
        self.open(form);
        self.raw.push_str(text);
        self.reasoning.push_str(text);
    }

    fn thinking_end(&mut self, form: &ReplyForm) {
        self.open(form);
        self.raw.push_str(&form.thinking_end);
        self.in_thinking = false;
    }

    fn open(&mut self, form: &ReplyForm) {
        // The parser has seen the prompt's end, so a block that was opened there is open already.
        let opened_by_prompt = form.starts_thinking && self.raw.is_empty();
        if !self.in_thinking && !opened_by_prompt {
            self.raw.push_str(&form.thinking_start);
        }
        self.in_thinking = true;
    }

    fn as_content(&self) -> ChatOutput {
        ChatOutput { content: self.plain.clone(), reasoning: self.reasoning.clone(), tool_calls: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_of_a_text_are_counted_where_it_stands() {
        let pieces = ["<think>", "h", "", "m ", "so", "</think>", "h", "m"].map(|piece| piece.as_bytes().to_vec());
        assert_eq!(tokens_spelling(b"hm so", &pieces), 4);
        assert_eq!(tokens_spelling(b"m s", &pieces), 2);
        assert_eq!(tokens_spelling(b"so</think>h", &pieces), 3);
        assert_eq!(tokens_spelling(b"nowhere", &pieces), 8);
        assert_eq!(tokens_spelling(b"x", &[]), 0);
    }

    #[test]
    fn thinking_that_the_engine_told_apart_is_put_back() {
        let form =
            ReplyForm { thinking_start: "<think>".into(), thinking_end: "</think>".into(), ..ReplyForm::default() };
        let write = |form: &ReplyForm| {
            let mut text = ReplyText::default();
            text.thinking("hm", form);
            text.thinking(" so", form);
            text.thinking_end(form);
            text.text("Yes.");
            text
        };
        assert_eq!(write(&form).raw, "<think>hm so</think>Yes.");
        let opened = ReplyForm { starts_thinking: true, ..form };
        let text = write(&opened);
        assert_eq!(text.raw, "hm so</think>Yes.");
        assert_eq!((text.as_content().content.as_str(), text.as_content().reasoning.as_str()), ("Yes.", "hm so"));
    }
}
