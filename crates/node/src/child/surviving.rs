//! Replies that outlive the process that computes them.
//!
//! `model.rs` wraps each reply in one. When the process ends, the reply waits for the next one, is asked for again with
//! the tokens that were drawn, and goes on. Those who were there when a process ended come back one at a time, each until
//! it has made progress: so the one that ends the process again is known, and is refused. Others go on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use poncho_api::{EngineError, Generate, Mode, NodeModel as _, ReplyEvent, ReplyStream};
use tokio::sync::OwnedMutexGuard;

use super::supervised::Supervised;
use crate::remote::RemoteNode;
use crate::resume::Heard;

/// A full queue after a restart empties soon.
const QUEUE_PAUSE: Duration = Duration::from_millis(50);
/// How often a full queue is asked again.
const QUEUE_TRIES: u32 = 600;

/// Held by a reply that is alone in its process; replies to one call share it.
pub(super) type Probation = Arc<OwnedMutexGuard<()>>;

/// A reply that goes on in another process if it must.
pub(super) fn surviving(
    supervised: Arc<Supervised>,
    model: String,
    generate: Generate,
    first: (RemoteNode, ReplyStream),
    probation: Option<Probation>,
) -> ReplyStream {
    let heard = Heard::new(generate.request.logprobs.is_some());
    let (node, events) = first;
    let reply = Surviving { supervised, node, model, generate, heard, events, probation, tries: 0, is_over: false };
    Box::pin(stream::unfold(reply, |mut reply| async move {
        let event = reply.next().await?;
        Some((event, reply))
    }))
}

/// The requests of one call, one for each reply: `replies` of them differ in their seeds.
pub(super) fn one_by_one(prompts: &[Generate]) -> Vec<Generate> {
    let mut single = Vec::new();
    for prompt in prompts {
        for number in 0..prompt.replies {
            let mut one = Generate { replies: 1, ..prompt.clone() };
            one.request.sampling.seed = one.request.sampling.seed.map(|seed| seed.wrapping_add(number.into()));
            single.push(one);
        }
    }
    single
}

struct Surviving {
    supervised: Arc<Supervised>,
    /// Where it is computed.
    node: RemoteNode,
    model: String,
    generate: Generate,
    heard: Heard,
    events: ReplyStream,
    /// Held from a resume to the first progress after it.
    probation: Option<Probation>,
    /// Processes that were lost while it was alone in them.
    tries: u32,
    is_over: bool,
}

impl Surviving {
    async fn next(&mut self) -> Option<ReplyEvent> {
        while !self.is_over {
            let event = match self.events.next().await? {
                ReplyEvent::Failed(error @ EngineError::NodeLost { .. }) => match self.resume(error).await {
                    Ok(events) => {
                        self.events = events;
                        continue;
                    }
                    Err(error) => ReplyEvent::Failed(error),
                },
                event => event,
            };
            let Some(event) = self.heard.take(event) else { continue };
            if !matches!(event, ReplyEvent::Started(_)) {
                self.probation = None;
            }
            self.is_over = matches!(event, ReplyEvent::Done(_) | ReplyEvent::Cancelled(_) | ReplyEvent::Failed(_));
            return Some(event);
        }
        None
    }

    async fn resume(&mut self, error: EngineError) -> Result<ReplyStream, EngineError> {
        // What a session held is gone with the process.
        if self.generate.request.mode == Mode::Continue {
            return Err(error);
        }
        loop {
            self.supervised.is_lost(&self.node);
            if self.probation.is_none() {
                self.probation = Some(Arc::new(Arc::clone(&self.supervised.probation).lock_owned().await));
            } else if self.supervised.is_to_blame(self.tries).await? {
                self.supervised.set_aside(&self.generate);
                tracing::warn!(model = self.model, "a request ended the engine twice and is refused");
                return Err(EngineError::Poison);
            } else {
                self.tries += 1;
            }
            match self.ask_again().await {
                Err(EngineError::NodeLost { .. }) => {}
                asked => return asked,
            }
        }
    }

    async fn ask_again(&mut self) -> Result<ReplyStream, EngineError> {
        let mut generate = self.generate.clone();
        generate.request.resume = self.heard.resume();
        for _ in 0..QUEUE_TRIES {
            let (node, model) = self.supervised.up_model(&self.model).await?;
            self.node = node;
            match model.generate(vec![generate.clone()]).await {
                Err(EngineError::Overloaded { .. }) => tokio::time::sleep(QUEUE_PAUSE).await,
                Ok(replies) => {
                    return replies.into_iter().next().ok_or_else(|| EngineError::internal("resumed a reply"));
                }
                Err(error) => return Err(error),
            }
        }
        Err(EngineError::ShuttingDown { model: self.model.clone() })
    }
}
