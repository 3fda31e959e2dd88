//! A router's side: which nodes live, what they hold, and whom to ask.
//!
//! Fed with beats, changes and answers in whatever order they arrive. Changes apply in the order of their numbers only; a
//! gap, a new life or silence makes `tick` ask the node. Nodes that are silent for too long are dropped with their rows.
//! It must never report a row of an earlier life, and it must not grow beyond its bounds.

use std::collections::BTreeMap;

use super::message::{Answer, Beat, Change, Changes, Incarnation, Question};
use crate::index::{PrefixIndex, Slot};
use crate::route::{Live, Starts};

/// When things happen, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// A node that was silent for so long is asked directly: the bus may be away.
    pub ask_silent: f64,
    /// A node that was silent for so long is gone.
    pub gone: f64,
    /// A question without an answer is asked again.
    pub ask_again: f64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { ask_silent: 3.0, gone: 10.0, ask_again: 1.0 }
    }
}

/// Nodes that are followed at most.
const MOST_NODES: usize = 10_000;

/// A node as the router knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// Its place in the index.
    pub slot: Slot,
    /// Its last beat.
    pub beat: Beat,
    /// The change up to which its rows are known.
    pub applied: u64,
    /// The last change that it is known to have made.
    pub head: u64,
    base: u64,
    /// When its last beat came.
    pub heard: f64,
    asked: Option<(u64, f64)>,
}

impl Known {
    /// Whether everything that it announced is known.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.applied >= self.head
    }
}

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ask a node; the answer goes to `answered`.
    Ask {
        /// Its name.
        node: String,
        /// Where.
        hints: String,
        /// What.
        question: Question,
    },
    /// A node is gone: what was sent to it has to go elsewhere.
    Gone {
        /// Its name.
        node: String,
        /// The place that it had; another node may get it.
        slot: Slot,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Directory<I> {
    index: I,
    starts: Starts,
    live: Live,
    timing: Timing,
    nodes: BTreeMap<String, Known>,
    names: Vec<Option<String>>,
    asked: u64,
}

impl<I: PrefixIndex> Directory<I> {
    /// Follows nobody yet. Questions are numbered from `first` on, a random number, so that no recorded answer fits.
    pub fn new(index: I, timing: Timing, first: u64) -> Self {
        let (starts, live) = (Starts::default(), Live::default());
        Self { index, starts, live, timing, nodes: BTreeMap::new(), names: Vec::new(), asked: first }
    }

    /// The hints.
    pub fn index(&self) -> &I {
        &self.index
    }

    /// Prefixes that nodes are computing.
    pub fn starts(&mut self) -> &mut Starts {
        &mut self.starts
    }

    /// Prompts that nodes computed lately.
    pub fn live(&mut self) -> &mut Live {
        &mut self.live
    }

    /// The nodes that live, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Known> {
        self.nodes.values()
    }

    /// A node by its name.
    pub fn node(&self, name: &str) -> Option<&Known> {
        self.nodes.get(name)
    }

    /// A node by its place.
    pub fn at(&self, slot: Slot) -> Option<&Known> {
        self.names.get(slot.0 as usize).and_then(Option::as_deref).and_then(|name| self.nodes.get(name))
    }

    /// A node reports itself, over the bus or in an answer.
    pub fn beat(&mut self, beat: Beat, now: f64) {
        match self.nodes.get_mut(&beat.node) {
            Some(known) if beat.incarnation < known.beat.incarnation => {}
            Some(known) if beat.incarnation == known.beat.incarnation => {
                if beat.beat > known.beat.beat {
                    known.head = known.head.max(beat.head);
                    known.heard = now;
                    known.beat = beat;
                }
            }
            Some(known) => {
                let slot = known.slot;
                self.index.remove_node(slot);
                self.starts.remove_node(slot);
                self.live.remove_node(slot);
                let head = beat.head;
                *known = Known { slot, beat, applied: 0, head, base: 0, heard: now, asked: None };
            }
            None => {
                if self.nodes.len() >= MOST_NODES {
                    return;
                }
                let slot = self.free_slot(&beat.node);
                let (name, head) = (beat.node.clone(), beat.head);
                self.nodes.insert(name, Known { slot, beat, applied: 0, head, base: 0, heard: now, asked: None });
            }
        }
    }

    fn free_slot(&mut self, name: &str) -> Slot {
        let free = self.names.iter().position(Option::is_none);
        let place = free.unwrap_or(self.names.len());
        match self.names.get_mut(place) {
            Some(empty) => *empty = Some(name.to_owned()),
            None => self.names.push(Some(name.to_owned())),
        }
        Slot(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// A node announced changes. Those that come too early are left to an answer.
    pub fn changes(&mut self, changes: &Changes) {
        let Some(known) = self.nodes.get_mut(&changes.node) else { return };
        if known.beat.incarnation != changes.incarnation {
            return;
        }
        let Some(last) = changes.first.checked_add(changes.changes.len() as u64).and_then(|end| end.checked_sub(1))
        else {
            return;
        };
        known.head = known.head.max(last);
        if changes.first > known.applied.saturating_add(1) || last <= known.applied {
            return;
        }
        let seen = usize::try_from(known.applied.saturating_add(1) - changes.first).unwrap_or(usize::MAX);
        known.applied = last;
        let slot = known.slot;
        for change in changes.changes.iter().skip(seen) {
            self.apply(slot, change);
        }
    }

    fn apply(&mut self, slot: Slot, change: &Change) {
        match change {
            Change::Stored(row) => {
                self.starts.announced(slot, &row.blocks);
                self.index.insert(slot, row);
            }
            Change::Removed(key) => _ = self.index.remove(slot, key),
        }
    }

    /// A node answered. Answers to other questions than the last one are dropped.
    pub fn answered(&mut self, answer: &Answer, now: f64) {
        let name = &answer.beat.node;
        let is_expected = |known: &Known| known.asked.is_some_and(|(nonce, _)| nonce == answer.nonce);
        if !self.nodes.get(name).is_some_and(is_expected) {
            return;
        }
        self.beat(answer.beat.clone(), now);
        let Some(known) = self.nodes.get_mut(name) else { return };
        if known.beat.incarnation != answer.beat.incarnation {
            return;
        }
        let slot = known.slot;
        known.asked = None;
        known.base = answer.base;
        known.applied = answer.upto;
        known.head = known.head.max(answer.upto);
        if answer.resets {
            self.index.remove_node(slot);
        }
        for change in &answer.changes {
            self.apply(slot, change);
        }
    }

    /// Whom to ask now, and who is gone. Call it a few times in a second.
    pub fn tick(&mut self, now: f64) -> Vec<Action> {
        let mut actions = Vec::new();
        let timing = self.timing;
        let gone: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, known)| now - known.heard >= timing.gone)
            .map(|(name, _)| name.clone())
            .collect();
        for node in gone {
            if let Some(known) = self.nodes.remove(&node) {
                self.index.remove_node(known.slot);
                self.starts.remove_node(known.slot);
                self.live.remove_node(known.slot);
                if let Some(name) = self.names.get_mut(known.slot.0 as usize) {
                    *name = None;
                }
                actions.push(Action::Gone { node, slot: known.slot });
            }
        }
        for (name, known) in &mut self.nodes {
            let is_silent = now - known.heard >= timing.ask_silent;
            let may_ask = known.asked.is_none_or(|(_, at)| now - at >= timing.ask_again);
            if may_ask && (is_silent || !known.is_current()) {
                self.asked = self.asked.wrapping_add(1);
                known.asked = Some((self.asked, now));
                let incarnation: Option<Incarnation> = Some(known.beat.incarnation);
                let question = Question { incarnation, since: known.applied, base: known.base, nonce: self.asked };
                actions.push(Action::Ask { node: name.clone(), hints: known.beat.hints.clone(), question });
            }
        }
        self.starts.expire(now);
        actions
    }
}
