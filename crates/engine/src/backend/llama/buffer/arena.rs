//! Page-locked memory that is made beforehand and lent in pieces.
//!
//! Locking a gigabyte takes a tenth of a second and more, so nothing that a request waits for may lock memory: a piece comes
//! from a slab that is there, or the caller takes plain memory and a thread makes the next slab meanwhile. Used by
//! `buffer.rs`. Slabs are never freed; together they never exceed the budget.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::backend::host_buffer::HostMemory;
use crate::backend::llama::state::io::LockedSpan;

/// Slabs are made in this size at least. While the driver locks memory it starts no kernels: a token waits for half a second
/// if a gigabyte is locked at once.
const SLAB: usize = 256 << 20;
/// With room for fewer bytes in pieces of the last size a thread makes slabs: rows come faster than memory is locked.
const RESERVE: usize = 3 * SLAB;
/// Slabs that are made while a model is loaded.
const FIRST_SLABS: usize = 4;
/// Between two slabs, for the kernels that wait.
const PAUSE: Duration = Duration::from_millis(20);
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
    len: usize,
    /// Free ranges: where each begins, and its length. No two of them touch.
    free: BTreeMap<usize, usize>,
    /// Kept because it owns what `base` points to.
    _memory: Box<dyn HostMemory>,
}

// SAFETY: the pointer is to memory that the slab owns; pieces of it are lent to one owner at a time.
unsafe impl Send for Slab {}

impl Inner {
    /// Bytes that are free for pieces of this size. What is left at the end of a slab and too short for one does not count:
    /// otherwise such ends would look like a reserve, and the next piece would find no memory.
    fn free_for(&self, size: usize) -> usize {
        self.slabs.iter().flat_map(|slab| slab.free.values()).map(|free| free - free % size).sum()
    }

    /// The length of a slab for pieces of this size: whole pieces, at least [`SLAB`], or what the budget leaves.
    fn slab_for(&self, size: usize) -> usize {
        let whole = SLAB.checked_next_multiple_of(size).unwrap_or(size);
        if whole <= self.left { whole } else { self.left - self.left % size }
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
            if inner.free_for(size) < RESERVE {
                self.grow(inner, size);
            }
            return Some(Piece { arena: Arc::clone(self), slab: number, at, size, base, len });
        }
        self.grow(inner, size);
        None
    }

    /// The memory of all slabs.
    pub(super) fn spans(&self) -> Vec<LockedSpan> {
        let inner = self.inner();
        inner.slabs.iter().map(|slab| LockedSpan { from: slab.base.as_ptr(), size: slab.len }).collect()
    }

    /// Adds the first slabs, while nobody waits for more than a model that is being loaded.
    pub(super) fn prepare(&self) {
        let mut inner = self.inner();
        if !inner.slabs.is_empty() || inner.is_growing {
            return;
        }
        inner.is_growing = true;
        drop(inner);
        for _ in 0..FIRST_SLABS {
            self.add_slab(PAGE);
        }
        self.inner().is_growing = false;
    }

    /// Adds slabs in a thread of its own until there is a reserve, unless one does so already.
    fn grow(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, size: usize) {
        if inner.is_growing || inner.slab_for(size) == 0 {
            return;
        }
        inner.is_growing = true;
        drop(inner);
        let arena = Arc::clone(self);
        let grown = std::thread::Builder::new().name("page-lock".to_owned()).spawn(move || {
            while arena.add_slab(size) && arena.inner().free_for(size) < RESERVE {
                std::thread::sleep(PAUSE);
            }
            arena.inner().is_growing = false;
        });
        if grown.is_err() {
            self.inner().is_growing = false;
        }
    }

    /// Adds a slab for pieces of this size. Returns whether there may be more.
    fn add_slab(&self, size: usize) -> bool {
        let wanted = self.inner().slab_for(size);
        if wanted == 0 {
            return false;
        }
        let memory = (self.lock)(wanted);
        let mut inner = self.inner();
        let Some(mut memory) = memory else {
            // A device without such memory has none later either.
            inner.left = 0;
            return false;
        };
        let bytes = AsMut::<[u8]>::as_mut(&mut *memory);
        let (len, base) = (bytes.len(), NonNull::from(bytes).cast::<u8>());
        inner.left = inner.left.saturating_sub(len);
        inner.slabs.push(Slab { base, len, free: BTreeMap::from([(0, len - len % PAGE)]), _memory: memory });
        true
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

    /// Pages that nobody writes to are not made.
    fn plain(len: usize) -> Option<Box<dyn HostMemory>> {
        Some(Box::new(Plain(vec![0; len])))
    }

    /// An arena with one slab of this size.
    fn arena(size: usize) -> Arc<Arena> {
        let arena = Arena::new(size, plain);
        assert!(arena.add_slab(size));
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
        assert!(!arena.add_slab(PAGE));
        assert!(arena.take(PAGE).is_none());
        assert!(!arena.inner().is_growing);
    }

    /// Ends of slabs that are too short for a row counted as a reserve, so every fourth row of a long prompt lay in plain memory.
    #[test]
    fn ends_of_slabs_are_no_reserve_and_slabs_hold_whole_pieces() {
        // Nothing is written to these pages, so they take no memory.
        for row in [SLAB / 4 + PAGE, SLAB + PAGE] {
            let arena = Arena::new(64 * SLAB, plain);
            arena.prepare();
            let mut held = Vec::new();
            for number in 0..30 {
                while arena.inner().is_growing {
                    std::thread::yield_now();
                }
                match arena.take(row) {
                    Some(piece) => held.push(piece),
                    // The first slabs are too short for the larger rows.
                    None => assert!(row > SLAB && number == 0, "slabs are made before the last one is used up"),
                }
            }
            let inner = arena.inner();
            let made = inner.slabs.iter().skip(FIRST_SLABS);
            let left: usize =
                made.flat_map(|slab| slab.free.values()).map(|free| free % row.next_multiple_of(PAGE)).sum();
            assert_eq!(left, 0, "all later slabs hold whole rows");
        }
        let small = Arena::new(5 * PAGE, plain);
        let inner = small.inner();
        assert_eq!((inner.slab_for(2 * PAGE), inner.slab_for(6 * PAGE)), (4 * PAGE, 0));
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
