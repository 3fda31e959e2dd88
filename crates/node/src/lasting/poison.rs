//! Requests that ended a process twice: they are remembered, and refused.
//!
//! Asked before each request. Only hashes are kept.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};

use poncho_api::Generate;

/// Requests that are remembered, at most.
const MOST: usize = 256;

/// See the module.
#[derive(Default)]
pub(crate) struct Poison {
    hasher: RandomState,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    order: VecDeque<u64>,
    hashes: HashSet<u64>,
}

impl Poison {
    fn hash(&self, generate: &Generate) -> u64 {
        let Generate { prompt, request, .. } = generate;
        // The same prompt with other settings may be as bad, and another reply to it as well.
        let text = serde_json::to_string(&(prompt, &request.tokens)).unwrap_or_default();
        self.hasher.hash_one(text)
    }

    pub(crate) fn add(&self, generate: &Generate) {
        let hash = self.hash(generate);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.hashes.insert(hash) {
            return;
        }
        known.order.push_back(hash);
        if known.order.len() > MOST
            && let Some(oldest) = known.order.pop_front()
        {
            known.hashes.remove(&oldest);
        }
    }

    pub(crate) fn has(&self, generate: &Generate) -> bool {
        let is_empty = self.known.lock().unwrap_or_else(PoisonError::into_inner).hashes.is_empty();
        // Hashing a long prompt takes a while.
        !is_empty && {
            let hash = self.hash(generate);
            self.known.lock().unwrap_or_else(PoisonError::into_inner).hashes.contains(&hash)
        }
    }
}
