//! Past responses, so that a client can name one instead of sending its conversation again.
//!
//! Written by `create` when a response ends, read by `create` and `stored`. In memory, bounded in count and bytes. The
//! owner that has stored most loses what it used least recently. A response holds the whole conversation before it, shared with others, so
//! dropping or deleting an earlier one never breaks a later one. It must never hold what was asked not to be stored, nor
//! show anybody what another has stored.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::item::Item;
use crate::owner::Owner;
use poncho_kinds::FairLru;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreLimits {
    pub(crate) responses: usize,
    /// Counted as if nothing was shared, so the memory in use is less.
    pub(crate) bytes: usize,
}

impl Default for StoreLimits {
    fn default() -> Self {
        // An agent makes some hundred responses in an hour, of up to a megabyte of conversation each.
        Self { responses: 4096, bytes: 256 << 20 }
    }
}

/// A response that ended.
#[derive(Debug)]
pub(crate) struct StoredResponse {
    pub(crate) id: String,
    /// Who alone may read it.
    pub(crate) owner: Owner,
    /// The response object as it was sent.
    pub(crate) json: String,
    /// What it was made from: the earlier conversation and the request's own items.
    pub(crate) input: Vec<Arc<Item>>,
    pub(crate) output: Vec<Arc<Item>>,
}

impl StoredResponse {
    /// The conversation after it.
    pub(crate) fn conversation(&self) -> impl Iterator<Item = &Arc<Item>> {
        self.input.iter().chain(&self.output)
    }

    fn cost(&self) -> usize {
        let item = |item: &Arc<Item>| serde_json::to_vec(&**item).map_or(0, |json| json.len()) + size_of::<Item>();
        self.json.len() + self.conversation().map(item).sum::<usize>() + size_of::<Self>()
    }
}

/// See the module.
pub(crate) struct ResponseStore {
    limits: StoreLimits,
    shelf: Mutex<Shelf>,
}

/// What one owner has stored.
#[derive(Clone, Copy)]
pub(crate) struct OwnResponses<'s> {
    pub(crate) store: &'s ResponseStore,
    pub(crate) owner: Owner,
}

impl OwnResponses<'_> {
    /// The response of that id; it counts as used now.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<StoredResponse>> {
        self.store.get(self.owner, id)
    }

    /// An item of any stored response, the latest used ones first.
    pub(crate) fn item(&self, id: &str) -> Option<Arc<Item>> {
        self.store.item(self.owner, id)
    }
}

type Shelf = FairLru<Owner, String, Arc<StoredResponse>>;

impl Default for ResponseStore {
    fn default() -> Self {
        Self::new(StoreLimits::default())
    }
}

impl ResponseStore {
    pub(crate) fn new(limits: StoreLimits) -> Self {
        Self { limits, shelf: Mutex::new(FairLru::new(limits.responses, limits.bytes)) }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // No step in here can panic half-way and leave the numbers wrong.
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a response. One that is larger than its owner's share is not kept.
    pub(crate) fn put(&self, response: StoredResponse) {
        let (id, owner, cost) = (response.id.clone(), response.owner, response.cost());
        if !self.shelf().put(owner, id.clone(), Arc::new(response), cost) {
            tracing::warn!(id, cost, limit = self.limits.bytes, "the response is too large to be stored");
        }
    }

    /// The owner's response of that id; it counts as used now.
    pub(crate) fn get(&self, owner: Owner, id: &str) -> Option<Arc<StoredResponse>> {
        let mut shelf = self.shelf();
        let response = shelf.peek(id).filter(|response| response.owner == owner).cloned()?;
        shelf.touch(id);
        Some(response)
    }

    /// Forgets a response of the owner; says whether it was there.
    pub(crate) fn remove(&self, owner: Owner, id: &str) -> bool {
        let mut shelf = self.shelf();
        shelf.peek(id).is_some_and(|response| response.owner == owner) && shelf.remove(id).is_some()
    }

    /// An item of any response that the owner has stored, the latest used ones first.
    pub(crate) fn item(&self, owner: Owner, id: &str) -> Option<Arc<Item>> {
        let has_it = |one: &Arc<StoredResponse>| one.conversation().find(|item| item.id() == id).cloned();
        self.shelf().newest_of(owner).find_map(has_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::responses::item::{ContentPart, Role, Status};

    const NOBODY: Owner = Owner(None);

    fn item(id: &str, text: &str) -> Arc<Item> {
        let content = vec![ContentPart::InputText { text: text.to_owned() }];
        Arc::new(Item::Message { id: id.to_owned(), status: Status::Completed, role: Role::User, content })
    }

    fn response(id: &str, bytes: usize) -> StoredResponse {
        StoredResponse {
            id: id.to_owned(),
            owner: NOBODY,
            json: "x".repeat(bytes),
            input: vec![item(&format!("msg_{id}"), "hello")],
            output: Vec::new(),
        }
    }

    fn store(responses: usize, bytes: usize) -> ResponseStore {
        ResponseStore::new(StoreLimits { responses, bytes })
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let store = store(2, usize::MAX / 2);
        store.put(response("a", 1));
        store.put(response("b", 1));
        assert!(store.get(NOBODY, "a").is_some());
        store.put(response("c", 1));
        assert!(
            store.get(NOBODY, "a").is_some() && store.get(NOBODY, "b").is_none() && store.get(NOBODY, "c").is_some()
        );
        assert!(store.item(NOBODY, "msg_b").is_none() && store.item(NOBODY, "msg_c").is_some());
        assert!(store.remove(NOBODY, "a") && !store.remove(NOBODY, "a") && store.get(NOBODY, "a").is_none());
    }

    #[test]
    fn what_is_anothers_is_not_there() {
        let (one, two) = (Owner(Some(1)), Owner(Some(2)));
        let store = store(2, usize::MAX / 2);
        store.put(StoredResponse { owner: one, ..response("a", 1) });
        for other in [two, NOBODY] {
            assert!(
                store.get(other, "a").is_none() && store.item(other, "msg_a").is_none() && !store.remove(other, "a")
            );
        }
        assert!(store.get(one, "a").is_some() && store.item(one, "msg_a").is_some() && store.remove(one, "a"));
    }

    #[test]
    fn bytes_are_bounded_and_a_giant_pushes_nobody_out() {
        let one = response("a", 1000).cost();
        let store = store(100, 2 * one);
        for id in ["a", "b", "c"] {
            store.put(response(id, 1000));
        }
        assert!(
            store.get(NOBODY, "a").is_none() && store.get(NOBODY, "b").is_some() && store.get(NOBODY, "c").is_some()
        );
        store.put(response("giant", 3 * one));
        assert!(store.get(NOBODY, "giant").is_none() && store.get(NOBODY, "b").is_some());
        store.put(StoredResponse { json: "y".repeat(999), ..response("b", 0) });
        assert!(
            store.get(NOBODY, "b").unwrap().json.starts_with('y') && store.get(NOBODY, "c").is_some(),
            "written over, not twice"
        );
    }

    #[test]
    fn a_dropped_ancestor_lives_on_in_its_descendants() {
        let store = store(1, usize::MAX / 2);
        store.put(response("a", 1));
        let before: Vec<Arc<Item>> = store.get(NOBODY, "a").unwrap().conversation().cloned().collect();
        store.put(StoredResponse { input: before, ..response("b", 1) });
        assert!(store.get(NOBODY, "a").is_none());
        assert_eq!(store.get(NOBODY, "b").unwrap().input[0].id(), "msg_a");
    }

    /// Hardening 26: a key that stored much pushed out what all others had stored.
    #[test]
    fn one_owner_does_not_push_out_what_another_has_stored() {
        let (one, two) = (Owner(Some(1)), Owner(Some(2)));
        let store = store(10, usize::MAX / 2);
        for id in ["a", "b", "c"] {
            store.put(StoredResponse { owner: one, ..response(id, 1) });
        }
        for number in 0..100 {
            store.put(StoredResponse { owner: two, ..response(&format!("other{number}"), 1) });
        }
        assert!(["a", "b", "c"].iter().all(|id| store.get(one, id).is_some()));
        assert!(store.get(two, "other99").is_some() && store.get(two, "other92").is_none());
    }
}
