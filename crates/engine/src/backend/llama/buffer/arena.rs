//! Page-locked memory that is made beforehand and lent in pieces.
//!
//! While the driver locks memory it starts no kernels: a token waits for a tenth of a second if 256 MB are locked. So nothing
//! is locked while a model computes. A piece comes from a slab that is there. A thread makes the next ones: page-locked as
//! soon as nothing is computed, and of plain memory while a busy server has none left, because the first write to a page takes
//! longer than the copy of a state. Used by `buffer.rs`. Slabs are never freed; together they never exceed the budget.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::host_buffer::HostMemory;
use crate::backend::llama::state::io::LockedSpan;

/// Slabs are made in this size at least. A request that comes while one is made waits for it.
const SLAB: usize = 64 << 20;
/// What is made while a model is loaded: for requests that come at once.
const FIRST: usize = 1 << 30;
/// The least reserve, if the budget allows it, and the reserve of a server that is busy.
const LEAST_RESERVE: usize = 768 << 20;
/// Pieces begin at multiples of a page.
const PAGE: usize = 4096;

/// Where slabs come from.
pub(super) trait Source: Send + Sync {
    /// Makes page-locked memory; `None` if there is none.
    fn lock(&self, len: usize) -> Option<Box<dyn HostMemory>>;

    /// Makes plain memory with pages that were written to; `None` if the machine has too little of it now.
    fn touch(&self, len: usize) -> Option<Box<dyn HostMemory>>;

    /// Whether nothing is computed.
    fn is_quiet(&self) -> bool;

    /// Waits for a moment.
    fn wait(&self);
}

/// See the module.
pub(super) struct Arena {
    inner: Mutex<Inner>,
    source: Box<dyn Source>,
    budget: usize,
}

struct Inner {
    slabs: Vec<Slab>,
    /// Bytes that may still be locked.
    left: usize,
    /// Bytes that are kept free for the next requests.
    reserve: usize,
    is_growing: bool,
}

struct Slab {
    base: NonNull<u8>,
    len: usize,
    is_locked: bool,
    /// Free ranges: where each begins, and its length. No two of them touch.
    free: BTreeMap<usize, usize>,
    /// Kept because it owns what `base` points to.
    _memory: Box<dyn HostMemory>,
}

// SAFETY: the pointer is to memory that the slab owns; pieces of it are lent to one owner at a time.
unsafe impl Send for Slab {}

impl Slab {
    fn new(mut memory: Box<dyn HostMemory>, is_locked: bool) -> Self {
        let bytes = AsMut::<[u8]>::as_mut(&mut *memory);
        let (len, base) = (bytes.len(), NonNull::from(bytes).cast::<u8>());
        Self { base, len, is_locked, free: BTreeMap::from([(0, len - len % PAGE)]), _memory: memory }
    }

    fn free_for(&self, size: usize) -> usize {
        self.free.values().map(|free| free - free % size).sum()
    }

    /// Where a free range of this size begins.
    fn find(&self, size: usize) -> Option<usize> {
        self.free.iter().find(|(_, free)| **free >= size).map(|(at, _)| *at)
    }
}

impl Inner {
    /// Bytes of page-locked slabs that are free for pieces of this size. What is left at the end of a slab and too short for
    /// one does not count: otherwise such ends would look like a reserve, and the next piece would find no memory.
    fn locked_for(&self, size: usize) -> usize {
        self.slabs.iter().filter(|slab| slab.is_locked).map(|slab| slab.free_for(size)).sum()
    }

    /// The same for all slabs.
    fn free_for(&self, size: usize) -> usize {
        self.slabs.iter().map(|slab| slab.free_for(size)).sum()
    }

    /// The place of a slab with room for a piece, and where in it; page-locked ones come first.
    fn find(&self, size: usize) -> Option<(usize, usize)> {
        let find_in = |is_locked: bool| {
            let slabs = self.slabs.iter().enumerate().filter(move |(_, slab)| slab.is_locked == is_locked);
            slabs.filter_map(|(number, slab)| Some((number, slab.find(size)?))).next()
        };
        find_in(true).or_else(|| find_in(false))
    }

    /// The length of a slab for pieces of this size: whole pieces, at least [`SLAB`], or what the budget leaves.
    fn slab_for(&self, size: usize) -> usize {
        let whole = SLAB.checked_next_multiple_of(size).unwrap_or(size);
        if whole <= self.left { whole } else { self.left - self.left % size }
    }
}

impl Arena {
    /// An arena without slabs, which locks at most `budget` bytes.
    pub(super) fn new(budget: usize, source: Box<dyn Source>) -> Arc<Self> {
        let inner =
            Inner { slabs: Vec::new(), left: budget, reserve: LEAST_RESERVE.min(budget / 2), is_growing: false };
        Arc::new(Self { inner: Mutex::new(inner), source, budget })
    }

    /// A piece of this many bytes; `None` if no slab has room.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Option<Piece> {
        let size = len.checked_next_multiple_of(PAGE).filter(|size| *size > 0)?;
        let mut inner = self.inner();
        let piece = inner.find(size).and_then(|(number, at)| {
            let slab = inner.slabs.get_mut(number)?;
            let free = slab.free.remove(&at)?;
            if free > size {
                slab.free.insert(at + size, free - size);
            }
            // SAFETY: `at + size` is at most the length of the slab, as the free ranges are.
            let base = unsafe { slab.base.add(at) };
            Some(Piece { arena: Arc::clone(self), slab: number, is_locked: slab.is_locked, at, size, base, len })
        });
        if inner.locked_for(size) < inner.reserve {
            self.grow(inner, size);
        }
        piece
    }

    /// The memory of all page-locked slabs, in the order of their addresses.
    pub(super) fn spans(&self) -> Vec<LockedSpan> {
        let inner = self.inner();
        let locked = inner.slabs.iter().filter(|slab| slab.is_locked);
        let mut spans: Vec<_> = locked.map(|slab| LockedSpan { from: slab.base.as_ptr(), size: slab.len }).collect();
        spans.sort_unstable_by_key(|span| span.from);
        spans
    }

    /// Makes memory ready for a context that is being made: `row` bytes of its states are saved at once, and `reserve` bytes
    /// of them shall find room, as far as half of the budget allows it. Waits for the first slabs only.
    pub(super) fn prepare(self: &Arc<Self>, row: usize, reserve: usize) {
        let size =
            row.checked_next_multiple_of(PAGE).filter(|size| *size > 0 && *size <= self.budget / 2).unwrap_or(PAGE);
        let mut inner = self.inner();
        inner.reserve = inner.reserve.max(reserve.min(self.budget / 2));
        if inner.slabs.is_empty() && !inner.is_growing {
            inner.is_growing = true;
            drop(inner);
            let mut is_more = true;
            while is_more && self.inner().locked_for(size) < FIRST.min(self.budget / 2) {
                is_more = self.add_locked(size);
            }
            inner = self.inner();
            inner.is_growing = false;
        }
        if inner.locked_for(size) < inner.reserve {
            self.grow(inner, size);
        }
    }

    /// Adds slabs in a thread of its own until there is a reserve, unless one does so already.
    fn grow(self: &Arc<Self>, mut inner: MutexGuard<'_, Inner>, size: usize) {
        if inner.is_growing || inner.slab_for(size) == 0 {
            return;
        }
        inner.is_growing = true;
        drop(inner);
        let arena = Arc::clone(self);
        let grown = std::thread::Builder::new().name("page-lock".to_owned()).spawn(move || arena.fill_up(size));
        if grown.is_err() {
            self.inner().is_growing = false;
        }
    }

    /// Adds slabs until there is a reserve of page-locked memory for pieces of this size.
    fn fill_up(&self, size: usize) {
        loop {
            let is_quiet = self.source.is_quiet();
            let is_more = if is_quiet {
                self.add_locked(size)
            } else if self.inner().free_for(size) < LEAST_RESERVE.min(self.budget / 2) {
                self.add_plain(size)
            } else {
                self.source.wait();
                true
            };
            let mut inner = self.inner();
            if !is_more || inner.locked_for(size) >= inner.reserve {
                inner.is_growing = false;
                return;
            }
        }
    }

    /// Adds a page-locked slab for pieces of this size. Returns whether there may be more.
    fn add_locked(&self, size: usize) -> bool {
        let wanted = self.inner().slab_for(size);
        if wanted == 0 {
            return false;
        }
        let memory = self.source.lock(wanted);
        let mut inner = self.inner();
        let Some(memory) = memory else {
            // A device without such memory has none later either.
            inner.left = 0;
            return false;
        };
        inner.left = inner.left.saturating_sub(wanted);
        inner.slabs.push(Slab::new(memory, true));
        true
    }

    /// The same with plain memory.
    fn add_plain(&self, size: usize) -> bool {
        let wanted = self.inner().slab_for(size);
        if wanted == 0 {
            return false;
        }
        let Some(memory) = self.source.touch(wanted) else { return false };
        let mut inner = self.inner();
        inner.left = inner.left.saturating_sub(wanted);
        inner.slabs.push(Slab::new(memory, false));
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
    is_locked: bool,
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
        self.is_locked
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.arena.give_back(self.slab, self.at, self.size);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

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

    /// Pages that nobody writes to are not made. Something is computed while the value is set.
    struct Pages(Arc<AtomicBool>);

    impl Source for Pages {
        fn lock(&self, len: usize) -> Option<Box<dyn HostMemory>> {
            assert!(!self.0.load(Ordering::SeqCst), "a token would wait");
            Some(Box::new(Plain(vec![0; len])))
        }

        fn touch(&self, len: usize) -> Option<Box<dyn HostMemory>> {
            Some(Box::new(Plain(vec![0; len])))
        }

        fn is_quiet(&self) -> bool {
            !self.0.load(Ordering::SeqCst)
        }

        fn wait(&self) {
            std::thread::yield_now();
        }
    }

    /// An arena, and whether something is computed.
    fn new_arena(budget: usize) -> (Arc<Arena>, Arc<AtomicBool>) {
        let computing = Arc::new(AtomicBool::new(false));
        (Arena::new(budget, Box::new(Pages(Arc::clone(&computing)))), computing)
    }

    fn wait_for_growth(arena: &Arena) {
        while arena.inner().is_growing {
            std::thread::yield_now();
        }
    }

    /// Replies stood still for a tenth of a second after a long prompt, because memory was locked while they were computed.
    #[test]
    fn memory_is_locked_only_while_nothing_is_computed() {
        let (arena, computing) = new_arena(64 * SLAB);
        arena.prepare(SLAB, 20 * SLAB);
        wait_for_growth(&arena);
        assert_eq!(arena.inner().locked_for(SLAB), 20 * SLAB, "the reserve is there before the first request");
        computing.store(true, Ordering::SeqCst);
        let mut held: Vec<Piece> = (0..20).map(|_| arena.take(SLAB).unwrap()).collect();
        assert!(held.iter().all(HostMemory::is_page_locked));
        for _ in 0..20 {
            while arena.inner().free_for(SLAB) < LEAST_RESERVE {
                std::thread::yield_now();
            }
            held.push(arena.take(SLAB).unwrap());
        }
        assert!(held.iter().skip(20).all(|piece| !piece.is_locked), "plain memory is made beforehand instead");
        assert_eq!(arena.inner().locked_for(SLAB), 0);
        let spans = arena.spans();
        assert_eq!(spans.len(), 20, "a device reads no plain memory by itself");
        assert!(spans.is_sorted_by_key(|span| span.from), "a span is found by its address");
        computing.store(false, Ordering::SeqCst);
        wait_for_growth(&arena);
        assert!(arena.take(SLAB).unwrap().is_locked);
        let inner = arena.inner();
        assert_eq!(inner.slabs.iter().map(|slab| slab.len).sum::<usize>() + inner.left, 64 * SLAB);
        drop(inner);
        drop(held);
        let small = new_arena(10 * SLAB).0;
        small.prepare(SLAB, usize::MAX);
        wait_for_growth(&small);
        assert_eq!(small.inner().left, 5 * SLAB, "half of the budget is for rows that are there");
    }

    #[test]
    fn a_device_without_such_memory_is_not_asked_again() {
        struct Nothing;
        impl Source for Nothing {
            fn lock(&self, _: usize) -> Option<Box<dyn HostMemory>> {
                None
            }

            fn touch(&self, _: usize) -> Option<Box<dyn HostMemory>> {
                None
            }

            fn is_quiet(&self) -> bool {
                true
            }

            fn wait(&self) {}
        }
        let arena = Arena::new(64 * PAGE, Box::new(Nothing));
        arena.prepare(PAGE, 64 * PAGE);
        assert!(arena.take(PAGE).is_none());
        assert!(!arena.inner().is_growing);
        assert_eq!(arena.inner().left, 0);
    }

    /// Ends of slabs that are too short for a row counted as a reserve, so every fourth row of a long prompt lay in plain memory.
    #[test]
    fn ends_of_slabs_are_no_reserve_and_slabs_hold_whole_pieces() {
        for row in [SLAB / 4 + PAGE, SLAB + PAGE, 4 * SLAB + PAGE] {
            let (arena, _) = new_arena(256 * SLAB);
            arena.prepare(row, 0);
            let mut held = Vec::new();
            for _ in 0..60 {
                wait_for_growth(&arena);
                held.push(arena.take(row).expect("slabs are made before the last one is used up"));
            }
            let inner = arena.inner();
            let free = inner.slabs.iter().flat_map(|slab| slab.free.values());
            assert_eq!(free.map(|free| free % row).sum::<usize>(), 0, "all slabs hold whole rows");
        }
        let small = new_arena(5 * PAGE).0;
        let inner = small.inner();
        assert_eq!((inner.slab_for(2 * PAGE), inner.slab_for(6 * PAGE)), (4 * PAGE, 0));
    }

    proptest! {
        /// Pieces never overlap, keep their bytes, and all of the slab is one free range in the end.
        #[test]
        fn pieces_are_apart_and_come_back(steps in prop::collection::vec((0_usize..6 * PAGE, any::<prop::sample::Index>(), any::<bool>()), 1..60)) {
            let (arena, _) = new_arena(32 * PAGE);
            prop_assert!(arena.add_locked(32 * PAGE));
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
