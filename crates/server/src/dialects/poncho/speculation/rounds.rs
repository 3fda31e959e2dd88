//! The rounds of `POST /api/speculate`: one model drafts, the target verifies, until the reply ends.
//!
//! Called by `speculation.rs`. The two models may be on two nodes; each is called as for any other request. A draft
//! saves time and nothing else: it must never change a token of the reply, and a draft model that fails must never fail
//! the reply.

use std::collections::HashMap;
use std::time::Duration;

use poncho_api::{EngineError, SpecialText, Verified};
use schemars::JsonSchema;
use serde::Serialize;

use crate::forms::left_out;
use crate::models::served::ServedModel;

/// How long a draft may take. A call to a node that is gone would wait for minutes until it is back; the target goes on
/// without drafts instead.
pub(super) const DRAFT_WAIT: Duration = Duration::from_secs(10);

/// Tokens that the target computes in one call if nobody drafts: it serves no other request meanwhile.
const OWN_TOKENS: usize = 64;

/// Why a reply is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopReason {
    /// The model ended it.
    End,
    /// It has as many tokens as were asked for, or the context is full.
    Length,
}

/// A reply and how it came about.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = left_out)]
pub(super) struct Speculated {
    /// The model's own greedy tokens, without the one that ends the reply.
    pub(super) tokens: Vec<u32>,
    /// Calls in which the model computed tokens.
    #[schemars(range(min = 1))]
    rounds: usize,
    /// Draft tokens that were verified.
    drafted: usize,
    /// Draft tokens that are part of the reply.
    accepted: usize,
    stop_reason: StopReason,
    /// Why the model went on without drafts; absent if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_failed: Option<String>,
}

/// A reply in the making.
pub(super) struct Speculation<'a> {
    target: &'a ServedModel,
    /// The draft model, or why it is left out.
    drafter: Result<ServedModel, String>,
    /// Tokens of one draft.
    count: usize,
    /// The prompt, and the reply so far.
    text: Vec<u32>,
    ends: Ends,
    rounds: usize,
    drafted: usize,
    accepted: usize,
}

/// What a round adds to the reply.
struct Round {
    tokens: Vec<u32>,
    /// How many of them were drafted; these come first.
    accepted: usize,
}

impl<'a> Speculation<'a> {
    pub(super) fn new(
        target: &'a ServedModel,
        drafter: Result<ServedModel, String>,
        prompt: Vec<u32>,
        count: usize,
    ) -> Self {
        Self { target, drafter, count, text: prompt, ends: Ends::default(), rounds: 0, drafted: 0, accepted: 0 }
    }

    /// Computes the reply.
    pub(super) async fn run(mut self, max_tokens: usize) -> Result<Speculated, EngineError> {
        let start = self.text.len();
        let longest = start.saturating_add(max_tokens).min(self.target.limits().context);
        let mut stop_reason = StopReason::Length;
        while stop_reason == StopReason::Length && self.text.len() < longest {
            let Round { mut tokens, accepted } = self.round(longest - self.text.len()).await?;
            if tokens.is_empty() {
                return Err(EngineError::internal("asked a model for its next token"));
            }
            self.rounds += 1;
            if let Some(end) = self.ends.find(self.target, &self.text, &tokens).await? {
                tokens.truncate(end);
                stop_reason = StopReason::End;
            }
            self.accepted += accepted.min(tokens.len());
            self.text.extend(tokens);
        }
        Ok(Speculated {
            tokens: self.text.split_off(start),
            rounds: self.rounds,
            drafted: self.drafted,
            accepted: self.accepted,
            stop_reason,
            draft_failed: self.drafter.err(),
        })
    }

    /// The target's next tokens: at least one, and at most `left`.
    async fn round(&mut self, left: usize) -> Result<Round, EngineError> {
        // The target adds a token of its own.
        let wanted = self.count.min(left.saturating_sub(1));
        let mut draft = self.draft(wanted).await;
        if self.drafter.is_err() {
            let tokens = self.target.draft(self.text.clone(), left.min(OWN_TOKENS)).await?;
            return Ok(Round { tokens, accepted: 0 });
        }
        self.drafted += draft.len();
        let Verified { accepted, next } = self.target.verify(self.text.clone(), draft.clone()).await?;
        draft.truncate(accepted);
        let accepted = draft.len();
        draft.push(next);
        Ok(Round { tokens: draft, accepted })
    }

    /// What the draft model expects to come next. One that fails is not asked again.
    async fn draft(&mut self, wanted: usize) -> Vec<u32> {
        let Ok(drafter) = &self.drafter else { return Vec::new() };
        if wanted == 0 {
            return Vec::new();
        }
        let (used, context) = (self.text.len(), drafter.limits().context);
        let failed = match context.saturating_sub(used) {
            0 => format!(
                "the text has {used} tokens and the context of {} is full at {context}; load it with a larger context",
                drafter.id()
            ),
            room => {
                let call = drafter.draft(self.text.clone(), wanted.min(room));
                match tokio::time::timeout(DRAFT_WAIT, call).await {
                    Ok(Ok(mut tokens)) => {
                        tokens.truncate(wanted);
                        return tokens;
                    }
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!(
                        "{} did not draft within {} s; check its node, or bring the prompt into its cache before",
                        drafter.id(),
                        DRAFT_WAIT.as_secs()
                    ),
                }
            }
        };
        self.drafter = Err(failed);
        Vec::new()
    }
}

/// Which tokens end a reply of the target, as far as they were seen.
///
/// Nodes have no call for this. A token that ends a reply has no text for readers, and a node answers that without
/// computing; each token without text is then tried once.
#[derive(Default)]
struct Ends(HashMap<u32, bool>);

impl Ends {
    /// Where the reply ends among new tokens. They are those that the target draws after `before`.
    async fn find(&mut self, target: &ServedModel, before: &[u32], new: &[u32]) -> Result<Option<usize>, EngineError> {
        self.learn_texts(target, new).await?;
        for (at, token) in new.iter().enumerate() {
            let ends = match self.0.get(token).copied() {
                Some(ends) => ends,
                None => {
                    let prefix = before.iter().chain(new.iter().take(at)).copied().collect();
                    let ends = ends_reply(target, prefix, *token).await?;
                    self.0.insert(*token, ends);
                    ends
                }
            };
            if ends {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Notes which tokens have a text, and so end nothing.
    async fn learn_texts(&mut self, target: &ServedModel, tokens: &[u32]) -> Result<(), EngineError> {
        let is_open = |token: &u32| !self.0.contains_key(token) && !is_named_end(target, *token);
        let unknown: Vec<u32> = tokens.iter().copied().filter(is_open).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let (shown, whole) = tokio::join!(
            target.detokenize(unknown.clone(), SpecialText::Hide),
            target.detokenize(unknown.clone(), SpecialText::Render),
        );
        let all_have_text = shown? == whole?;
        for token in unknown {
            if all_have_text || !target.detokenize(vec![token], SpecialText::Hide).await?.is_empty() {
                self.0.insert(token, false);
            }
        }
        Ok(())
    }
}

/// Whether the token that the target draws after `prefix` ends its reply: it drafts nothing after such a token.
async fn ends_reply(target: &ServedModel, prefix: Vec<u32>, token: u32) -> Result<bool, EngineError> {
    if prefix.len().saturating_add(2) <= target.limits().context {
        let drafted = target.draft(prefix, 2).await?;
        if drafted.first() == Some(&token) {
            return Ok(drafted.len() == 1);
        }
    }
    // The context has no room for a second token, or the draw was a near tie and came out differently.
    Ok(is_named_end(target, token))
}

/// Whether the file of the target names the token as an end. Most files do not name all of them.
fn is_named_end(target: &ServedModel, token: u32) -> bool {
    let special = target.info().special;
    [special.eos, special.eot].contains(&Some(token))
}
