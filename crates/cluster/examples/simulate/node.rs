//! A node of the simulation: one queue for prompts, streams that decode, and a cache of conversations.
//!
//! The truth that the router only has hints of. It evicts the conversation that was used longest ago when it is full.

use std::collections::{HashMap, VecDeque};

use poncho_cluster::member::{Load, Member, Rates, State};

/// What a node holds of one conversation: the longest prefix in tokens.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) tokens: u32,
    /// First blocks of the rows that it announced for this conversation, and the end of the last one.
    pub(crate) cuts: Vec<u32>,
    used: u64,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) member: Member,
    /// When the prompts that it has are computed.
    pub(crate) busy_until: f64,
    /// When its line is free.
    pub(crate) line_until: f64,
    /// Seconds of work that it was given, for the balance.
    pub(crate) work: f64,
    pub(crate) alive: bool,
    pub(crate) kept: HashMap<u64, Kept>,
    order: VecDeque<(u64, u64)>,
    tokens: u64,
    most_tokens: u64,
    clock: u64,
}

impl Node {
    pub(crate) fn new(rates: Rates, most_tokens: u64) -> Self {
        let load = Load {
            running: 0,
            places: 512,
            waiting: 0,
            queue: 512,
            backlog_tokens: 0.0,
            line_bytes: 0.0,
            mean_stay: 5.0,
        };
        Self {
            member: Member { state: State::Up, rates, load },
            busy_until: 0.0,
            line_until: 0.0,
            work: 0.0,
            alive: true,
            kept: HashMap::new(),
            order: VecDeque::new(),
            tokens: 0,
            most_tokens,
            clock: 0,
        }
    }

    /// Tokens that it really has of a conversation.
    pub(crate) fn has(&self, conversation: u64) -> u32 {
        self.kept.get(&conversation).map_or(0, |kept| kept.tokens)
    }

    /// It now has `tokens` tokens of a conversation, which are `blocks` complete blocks; `from` is the first block that is
    /// not part of a system prompt. Returns the range of blocks to announce. Fills in the conversations that it dropped.
    pub(crate) fn keep(
        &mut self,
        conversation: u64,
        tokens: u32,
        (from, blocks): (u32, u32),
        dropped: &mut Vec<(u64, Vec<u32>)>,
    ) -> (u32, u32) {
        self.clock += 1;
        let kept = self.kept.entry(conversation).or_insert_with(|| Kept { tokens: 0, cuts: vec![from], used: 0 });
        self.tokens += u64::from(tokens.saturating_sub(kept.tokens));
        (kept.tokens, kept.used) = (kept.tokens.max(tokens), self.clock);
        let last = kept.cuts.last().copied().unwrap_or(from);
        let announced = (last, blocks.max(last));
        if blocks > last {
            kept.cuts.push(blocks);
        }
        self.order.push_back((conversation, self.clock));
        while self.tokens > self.most_tokens {
            let Some((oldest, used)) = self.order.pop_front() else { return announced };
            if self.kept.get(&oldest).is_some_and(|kept| kept.used == used)
                && let Some(gone) = self.kept.remove(&oldest)
            {
                self.tokens -= u64::from(gone.tokens);
                dropped.push((oldest, gone.cuts));
            }
        }
        // Leftovers of conversations that were used again.
        while self.order.front().is_some_and(|(of, used)| self.kept.get(of).is_none_or(|kept| kept.used != *used)) {
            self.order.pop_front();
        }
        announced
    }

    /// It lost its memory and starts again.
    pub(crate) fn restart(&mut self, now: f64) {
        self.kept.clear();
        self.order.clear();
        self.tokens = 0;
        self.busy_until = now;
        self.member.load.running = 0;
    }
}
