//! Replies that outlive the process that computes them.
//!
//! `model.rs` wraps each reply in one. When the process ends, the reply waits for the next one, is asked for again with
//! the tokens that were drawn, and goes on. Those that were in a child when it ended come back one at a time, each until
//! it has made progress: so the one that ends the process again is known, and is refused. Others go on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use poncho_api::{EngineError, Generate, Mode, ModelReport, NodeModel as _, ReplyEvent, ReplyStream};

use super::heard::Heard;
use super::{Keeper, Trial, Up, Verdict};
use crate::journey::Journey;
use crate::remote::{Mark, RemoteNode};

/// A full queue after a restart empties soon.
const QUEUE_PAUSE: Duration = Duration::from_millis(50);
/// How often a full queue is asked again.
const QUEUE_TRIES: u32 = 600;

/// A reply as a node gives it: where it is computed, its events, and the mark of its call.
pub(super) struct Given {
    pub(super) node: RemoteNode,
    pub(super) events: ReplyStream,
    pub(super) mark: Mark,
}

/// A reply that goes on elsewhere if it must.
pub(super) fn surviving(
    keeper: Arc<dyn Keeper>,
    model: Arc<ModelReport>,
    generate: Generate,
    given: Given,
    trial: Trial,
) -> ReplyStream {
    let heard = Heard::new(generate.request.logprobs.is_some());
    let reply = Surviving { keeper, model, generate, heard, given, trial, is_over: false };
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
    keeper: Arc<dyn Keeper>,
    model: Arc<ModelReport>,
    generate: Generate,
    heard: Heard,
    given: Given,
    /// From a loss to the first progress after it.
    trial: Trial,
    is_over: bool,
}

impl Surviving {
    async fn next(&mut self) -> Option<ReplyEvent> {
        while !self.is_over {
            let event = match self.given.events.next().await? {
                ReplyEvent::Failed(error @ EngineError::NodeLost { .. }) => match self.resume(error).await {
                    Ok(given) => {
                        self.given = given;
                        continue;
                    }
                    Err(error) => ReplyEvent::Failed(error),
                },
                event => event,
            };
            let Some(event) = self.heard.take(event) else { continue };
            if !matches!(event, ReplyEvent::Started(_) | ReplyEvent::Progress(_)) {
                self.trial = Trial::default();
                self.given.mark.progress();
                if !matches!(event, ReplyEvent::Cancelled(_) | ReplyEvent::Failed(_)) {
                    self.given.mark.computed();
                }
            }
            self.is_over = matches!(event, ReplyEvent::Done(_) | ReplyEvent::Cancelled(_) | ReplyEvent::Failed(_));
            return Some(event);
        }
        None
    }

    async fn resume(&mut self, error: EngineError) -> Result<Given, EngineError> {
        self.given.mark.lost();
        // What a session held is gone with the process.
        if self.generate.request.mode == Mode::Continue {
            return Err(error);
        }
        let mut is_begun = true;
        loop {
            self.keeper.is_lost(&self.given.node);
            if self.keeper.judge(&mut self.trial, &self.given.node, is_begun).await? == Verdict::Blamed {
                self.keeper.poison().add(&self.generate);
                tracing::warn!(model = self.model.id, "a request ended the engine twice and is refused");
                return Err(EngineError::Poison);
            }
            match self.ask_again().await {
                Err(EngineError::NodeLost { .. }) => is_begun = false,
                asked => return asked,
            }
        }
    }

    async fn ask_again(&mut self) -> Result<Given, EngineError> {
        let mut generate = self.generate.clone();
        generate.request.resume = self.heard.resume();
        for _ in 0..QUEUE_TRIES {
            let asked = Some((&generate, &mut self.trial));
            let Up { node, model, note } = match self.keeper.up_model(&self.model, asked).await {
                // Its place was taken from it: it waits for another one.
                Err(EngineError::NodesFull { .. }) => {
                    self.trial.journey = Journey::default();
                    tokio::time::sleep(QUEUE_PAUSE).await;
                    continue;
                }
                up => up?,
            };
            self.given.node = node.clone();
            let mut mark = node.mark(&self.model.id).with(note);
            match model.generate(vec![generate.clone()]).await {
                Err(error @ EngineError::Overloaded { .. }) => {
                    if !self.keeper.may_go_elsewhere(&mut self.trial, &error) {
                        tokio::time::sleep(QUEUE_PAUSE).await;
                    }
                }
                Ok(replies) => {
                    let events = replies.into_iter().next();
                    let events = events.ok_or_else(|| EngineError::internal("resumed a reply"))?;
                    return Ok(Given { node, events, mark });
                }
                Err(error) => {
                    if matches!(error, EngineError::NodeLost { .. }) {
                        mark.lost();
                    }
                    return Err(error);
                }
            }
        }
        Err(EngineError::ShuttingDown { model: self.model.id.clone() })
    }
}
