//! A reply as it grows: the worker's events in, content, thinking, tool calls and log probabilities out.
//!
//! Given to the caller as a stream. It owns the worker's stream, read without another thread or channel in between:
//! dropping it cancels the request. A chat turn's raw text is taken apart by `parse.rs`, and the pieces always add up to
//! the parse of the whole. It must never take back what was sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use poncho_api::{
    ChatOutput, Completion, Delta, EngineError, Finish, FinishReason, Finished, Progress, ReplyEvent, Started,
    TokenLogprob,
};

use crate::calls::event::StreamEvent;
use crate::calls::stream::Stream;
use crate::chat::delta::{Kind, Sent};
use crate::chat::parse::ReplyParser;
use crate::chat::turn::ReplyForm;
use crate::model::Model;

/// Where content, thinking and calls come from.
enum Source {
    /// Raw text, taken apart here.
    Raw(ReplyParser),
    /// A reply without a template: the worker's events, and those of them that are not yet sent.
    Events { all: ChatOutput, new: Delta },
}

/// See the module.
pub(crate) struct Reply {
    model: Model,
    stream: Stream,
    form: ReplyForm,
    source: Source,
    sent: Sent,
    /// Drawn since the last event.
    tokens: Vec<u32>,
    /// Random numbers that were used up so far.
    draws: u64,
    /// Of the tokens since the last piece.
    logprobs: Vec<TokenLogprob>,
    /// Whether it was ended here, because it went on to a call too many.
    is_cut: bool,
    ended: bool,
}

impl Reply {
    pub(crate) fn new(model: Model, stream: Stream, form: ReplyForm) -> Self {
        let source = match &form.parser {
            Some(parser) => Source::Raw(ReplyParser::new(Arc::clone(parser), &form.marks)),
            None => Source::Events { all: ChatOutput::default(), new: Delta::default() },
        };
        Self {
            sent: nothing_sent(&form),
            model,
            stream,
            form,
            source,
            tokens: Vec::new(),
            draws: 0,
            logprobs: Vec::new(),
            is_cut: false,
            ended: false,
        }
    }

    /// What was drawn since the last event; nothing if there was no token and no text.
    fn piece(&mut self) -> Option<Delta> {
        let mut delta = Delta::default();
        // Where nobody reads pieces, the reply is still watched for a call too many.
        if self.form.in_pieces || self.form.most_calls.is_some() {
            let new = match &mut self.source {
                Source::Raw(parser) => parser.advance(&mut self.sent),
                Source::Events { new, .. } => std::mem::take(new),
            };
            self.cut_further_calls();
            if self.form.in_pieces {
                delta = new;
            }
        }
        if !delta.is_silent() {
            delta.logprobs = std::mem::take(&mut self.logprobs);
        }
        delta.tokens = std::mem::take(&mut self.tokens);
        delta.draws = self.draws;
        (!delta.is_silent() || !delta.tokens.is_empty()).then_some(delta)
    }

    /// Ends a reply that goes on to a call which the client did not ask for.
    fn cut_further_calls(&mut self) {
        if self.sent.has_too_many_calls() && !self.is_cut {
            self.is_cut = true;
            self.model.cancel(self.stream.id());
        }
    }

    /// Takes an event in; returns what the reader must hear of at once: the start, how far the prompt is read, and the
    /// end.
    fn absorb(&mut self, event: StreamEvent) -> Option<ReplyEvent> {
        match event {
            StreamEvent::Error(error) => return Some(ReplyEvent::Failed(error)),
            StreamEvent::Done(completion) => return Some(self.end(*completion)),
            StreamEvent::Started { prompt, cached_tokens } => {
                return Some(ReplyEvent::Started(Started { prompt, cached_tokens }));
            }
            StreamEvent::Progress { prompt, cached_tokens, processed_tokens } if self.form.in_pieces => {
                return Some(ReplyEvent::Progress(Progress { prompt, cached_tokens, processed_tokens }));
            }
            StreamEvent::Progress { .. } => {}
            StreamEvent::Token { id, logprob, draws } => {
                self.tokens.push(id);
                self.draws = draws;
                self.logprobs.extend(logprob.filter(|_| !self.model.is_end_of_generation(id)));
            }
            StreamEvent::Text(text) | StreamEvent::ToolCallDelta(text) => self.take(Kind::Content, &text),
            StreamEvent::ThinkingDelta(text) => self.take(Kind::Thinking, &text),
            StreamEvent::ThinkingEnd { .. } | StreamEvent::ToolCallEnd { .. } => {}
        }
        None
    }

    fn take(&mut self, kind: Kind, text: &str) {
        let (all, new) = match &mut self.source {
            Source::Raw(parser) => return parser.push(text),
            Source::Events { all, new } => (all, new),
        };
        let (all, new) = match kind {
            Kind::Content => (&mut all.content, &mut new.content),
            Kind::Thinking => (&mut all.reasoning, &mut new.reasoning),
        };
        all.push_str(text);
        // Where nobody reads pieces, all of it comes at the end.
        if self.form.in_pieces {
            new.push_str(text);
            self.sent.append(kind, text);
        }
    }

    fn end(&mut self, mut completion: Completion) -> ReplyEvent {
        if completion.finish_reason == FinishReason::Cancelled && !self.is_cut {
            return ReplyEvent::Cancelled(Box::new(completion));
        }
        let mut output = self.parse_whole(completion.finish_reason != FinishReason::Stop);
        let most_calls = self.form.most_calls.unwrap_or(usize::MAX);
        // What was asked for is there; that the model would have gone on is not the client's concern.
        let is_cut = self.is_cut || output.tool_calls.len() > most_calls;
        output.tool_calls.truncate(most_calls);
        let own_ids = self.form.call_prefix.is_some() || output.tool_calls.iter().all(|call| call.id.is_empty());
        if !self.form.in_pieces {
            self.sent = nothing_sent(&self.form);
        }
        let mut rest = match &mut self.source {
            Source::Raw(_) => Delta::default(),
            Source::Events { new, .. } => std::mem::take(new),
        };
        rest.append(self.sent.update(&output));
        rest.logprobs = std::mem::take(&mut self.logprobs);
        rest.tokens = std::mem::take(&mut self.tokens);
        rest.draws = self.draws;
        for (call, id) in output.tool_calls.iter_mut().zip(self.sent.call_ids()) {
            call.id.clone_from(id);
        }
        if let Some(recording) = self.form.recording.as_ref().filter(|_| !is_cut) {
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
        logprobs.retain(|logprob| !self.model.is_end_of_generation(logprob.token.id));
        let normalised = std::mem::take(&mut self.form.normalised);
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
        let pieces: Vec<Vec<u8>> = generated.iter().map(|token| self.model.token_bytes(*token)).collect();
        tokens_spelling(text.as_bytes(), &pieces)
    }

    /// The whole reply. A text that is not what the template promises is shown as it is: the client loses nothing.
    fn parse_whole(&self, is_cut: bool) -> ChatOutput {
        let parser = match &self.source {
            Source::Raw(parser) => parser,
            Source::Events { all, .. } => return all.clone(),
        };
        parser.whole(is_cut).unwrap_or_else(|error| {
            tracing::warn!(model = self.model.id(), %error, "the reply does not have its template's form");
            let as_content = || ChatOutput { content: parser.raw().to_owned(), ..ChatOutput::default() };
            parser.whole(true).unwrap_or_else(|_| as_content())
        })
    }
}

fn nothing_sent(form: &ReplyForm) -> Sent {
    Sent::new(form.call_prefix.clone(), form.most_calls.unwrap_or(usize::MAX))
}

impl futures_core::Stream for Reply {
    type Item = ReplyEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        let reply = &mut *self;
        while !reply.ended {
            let Some(mut event) = ready!(reply.stream.poll_next(context)) else {
                reply.ended = true;
                return Poll::Ready(Some(ReplyEvent::Failed(EngineError::Cancelled)));
            };
            // What has piled up meanwhile becomes one piece: a slow reader does not make more work.
            loop {
                match reply.absorb(event) {
                    // They come before any token: nothing waits to be sent.
                    Some(early @ (ReplyEvent::Started(_) | ReplyEvent::Progress(_))) => {
                        return Poll::Ready(Some(early));
                    }
                    Some(last) => {
                        reply.ended = true;
                        return Poll::Ready(Some(last));
                    }
                    None => match reply.stream.try_next() {
                        Some(next) => event = next,
                        None => break,
                    },
                }
            }
            if let Some(delta) = reply.piece() {
                return Poll::Ready(Some(ReplyEvent::Delta(delta)));
            }
        }
        Poll::Ready(None)
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
}
