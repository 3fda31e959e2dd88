//! Page-locked memory that is made beforehand and lent in pieces.
//!
//! Locking a gigabyte takes a tenth of a second and more, so nothing that a request waits for may lock memory: a piece comes
//! from a slab that is there, or the caller takes plain memory and a thread makes the next slab meanwhile. Used by
//! `buffer.rs`. Slabs are never freed; together they never exceed the budget.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::host_buffer::HostMemory;

/// Slabs are made in this size, or in that of a larger piece.
const SLAB: usize = 1 << 30;
/// With less left a thread makes the next slab: rows come faster than memory is locked.
const RESERVE: usize = SLAB / 2;
/// Pieces begin at multiples of a page.
const PAGE: usize = 4096;

/// Makes page-locked memory; `None` if there is none.
pub(super) type Lock = fn(usize) -> Option<Box<dyn HostMemory>>;

/// See the module.
pub(super) struct Arena {
    inner: Mutex<Inner>,
    lock: Lock,
}

struct Inner {
    slabs: Vec<Slab>,
    /// Bytes that may still be locked.
    left: usize,
    is_growing: bool,
}

struct Slab {
    base: NonNull<u8>,
    /// Free ranges: where each begins, and its length. No two of them touch.
    free: BTreeMap<usize, usize>,
    /// Kept because it owns what `base` points to.
    _memory: Box<dyn HostMemory>,
}

// SAFETY: the pointer is to memory that the slab owns; pieces of it are lent to one owner at a time.
unsafe impl Send for Slab {}

impl Inner {
    fn free(&self) -> usize {
        self.slabs.iter().flat_map(|slab| slab.free.values()).sum()
    }
}

impl Arena {
    /// An arena without slabs, which locks at most `budget` bytes.
    pub(super) fn new(budget: usize, lock: Lock) -> Arc<Self> {
        Arc::new(Self { inner: Mutex::new(Inner { slabs: Vec::new(), left: budget, is_growing: false }), lock })
    }

    /// A piece of this many bytes; `None` if no slab has room, which makes a thread add one.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<Piece> {
        let size = len.checked_next_multiple_of(PAGE).filter(|size| *size > 0)?;
        let mut inner = self.inner();
        for (number, slab) in inner.slabs.iter_mut().enumerate() {
            let Some((&at, &free)) = slab.free.iter().find(|(_, free)| **free >= size) else { continue };
            slab.free.remove(&at);
            if free > size {
                slab.free.insert(at + size, free - size);
            }
            // SAFETY: `at + size` is at most the length of the slab, as the free ranges are.
            let base = unsafe { slab.base.add(at) };
            // The next slab is made before this one is used up.
            if inner.free() < RESERVE {
                self.grow(inner, PAGE);
            }
            return Some(Piece { arena: Arc::clone(self), slab: number, at, size, base, len });
        }
        self.grow(inner, size);
        None
    }

    /// Adds the first slab, while nobody waits for more than a model that is being loaded.
    pub(super) fn prepare(&self) {
        let mut inner = self.inner();
        let size = SLAB.min(inner.left);
        if inner.slabs.is_empty() && !inner.is_growing && size > 0 {
            inner.is_growing = true;
            drop(inner);
            self.add_slab(size);
        }
    }

    /// Adds a slab in a thread of its own, unless one is being added or the budget is spent.
    fn grow(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, size: usize) {
        let wanted = size.max(SLAB.min(inner.left));
        if inner.is_growing || wanted > inner.left {
            return;
        }
        inner.is_growing = true;
        drop(inner);
        let arena = Arc::clone(self);
        let grown = std::thread::Builder::new().name("page-lock".to_owned()).spawn(move || arena.add_slab(wanted));
        if grown.is_err() {
            self.inner().is_growing = false;
        }
    }

    fn add_slab(&self, size: usize) {
        let memory = (self.lock)(size);
        let mut inner = self.inner();
        inner.is_growing = false;
        let Some(mut memory) = memory else {
            // A device without such memory has none later either.
            inner.left = 0;
            return;
        };
        let bytes = AsMut::<[u8]>::as_mut(&mut *memory);
        let (len, base) = (bytes.len(), NonNull::from(bytes).cast::<u8>());
        inner.left = inner.left.saturating_sub(len);
        inner.slabs.push(Slab { base, free: BTreeMap::from([(0, len - len % PAGE)]), _memory: memory });
    }

    fn give_back(&self, slab: usize, at: usize, size: usize) {
        let mut inner = self.inner();
        let Some(slab) = inner.slabs.get_mut(slab) else { return };
        let (mut at, mut size) = (at, size);
        if let Some((&before, &len)) = slab.free.range(..at).next_back()
            && before + len == at
        {
            slab.free.remove(&before);
            (at, size) = (before, len + size);
        }
        if let Some(len) = slab.free.remove(&(at + size)) {
            size += len;
        }
        slab.free.insert(at, size);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lent piece; it returns to its slab when it is dropped.
pub(super) struct Piece {
    arena: Arc<Arena>,
    slab: usize,
    at: usize,
    size: usize,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the range is lent to this value alone.
unsafe impl Send for Piece {}
// SAFETY: shared access only reads the bytes.
unsafe impl Sync for Piece {}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `base` points to `len` initialised bytes of a slab that is never freed.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Piece {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the range is lent to this value alone, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl HostMemory for Piece {
    fn is_page_locked(&self) -> bool {
        true
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.arena.give_back(self.slab, self.at, self.size);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Plain(Vec<u8>);

    impl AsRef<[u8]> for Plain {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl AsMut<[u8]> for Plain {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl HostMemory for Plain {
        fn is_page_locked(&self) -> bool {
            true
        }
    }

    fn plain(len: usize) -> Option<Box<dyn HostMemory>> {
        Some(Box::new(Plain(vec![0; len])))
    }

    /// An arena with one slab of this size.
    fn arena(size: usize) -> Arc<Arena> {
        let arena = Arena::new(size, plain);
        arena.add_slab(size);
        arena
    }

    #[test]
    fn memory_is_never_locked_while_a_caller_waits() {
        let arena = Arena::new(64 * PAGE, plain);
        assert!(arena.take(PAGE).is_none(), "there is no slab yet");
        while arena.take(PAGE).is_none() {
            std::thread::yield_now();
        }
        assert!(arena.take(65 * PAGE).is_none());
        arena.prepare();
        assert_eq!(arena.inner().left, 0, "the budget is spent");
    }

    #[test]
    fn a_device_without_such_memory_is_not_asked_again() {
        let arena = Arena::new(64 * PAGE, |_| None);
        arena.add_slab(PAGE);
        assert!(arena.take(PAGE).is_none());
        assert!(!arena.inner().is_growing);
    }

    proptest! {
        /// Pieces never overlap, keep their bytes, and all of the slab is one free range in the end.
        #[test]
        fn pieces_are_apart_and_come_back(steps in prop::collection::vec((0_usize..6 * PAGE, any::<prop::sample::Index>(), any::<bool>()), 1..60)) {
            let arena = arena(32 * PAGE);
            let mut held: Vec<(Piece, u8)> = Vec::new();
            for (number, (len, which, gives)) in steps.into_iter().enumerate() {
                if gives && !held.is_empty() {
                    held.swap_remove(which.index(held.len()));
                } else if let Some(mut piece) = arena.take(len) {
                    let mark = u8::try_from(number).unwrap();
                    piece.as_mut().fill(mark);
                    held.push((piece, mark));
                }
                for (piece, mark) in &held {
                    prop_assert!(piece.as_ref().iter().all(|byte| byte == mark));
                }
            }
            held.clear();
            let inner = arena.inner();
            prop_assert_eq!(&inner.slabs[0].free, &BTreeMap::from([(0, 32 * PAGE)]));
        }
    }
}
