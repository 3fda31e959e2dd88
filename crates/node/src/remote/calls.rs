//! Which models a process works for: when it ends, one of them is the cause.
//!
//! Kept for each connection. A call that made progress is less suspect than one that did not. It must never block.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Something that is kept as long as a call is under way.
pub(crate) trait Noted: Send + Sync {
    /// The prompt of the call is computed.
    fn computed(&self) {}
}

/// Nothing to keep.
impl Noted for () {}

/// See [`Noted`].
pub(crate) type Note = Arc<dyn Noted>;

/// Calls that are under way, by model.
#[derive(Default)]
pub(super) struct Calls(Mutex<BTreeMap<String, Open>>);

#[derive(Default, Clone, Copy)]
struct Open {
    calls: usize,
    without_progress: usize,
}

impl Calls {
    /// The models with calls that never made progress, or else all models with calls.
    pub(super) fn suspects(&self) -> Vec<String> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |is_suspect: fn(&Open) -> bool| -> Vec<String> {
            open.iter().filter(|(_, open)| is_suspect(open)).map(|(model, _)| model.clone()).collect()
        };
        let fresh = of(|open| open.without_progress > 0);
        if fresh.is_empty() { of(|open| open.calls > 0) } else { fresh }
    }

    fn change(&self, model: &str, change: impl FnOnce(&mut Open)) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(open.entry(model.to_owned()).or_default());
    }
}

/// A call that is under way, until it is dropped.
pub(crate) struct Mark {
    calls: Arc<Calls>,
    model: Arc<str>,
    has_progress: bool,
    is_lost: bool,
    is_computed: bool,
    /// Dropped with it.
    note: Option<Note>,
}

impl Mark {
    pub(super) fn new(calls: Arc<Calls>, model: &str) -> Self {
        calls.change(model, |open| {
            open.calls += 1;
            open.without_progress += 1;
        });
        Self { calls, model: model.into(), has_progress: false, is_lost: false, is_computed: false, note: None }
    }

    /// Keeps something until it is dropped.
    pub(crate) fn with(mut self, note: Option<Note>) -> Self {
        self.note = note;
        self
    }

    /// Another call of the same model on the same node.
    pub(crate) fn another(&self) -> Self {
        Self::new(Arc::clone(&self.calls), &self.model).with(self.note.clone())
    }

    /// It produced something.
    pub(crate) fn progress(&mut self) {
        if !std::mem::replace(&mut self.has_progress, true) && !self.is_lost {
            self.calls.change(&self.model, |open| open.without_progress = open.without_progress.saturating_sub(1));
        }
    }

    /// Its prompt is computed.
    pub(crate) fn computed(&mut self) {
        if !std::mem::replace(&mut self.is_computed, true)
            && let Some(note) = &self.note
        {
            note.computed();
        }
    }

    /// It was lost with its process: it stays in the books of that process.
    pub(crate) fn lost(&mut self) {
        self.is_lost = true;
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.is_lost {
            return;
        }
        self.progress();
        self.calls.change(&self.model, |open| open.calls = open.calls.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_without_progress_are_suspected_first_and_lost_ones_stay() {
        let calls = Arc::<Calls>::default();
        let mut one = Mark::new(Arc::clone(&calls), "one");
        let mut two = Mark::new(Arc::clone(&calls), "two");
        assert_eq!(calls.suspects(), ["one", "two"]);
        one.progress();
        assert_eq!(calls.suspects(), ["two"]);
        drop(two.another());
        two.progress();
        assert_eq!(calls.suspects(), ["one", "two"]);
        drop(two);
        assert_eq!(calls.suspects(), ["one"]);
        let mut three = one.another();
        three.lost();
        drop((one, three));
        assert_eq!(calls.suspects(), ["one"]);
    }
}
