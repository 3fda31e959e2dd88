//! What a client has heard of a reply, so that another process can go on with it.
//!
//! Kept by `surviving.rs` for each reply. After a resume the reply comes again from its start; what was heard is cut off
//! it. Nothing that was heard is ever sent again, changed or left out.

use poncho_api::{CallDelta, Delta, Finished, ReplyEvent, Resume, Started, TokenLogprob};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    wants_logprobs: bool,
    started: Option<Started>,
    tokens: Vec<u32>,
    draws: u64,
    /// How many of the tokens have their log probabilities here, and the random numbers that those took.
    safe: (usize, u64),
    content: usize,
    reasoning: usize,
    calls: Vec<HeardCall>,
    logprobs: Vec<TokenLogprob>,
    /// Log probabilities that came before the last resume; those of the stream that runs now come without them.
    logprobs_before: Vec<TokenLogprob>,
    now: Came,
}

/// A tool call that began.
#[derive(Debug)]
struct HeardCall {
    id: String,
    arguments: usize,
}

/// How much the stream that runs now has brought, heard before or not.
#[derive(Debug, Default)]
struct Came {
    is_resumed: bool,
    tokens: usize,
    content: usize,
    reasoning: usize,
    calls: Vec<usize>,
}

impl Heard {
    pub(crate) fn new(wants_logprobs: bool) -> Self {
        Self { wants_logprobs, ..Self::default() }
    }

    /// Takes an event. Returns what of it is new to the client, and whether the reply made progress.
    pub(crate) fn take(&mut self, event: ReplyEvent) -> Option<ReplyEvent> {
        match event {
            ReplyEvent::Started(started) => {
                let is_first = self.started.is_none();
                self.started.get_or_insert(started);
                is_first.then_some(ReplyEvent::Started(started))
            }
            ReplyEvent::Delta(delta) => {
                let delta = self.cut(delta);
                let is_news = !delta.is_empty() || !delta.tokens.is_empty();
                is_news.then_some(ReplyEvent::Delta(delta))
            }
            ReplyEvent::Done(mut finished) => {
                self.complete(&mut finished);
                Some(ReplyEvent::Done(finished))
            }
            other @ (ReplyEvent::Progress(_) | ReplyEvent::Cancelled(_) | ReplyEvent::Failed(_)) => Some(other),
        }
    }

    /// The reply is asked for again: where it goes on from. What is not safe is drawn again; nobody has seen it.
    pub(crate) fn resume(&mut self) -> Option<Resume> {
        if self.wants_logprobs {
            (self.tokens.len() > self.safe.0).then(|| self.tokens.truncate(self.safe.0));
            self.draws = self.safe.1;
        }
        self.logprobs_before.clone_from(&self.logprobs);
        self.now = Came { is_resumed: true, ..Came::default() };
        (!self.tokens.is_empty()).then(|| Resume { tokens: self.tokens.clone(), draws: self.draws })
    }

    fn cut(&mut self, delta: Delta) -> Delta {
        let Delta { tokens, draws, content, reasoning, calls, logprobs } = delta;
        let known = self.tokens.len().saturating_sub(self.now.tokens);
        self.now.tokens += tokens.len();
        let tokens: Vec<u32> = tokens.into_iter().skip(known).collect();
        self.tokens.extend(&tokens);
        self.draws = self.draws.max(draws);
        let content = unheard(content, &mut self.now.content, &mut self.content);
        let reasoning = unheard(reasoning, &mut self.now.reasoning, &mut self.reasoning);
        let calls: Vec<CallDelta> = calls.into_iter().filter_map(|call| self.cut_call(call)).collect();
        self.logprobs.extend(logprobs.iter().cloned());
        let delta = Delta { tokens, draws, content, reasoning, calls, logprobs };
        // Log probabilities come with the text of their tokens.
        if !delta.is_silent() || !delta.logprobs.is_empty() {
            self.safe = (self.tokens.len(), self.draws);
        }
        delta
    }

    fn cut_call(&mut self, call: CallDelta) -> Option<CallDelta> {
        let CallDelta { index, start, arguments } = call;
        if self.now.calls.len() <= index {
            self.now.calls.resize(index + 1, 0);
        }
        let mut is_new = false;
        if let Some((id, _)) = start.as_ref().filter(|_| index >= self.calls.len()) {
            self.calls.push(HeardCall { id: id.clone(), arguments: 0 });
            is_new = true;
        }
        let came = self.now.calls.get_mut(index)?;
        let arguments = match self.calls.get_mut(index) {
            Some(heard) => unheard(arguments, came, &mut heard.arguments),
            None => arguments,
        };
        let start = start.filter(|_| is_new);
        (start.is_some() || !arguments.is_empty()).then_some(CallDelta { index, start, arguments })
    }

    fn complete(&mut self, finished: &mut Finished) {
        if !self.now.is_resumed {
            return;
        }
        finished.rest = self.cut(std::mem::take(&mut finished.rest));
        // The client knows the calls by the ids that it has heard.
        for (call, heard) in finished.output.tool_calls.iter_mut().zip(&self.calls) {
            call.id.clone_from(&heard.id);
        }
        if !self.logprobs_before.is_empty() {
            finished.logprobs.splice(0..0, self.logprobs_before.drain(..));
        }
        if let Some(started) = self.started {
            // What the first process found is what the client asks about.
            let completion = &mut finished.completion;
            completion.new_tokens = completion.prompt_tokens.saturating_sub(started.cached_tokens);
            completion.cached_tokens = started.cached_tokens;
        }
    }
}

/// The end of a piece that was not heard before. `came` counts this stream, `heard` all of them.
fn unheard(piece: String, came: &mut usize, heard: &mut usize) -> String {
    let known = heard.saturating_sub(*came);
    *came += piece.len();
    *heard = (*heard).max(*came);
    match piece.get(known..) {
        Some(_) if known == 0 => piece,
        Some(new) => new.to_owned(),
        // All of it was heard.
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(tokens: &[u32], content: &str) -> Delta {
        Delta { tokens: tokens.to_vec(), draws: tokens.len() as u64, content: content.to_owned(), ..Delta::default() }
    }

    fn content(event: Option<ReplyEvent>) -> Option<(Vec<u32>, String)> {
        match event? {
            ReplyEvent::Delta(delta) => Some((delta.tokens, delta.content)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_heard_is_cut_off_wherever_the_pieces_end() {
        let mut heard = Heard::new(false);
        heard.take(ReplyEvent::Started(Started { prompt: 5, cached_tokens: 0 }));
        heard.take(ReplyEvent::Delta(delta(&[1, 2], "one t")));
        heard.take(ReplyEvent::Delta(delta(&[3], "")));
        assert_eq!(heard.resume().unwrap().tokens, [1, 2, 3]);
        assert_eq!(heard.take(ReplyEvent::Started(Started { prompt: 5, cached_tokens: 5 })), None);
        assert_eq!(heard.take(ReplyEvent::Delta(delta(&[1], "one"))), None);
        assert_eq!(content(heard.take(ReplyEvent::Delta(delta(&[2, 3, 4], " two t")))), Some((vec![4], "wo t".into())));
        assert_eq!(content(heard.take(ReplyEvent::Delta(delta(&[5], "hree")))), Some((vec![5], "hree".into())));
        // And once more.
        assert_eq!(heard.resume().unwrap().tokens, [1, 2, 3, 4, 5]);
        let all = heard.take(ReplyEvent::Delta(delta(&[1, 2, 3, 4, 5, 6], "one two three four")));
        assert_eq!(content(all), Some((vec![6], " four".into())));
    }

    #[test]
    fn a_call_keeps_the_id_that_was_heard() {
        let call = |start: Option<&str>, arguments: &str| {
            let start = start.map(|id| (id.to_owned(), "tool".to_owned()));
            let calls = vec![CallDelta { index: 0, start, arguments: arguments.to_owned() }];
            ReplyEvent::Delta(Delta { calls, ..Delta::default() })
        };
        let mut heard = Heard::new(false);
        heard.take(call(Some("first"), "{\"a\""));
        heard.resume();
        assert_eq!(heard.take(call(Some("second"), "{\"a\"")), None);
        assert_eq!(heard.take(call(None, ":1}")), Some(call(None, ":1}")));
        assert_eq!(heard.calls.first().map(|call| call.id.as_str()), Some("first"));
    }

    #[test]
    fn tokens_without_their_log_probabilities_are_drawn_again() {
        let mut heard = Heard::new(true);
        heard.take(ReplyEvent::Delta(delta(&[1, 2], "ab")));
        heard.take(ReplyEvent::Delta(delta(&[3], "")));
        assert_eq!(heard.resume(), Some(Resume { tokens: vec![1, 2], draws: 2 }));
    }
}
