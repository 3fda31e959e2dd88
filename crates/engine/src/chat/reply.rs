//! A reply as it grows: the worker's events in, content, thinking, tool calls and log probabilities out.
//!
//! Given to the caller as a stream. It owns the worker's stream, read without another thread or channel in between:
//! dropping it cancels the request. New text is worked out by `delta.rs`, so that the pieces always add up to a parse. It
//! must never take back what was sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use poncho_api::{
    ChatOutput, Completion, Delta, EngineError, Finish, FinishReason, Finished, ReplyEvent, Started, TokenLogprob,
};

use crate::calls::event::StreamEvent;
use crate::calls::stream::Stream;
use crate::chat::delta::Growing;
use crate::chat::turn::ReplyForm;
use crate::model::Model;

/// See the module.
pub(crate) struct Reply {
    model: Model,
    stream: Stream,
    form: ReplyForm,
    text: ReplyText,
    growing: Growing,
    /// Sees further calls begin where nobody reads pieces; what it reads counts as not yet told.
    watched: Growing,
    /// Drawn since the last event.
    tokens: Vec<u32>,
    /// Of the tokens since the last piece.
    logprobs: Vec<TokenLogprob>,
    /// Whether it was ended here, because it went on to a call too many.
    is_cut: bool,
    ended: bool,
}

impl Reply {
    pub(crate) fn new(model: Model, stream: Stream, form: ReplyForm) -> Self {
        Self {
            growing: Growing::new(form.call_prefix.clone(), form.most_calls.unwrap_or(usize::MAX)),
            watched: Growing::new(form.call_prefix.clone(), form.most_calls.unwrap_or(usize::MAX)),
            model,
            stream,
            form,
            text: ReplyText::default(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            is_cut: false,
            ended: false,
        }
    }

    /// What was drawn since the last event; nothing if there was no token and no text.
    fn piece(&mut self) -> Option<Delta> {
        let mut delta = Delta::default();
        if self.form.in_pieces {
            delta = self.new_part().unwrap_or_default();
            self.cut_further_calls();
        } else if self.form.most_calls.is_some() {
            std::mem::swap(&mut self.growing, &mut self.watched);
            let _ = self.new_part();
            self.cut_further_calls();
            std::mem::swap(&mut self.growing, &mut self.watched);
        }
        if !delta.is_silent() {
            delta.logprobs = std::mem::take(&mut self.logprobs);
        }
        delta.tokens = std::mem::take(&mut self.tokens);
        (!delta.is_silent() || !delta.tokens.is_empty()).then_some(delta)
    }

    /// Ends a reply that goes on to a call which the client did not ask for.
    fn cut_further_calls(&mut self) {
        if self.growing.has_too_many_calls() && !self.is_cut {
            self.is_cut = true;
            self.model.cancel(self.stream.id());
        }
    }

    /// Takes an event in; returns what the reader must hear of at once: the start and the end.
    fn absorb(&mut self, event: StreamEvent) -> Option<ReplyEvent> {
        match event {
            StreamEvent::Error(error) => return Some(ReplyEvent::Failed(error)),
            StreamEvent::Done(completion) => return Some(self.end(*completion)),
            StreamEvent::Started { prompt, read } => return Some(ReplyEvent::Started(Started { prompt, read })),
            StreamEvent::Token { id, logprob } => {
                self.tokens.push(id);
                self.logprobs.extend(logprob.filter(|_| !self.model.is_end_of_generation(id)));
            }
            StreamEvent::Text(text) | StreamEvent::ToolCallDelta(text) => self.text.text(&text),
            StreamEvent::ThinkingDelta(text) => self.text.thinking(&text, &self.form),
            StreamEvent::ThinkingEnd { .. } => self.text.thinking_end(&self.form),
            StreamEvent::ToolCallEnd { .. } => {}
        }
        None
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
        let mut rest = self.growing.rest(&output);
        rest.logprobs = std::mem::take(&mut self.logprobs);
        rest.tokens = std::mem::take(&mut self.tokens);
        for (call, id) in output.tool_calls.iter_mut().zip(self.growing.call_ids()) {
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

    /// What is new; `None` if it cannot be read yet, such as in the middle of a marker.
    fn new_part(&mut self) -> Option<Delta> {
        let form = &self.form;
        match &form.parser {
            Some(parser) => self.growing.more(&self.text.raw, &**parser, form),
            None => Some(self.growing.plain(&self.text.plain, &self.text.reasoning)),
        }
    }

    /// The whole reply. A text that is not what the template promises is shown as it is: the client loses nothing.
    fn parse_whole(&self, is_cut: bool) -> ChatOutput {
        let Some(parser) = &self.form.parser else { return self.text.as_content() };
        parser.parse(&self.text.raw, is_cut).unwrap_or_else(|error| {
            tracing::warn!(model = self.model.id(), %error, "the reply does not have its template's form");
            parser.parse(&self.text.raw, true).unwrap_or_else(|_| self.text.as_content())
        })
    }
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
                    // The worker's first event: nothing was taken in before it.
                    Some(started @ ReplyEvent::Started(_)) => return Poll::Ready(Some(started)),
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
