//! A node's side: numbers its changes and answers questions about them.
//!
//! The node's cache calls it for each row that it stores or drops. It keeps what the live rows look like and the latest
//! removals; a router that missed more than those starts over with all rows. It must never number two changes alike.

use std::collections::{BTreeMap, HashMap, VecDeque};

use poncho_kinds::Key;

use super::message::{Answer, Beat, Change, Changes, Incarnation, ModelBeat, Question};
use crate::index::Row;
use crate::member::State;

/// Changes of one answer.
const MOST_CHANGES: usize = 1_000;

/// See the module.
#[derive(Debug)]
pub struct Announcer {
    node: String,
    address: String,
    hints: String,
    serves: Option<String>,
    incarnation: Incarnation,
    head: u64,
    beats: u64,
    /// Live rows by the number of the change that stored them.
    rows: BTreeMap<u64, Row>,
    numbers: HashMap<Key, u64>,
    removed: VecDeque<(u64, Key)>,
    most_removed: usize,
    /// Removals up to this number were dropped.
    forgotten: u64,
}

impl Announcer {
    /// A node without rows that remembers that many removals.
    #[must_use]
    pub fn new(node: &str, address: &str, hints: &str, incarnation: Incarnation, most_removed: usize) -> Self {
        Self {
            node: node.to_owned(),
            address: address.to_owned(),
            hints: hints.to_owned(),
            serves: None,
            incarnation,
            head: 0,
            beats: 0,
            rows: BTreeMap::new(),
            numbers: HashMap::new(),
            removed: VecDeque::new(),
            most_removed,
            forgotten: 0,
        }
    }

    /// Its cache was opened again: a new life without rows. Routers forget what they know.
    pub fn reset(&mut self, incarnation: Incarnation) {
        // Later than the last one, even if the clock was set back.
        let after = self.incarnation.started_ms.saturating_add(1);
        self.incarnation = Incarnation { started_ms: incarnation.started_ms.max(after), ..incarnation };
        (self.head, self.beats, self.forgotten) = (0, 0, 0);
        self.rows.clear();
        self.numbers.clear();
        self.removed.clear();
    }

    /// Whether nothing was announced yet.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.head == 0
    }

    /// Where other nodes pull its rows from now on, if they can.
    pub fn serves_rows(&mut self, address: Option<String>) {
        self.serves = address;
    }

    /// A row was stored or moved; the message to publish.
    pub fn stored(&mut self, row: Row) -> Changes {
        self.head += 1;
        if let Some(before) = self.numbers.insert(row.key, self.head) {
            self.rows.remove(&before);
        }
        self.rows.insert(self.head, row.clone());
        self.change(Change::Stored(row))
    }

    /// A row is gone; the message to publish, unless nobody was notified of it.
    pub fn removed(&mut self, key: &Key) -> Option<Changes> {
        let before = self.numbers.remove(key)?;
        self.rows.remove(&before);
        self.head += 1;
        self.removed.push_back((self.head, *key));
        while self.removed.len() > self.most_removed {
            if let Some((number, _)) = self.removed.pop_front() {
                self.forgotten = number;
            }
        }
        Some(self.change(Change::Removed(*key)))
    }

    fn change(&self, change: Change) -> Changes {
        Changes { node: self.node.clone(), incarnation: self.incarnation, first: self.head, changes: vec![change] }
    }

    /// The next heartbeat.
    pub fn beat(&mut self, state: State, models: Vec<ModelBeat>) -> Beat {
        self.beats += 1;
        Beat {
            node: self.node.clone(),
            address: self.address.clone(),
            hints: self.hints.clone(),
            rows: self.serves.clone(),
            incarnation: self.incarnation,
            beat: self.beats,
            head: self.head,
            state,
            models,
        }
    }

    /// What a router missed, up to a page of it.
    pub fn answer(&mut self, question: &Question, state: State, models: Vec<ModelBeat>) -> Answer {
        let knows = question.incarnation == Some(self.incarnation)
            && question.since.max(question.base) >= self.forgotten
            && question.since.max(question.base) <= self.head;
        let (since, base) = if knows { (question.since, question.base) } else { (0, self.head) };
        let resets = !knows;
        let stored = self.rows.range(since + 1..).map(|(number, row)| (*number, Change::Stored(row.clone())));
        let first_removed = self.removed.partition_point(|(number, _)| *number <= since);
        let removed = self.removed.range(first_removed..).map(|(number, key)| (*number, Change::Removed(*key)));
        let mut changes: Vec<(u64, Change)> =
            stored.take(MOST_CHANGES + 1).chain(removed.take(MOST_CHANGES + 1)).collect();
        changes.sort_by_key(|(number, _)| *number);
        let mut upto = self.head;
        if changes.len() > MOST_CHANGES {
            changes.truncate(MOST_CHANGES);
            upto = changes.last().map_or(self.head, |(number, _)| *number);
        }
        let changes = changes.into_iter().map(|(_, change)| change).collect();
        Answer { beat: self.beat(state, models), nonce: question.nonce, resets, base, changes, upto }
    }

    /// Live rows.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// Its life.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
}
