//! The rows of a folder in an order in which each comes after the row it builds on.
//!
//! Used by recovery and by the index of a listed folder. Files may name any parent, in circles too, so a row is handed out
//! only after the row above it was accepted. It must never hand out a row twice.

use std::collections::{HashMap, HashSet};

use crate::identity::key::Key;

/// Rows of type `T`, each with what `C` its children need of it. A row may be there in several copies.
pub(crate) struct ParentsFirst<T, C> {
    waiting: HashMap<Key, Vec<T>>,
    children: HashMap<Key, HashSet<Key>>,
    ready: Vec<(Key, Option<C>)>,
}

impl<T, C: Clone> ParentsFirst<T, C> {
    /// Sorts rows, given with their keys and the keys of their parents.
    pub(crate) fn new(rows: impl IntoIterator<Item = (Key, Option<Key>, T)>) -> Self {
        let mut sorted = Self { waiting: HashMap::new(), children: HashMap::new(), ready: Vec::new() };
        for (key, parent, row) in rows {
            match parent {
                Some(parent) => drop(sorted.children.entry(parent).or_default().insert(key)),
                None => sorted.ready.push((key, None)),
            }
            sorted.waiting.entry(key).or_default().push(row);
        }
        sorted
    }

    /// All copies of the next row, and what its parent was accepted with. Copies that were handed out before are not
    /// handed out again, so there may be none.
    pub(crate) fn next(&mut self) -> Option<(Key, Vec<T>, Option<C>)> {
        let (key, above) = self.ready.pop()?;
        Some((key, self.waiting.remove(&key).unwrap_or_default(), above))
    }

    /// The row was accepted: the rows that build on it come later.
    pub(crate) fn accept(&mut self, key: &Key, for_children: &C) {
        let children = self.children.remove(key).into_iter().flatten();
        self.ready.extend(children.map(|child| (child, Some(for_children.clone()))));
    }

    /// The rows that were never handed out: no accepted row leads to them.
    pub(crate) fn into_rest(self) -> HashMap<Key, Vec<T>> {
        self.waiting
    }
}
