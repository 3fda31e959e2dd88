//! The record of requests: the last ones with their figures, for the console and `GET /api/requests`.
//!
//! `Origin::start` opens an entry for each reply, and `ReplyTimes` notes its stages. A stage costs one short lock, and
//! nothing is written for a single token: progress is read from the reports of the models when somebody looks. The number
//! of entries and the bytes of the prompts that are kept for explanations are bounded. A prompt must never be given to
//! anybody but the owner that sent it.

pub(crate) mod entry;
mod opening;
mod shown;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use poncho_api::{Completion, Generate, Normalised, Started};
use tokio::sync::watch;
use tokio::time::Instant;

use self::entry::Ended;
pub(crate) use self::entry::Entry;
use self::opening::Opening;
pub(crate) use self::shown::ShownRequest;
use crate::owner::Owner;
use crate::telemetry::metrics::Outcome;

/// Bytes of prompts that are kept, all entries together; the oldest prompts go first.
const PROMPT_BYTES: usize = 32 << 20;

/// See the module.
pub(crate) struct Record {
    limit: usize,
    state: Mutex<State>,
    /// The version of the newest change.
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// By number, the oldest first.
    entries: VecDeque<Entry>,
    last: u64,
    version: u64,
    prompt_bytes: usize,
}

/// The place of one reply in the record.
pub(crate) struct Recorded {
    record: Arc<Record>,
    number: u64,
    cancelled: watch::Receiver<bool>,
}

/// A request that is about to be submitted.
pub(crate) struct Submitted<'s> {
    pub(crate) owner: Owner,
    pub(crate) model: &'s str,
    pub(crate) request_id: Option<&'s str>,
    pub(crate) arrived: Instant,
}

impl Record {
    /// A record of that many requests; of none if it is 0.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), version: watch::Sender::new(0) }
    }

    /// Opens an entry for each reply to a prompt and gives the prompt its number.
    pub(crate) fn open(self: &Arc<Self>, prompt: &mut Generate, submitted: &Submitted<'_>) -> Vec<Recorded> {
        if self.limit == 0 {
            return Vec::new();
        }
        let replies = usize::try_from(prompt.replies).unwrap_or(usize::MAX).min(self.limit);
        let mut opening = Opening::of(prompt);
        let mut state = self.lock();
        let numbers = (0..replies).map(|_| {
            state.last += 1;
            state.last
        });
        let numbers: Vec<u64> = numbers.collect();
        prompt.request.label = numbers.first().copied();
        let label = prompt.request.label;
        let recorded = numbers.into_iter().map(|number| {
            let (cancel, cancelled) = watch::channel(false);
            let mut entry = Entry::new(number, label.unwrap_or(number), submitted, &opening, cancel);
            // One copy of the prompt is enough: its replies share it.
            entry.prompt = opening.prompt.take();
            state.prompt_bytes += entry.prompt.as_ref().map_or(0, |(_, bytes)| *bytes);
            entry.version = state.next_version();
            state.entries.push_back(entry);
            Recorded { record: Arc::clone(self), number, cancelled }
        });
        let recorded = recorded.collect();
        state.shrink(self.limit);
        self.announce(&state);
        recorded
    }

    /// The entries that changed since a version, oldest first, and the version that this is.
    pub(crate) fn since<T>(&self, version: u64, mut show: impl FnMut(&Entry) -> Option<T>) -> (Vec<T>, u64) {
        let state = self.lock();
        let shown = state.entries.iter().filter(|entry| entry.version > version || entry.end.is_none());
        (shown.filter_map(&mut show).collect(), state.version)
    }

    /// One entry.
    pub(crate) fn with<T>(&self, number: u64, look: impl FnOnce(&Entry) -> T) -> Option<T> {
        let state = self.lock();
        state.place(number).and_then(|at| state.entries.get(at)).map(look)
    }

    /// Follows changes.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Whether a request has not ended.
    pub(crate) fn has_open(&self) -> bool {
        self.lock().entries.iter().rev().any(|entry| entry.end.is_none())
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Entry)) {
        let mut state = self.lock();
        let version = state.next_version();
        let place = state.place(number);
        if let Some(entry) = place.and_then(|at| state.entries.get_mut(at)) {
            change(entry);
            entry.version = version;
        }
        self.announce(&state);
    }

    fn announce(&self, state: &State) {
        self.version.send_replace(state.version);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    /// Forgets the oldest entries and prompts that are too many.
    fn shrink(&mut self, limit: usize) {
        while self.entries.len() > limit {
            let gone = self.entries.pop_front().and_then(|entry| entry.prompt);
            self.prompt_bytes -= gone.map_or(0, |(_, bytes)| bytes);
        }
        if self.prompt_bytes <= PROMPT_BYTES {
            return;
        }
        for entry in &mut self.entries {
            let gone = entry.prompt.take();
            self.prompt_bytes -= gone.map_or(0, |(_, bytes)| bytes);
            if self.prompt_bytes <= PROMPT_BYTES {
                return;
            }
        }
    }
}

impl Recorded {
    /// It has its sequence.
    pub(crate) fn started(&self, found: Started) {
        self.record.change(self.number, |entry| entry.found = Some(found));
    }

    /// Its first token came.
    pub(crate) fn first_token(&self) {
        self.record.change(self.number, |entry| entry.first_token = Some(Instant::now()));
    }

    /// It came to its end in the engine.
    pub(crate) fn finished(&self, completion: &Completion, outcome: Outcome, normalised: &[Normalised]) {
        let ended = Ended::finished(completion, outcome, normalised);
        self.record.change(self.number, |entry| entry.ended(ended));
    }

    /// It ended without the engine's figures, after that many tokens.
    pub(crate) fn cut_short(&self, outcome: Outcome, code: Option<&str>, generated: usize) {
        let ended = Ended::cut_short(outcome, code.map(str::to_owned), generated);
        self.record.change(self.number, |entry| entry.ended(ended));
    }

    /// Lets the reply notice that somebody cancels it.
    pub(crate) fn cancel_signal(&self) -> CancelSignal {
        CancelSignal(Some(self.cancelled.clone()))
    }
}

/// Ready when a request is cancelled by name.
pub(crate) struct CancelSignal(Option<watch::Receiver<bool>>);

impl CancelSignal {
    /// For a request without an entry: never ready.
    pub(crate) const NEVER: Self = Self(None);

    /// Waits for it.
    pub(crate) async fn received(&mut self) {
        if let Some(cancelled) = &mut self.0
            && cancelled.wait_for(|cancelled| *cancelled).await.is_ok()
        {
            return;
        }
        // The entry is forgotten, so nobody can cancel it by name.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use poncho_api::{Input, Prompt, Request};

    use super::*;

    fn open(record: &Arc<Record>, text: &str) -> Vec<Recorded> {
        let mut prompt = Generate::new(Prompt::Written(Input::Text(text.to_owned())), Request::default());
        let submitted = Submitted { owner: Owner(None), model: "m", request_id: None, arrived: Instant::now() };
        record.open(&mut prompt, &submitted)
    }

    #[tokio::test]
    async fn the_record_keeps_the_newest_and_forgets_the_oldest() {
        let record = Arc::new(Record::new(3));
        let opened: Vec<Recorded> = (0..5).flat_map(|_| open(&record, "Hi")).collect();
        let (numbers, _) = record.since(0, |entry| Some(entry.number));
        assert_eq!(numbers, [3, 4, 5]);
        // A forgotten entry that ends changes nothing.
        opened[0].cut_short(Outcome::Failed, Some("x"), 0);
        assert_eq!(record.since(0, |entry| Some(entry.number)).0, [3, 4, 5]);
        assert_eq!(record.with(1, |_| ()), None);
    }

    #[tokio::test]
    async fn old_prompts_leave_before_their_entries() {
        let record = Arc::new(Record::new(100));
        let long = "x".repeat(PROMPT_BYTES / 10);
        let opened: Vec<Recorded> = (0..12).flat_map(|_| open(&record, &long)).collect();
        let (kept, _) = record.since(0, |entry| Some(entry.prompt.is_some()));
        assert_eq!((kept.len(), opened.len()), (12, 12));
        assert!(!kept[0] && kept[11], "{kept:?}");
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 9, "{kept:?}");
    }

    #[tokio::test]
    async fn a_look_returns_what_changed_and_what_is_open() {
        let record = Arc::new(Record::new(10));
        let opened: Vec<Recorded> = (0..2).flat_map(|_| open(&record, "Hi")).collect();
        let (_, seen) = record.since(0, |_| Some(()));
        opened[0].cut_short(Outcome::Abandoned, None, 3);
        let (numbers, seen) = record.since(seen, |entry| Some(entry.number));
        assert_eq!(numbers, [1, 2]);
        assert_eq!(record.since(seen, |entry| Some(entry.number)).0, [2], "2 is still open");
        opened[1].cut_short(Outcome::Abandoned, None, 3);
        let (_, seen) = record.since(seen, |_| Some(()));
        assert!(record.since(seen, |_| Some(())).0.is_empty() && !record.has_open());
    }
}
