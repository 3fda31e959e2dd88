//! Buffers for stored states on their way to the context, kept between requests.
//!
//! The page faults of a fresh buffer of tens of megabytes cost as much as reading the bytes into it. Each worker has one
//! pool; the reading threads and copies between sequences borrow buffers and return them by dropping them, however late. The
//! pool must never keep more memory than its limit, and never allocate memory that the machine does not have: the length of
//! a stored state comes from a file.

use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};

use poncho_cache::{PressureSource, SystemSource};

use crate::backend::{Backend, ContextInfo, HostBuffer};
use crate::state::segment_reader::piece_length;

/// Below this a fresh buffer is as good as a kept one.
const SMALLEST: usize = 1 << 20;
/// What may be kept while nothing is restored. Two segments of most models fit; larger ones are allocated each time.
const LIMIT: usize = 256 << 20;

/// Bytes that may be allocated for a stored state. The length comes from a file, so a large one is compared with the free
/// memory of the machine: a failed allocation ends this process, and using up the last of the memory ends others.
pub(crate) fn free_memory() -> u64 {
    SystemSource::default().sample().map_or(u64::MAX, |sample| sample.total.saturating_sub(sample.used))
}

/// Whether a buffer of `length` bytes can be allocated.
fn has_room(length: usize) -> bool {
    let mut probe = Vec::<u8>::new();
    // The compiler may leave out an allocation that nobody looks at.
    let mut can_allocate = || probe.try_reserve_exact(length).is_ok() && black_box(&probe).capacity() >= length;
    length <= LIMIT || (length as u64 <= free_memory() && can_allocate())
}

/// Bytes that the first restore after a start may take, by the bytes and tokens of what is stored: those of the largest row,
/// and those of the longest conversation.
pub(crate) fn expected(rows: impl Iterator<Item = (u64, u32)>, info: &ContextInfo) -> (usize, usize) {
    let (row, tokens) = rows.fold((0, 0), |most, next| (next.0.max(most.0), next.1.max(most.1)));
    // Beside keys and values a cell has a record of its own, some bytes long.
    let keys_and_values = info.segment_bytes_per_token.saturating_mul(tokens.min(info.n_ctx).into());
    let conversation = keys_and_values.saturating_add(keys_and_values / 32);
    let bounded = |bytes: u64| usize::try_from(bytes).map_or(LIMIT, |bytes| bytes.min(LIMIT));
    (bounded(row), bounded(conversation))
}

/// See the module. Clones share what is kept.
#[derive(Debug, Default, Clone)]
pub(crate) struct BufferPool {
    kept: Arc<Mutex<Vec<HostBuffer>>>,
}

/// A borrowed buffer.
pub(crate) struct PooledBuffer {
    pool: BufferPool,
    buffer: Option<HostBuffer>,
}

impl BufferPool {
    /// A buffer of exactly `length` bytes of unspecified content; an empty one if there is not that much memory.
    pub(crate) fn take(&self, backend: &dyn Backend, length: usize) -> PooledBuffer {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = kept.iter().enumerate().filter(|(_, buffer)| length >= SMALLEST && buffer.capacity() >= length);
        // The smallest that fits: a larger one may be wanted next.
        let best = fits.min_by_key(|(_, buffer)| buffer.capacity()).map(|(place, _)| place);
        let buffer = match best {
            Some(place) => {
                let mut buffer = kept.swap_remove(place);
                buffer.set_len(length);
                Some(buffer)
            }
            None if has_room(length) => {
                drop(kept);
                Some(backend.host_buffer(length))
            }
            None => {
                tracing::warn!(
                    bytes = length,
                    "a stored state is larger than the free memory; the prompt is computed instead"
                );
                None
            }
        };
        PooledBuffer { pool: self.clone(), buffer }
    }

    /// Prepares buffers for a row and for a conversation of the given sizes, with their pages touched: creating the pages
    /// takes longer than filling them.
    pub(crate) fn prepare(&self, backend: &dyn Backend, (row, conversation): (usize, usize)) {
        let piece = piece_length(conversation);
        let beyond = conversation.saturating_sub(row);
        let rest = if beyond < SMALLEST { 0 } else { beyond.div_ceil(piece) };
        let lengths = std::iter::once(row).chain(std::iter::repeat_n(piece, rest));
        let mut total = 0;
        let mut ready = Vec::new();
        for length in lengths {
            total += length;
            if total > LIMIT {
                break;
            }
            let mut buffer = self.take(backend, length);
            buffer.as_mut().fill(1);
            ready.push(buffer);
        }
    }

    fn give_back(&self, buffer: HostBuffer) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let size = buffer.capacity();
        if (SMALLEST..=LIMIT).contains(&size) {
            kept.push(buffer);
            // The oldest go first: what was used last fits best what comes next.
            while kept.iter().map(HostBuffer::capacity).sum::<usize>() > LIMIT {
                kept.remove(0);
            }
        }
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| buffer.as_ref())
    }
}

impl AsMut<[u8]> for PooledBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], |buffer| buffer.as_mut())
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.give_back(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::stub::StubBackend;
    use crate::backend::{KvLayout, MemoryKind};

    fn kept(pool: &BufferPool) -> Vec<usize> {
        pool.kept.lock().unwrap().iter().map(HostBuffer::capacity).collect()
    }

    #[test]
    fn a_large_buffer_is_used_again_and_has_the_length_that_was_asked_for() {
        let (pool, backend) = (BufferPool::default(), StubBackend::new(MemoryKind::Attention));
        drop(pool.take(&backend, 3 << 20));
        let before = kept(&pool);
        let second = pool.take(&backend, 2 << 20);
        assert_eq!(second.as_ref().len(), 2 << 20);
        assert!(kept(&pool).is_empty(), "it is out");
        drop(second);
        assert_eq!(kept(&pool), before);
        drop(pool.take(&backend, 10));
        assert_eq!(kept(&pool), before, "a small one is not worth keeping, nor a large one worth taking for it");
    }

    #[test]
    fn what_was_prepared_serves_the_first_state() {
        let (pool, backend) = (BufferPool::default(), StubBackend::new(MemoryKind::Attention));
        pool.prepare(&backend, (64 << 20, 64 << 20));
        let ready = kept(&pool);
        assert!(matches!(ready.as_slice(), [size] if (64 << 20..=LIMIT).contains(size)), "{ready:?}");
        let first = pool.take(&backend, 40 << 20);
        assert!(kept(&pool).is_empty(), "it is the one that was ready");
        drop(first);
        let rows = BufferPool::default();
        rows.prepare(&backend, (2 << 20, 40 << 20));
        let sizes: Vec<usize> = kept(&rows).iter().map(|size| size >> 20).collect();
        assert_eq!(sizes, [2, 20, 20], "a row, and the pieces of a conversation");
        let huge = BufferPool::default();
        huge.prepare(&backend, (LIMIT, LIMIT));
        assert!(kept(&huge).iter().sum::<usize>() <= LIMIT + 64);
        let small = BufferPool::default();
        small.prepare(&backend, (1000, 2000));
        assert!(kept(&small).is_empty(), "small states need none");
    }

    #[test]
    fn the_largest_row_and_the_longest_conversation_that_fits_are_expected() {
        let rows = || [(7_000, 600), (9_000, 200), (1_000, 900)].into_iter();
        let info = |segment_bytes_per_token, n_ctx| ContextInfo {
            n_ctx,
            n_cells: n_ctx,
            n_seq_max: 1,
            n_batch: 1,
            n_ubatch: 1,
            n_threads: 1,
            n_threads_batch: 1,
            kv: KvLayout::Split,
            memory: MemoryKind::Attention,
            flash_attention: None,
            segment_bytes_per_token,
            on_device: false,
            state_layout: Vec::new(),
        };
        assert_eq!(expected(rows(), &info(3200, 10_000)), (9_000, 900 * 3300));
        assert_eq!(expected(rows(), &info(3200, 500)), (9_000, 500 * 3300), "more would not be restored");
        assert_eq!(expected(rows(), &info(u64::MAX, 500)), (9_000, LIMIT));
        assert_eq!(expected(std::iter::empty(), &info(3200, 500)), (0, 0));
    }

    /// Hardening 24: a length of a file that no machine has memory for ended the process.
    #[test]
    fn a_length_beyond_all_memory_gets_an_empty_buffer() {
        let (pool, backend) = (BufferPool::default(), StubBackend::new(MemoryKind::Attention));
        for length in [1 << 50, usize::MAX / 2, usize::MAX] {
            let mut none = pool.take(&backend, length);
            assert!(none.as_ref().is_empty() && none.as_mut().is_empty(), "{length}");
        }
        assert_eq!(pool.take(&backend, LIMIT + 1).as_ref().len(), LIMIT + 1);
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        let (pool, backend) = (BufferPool::default(), StubBackend::new(MemoryKind::Attention));
        let out: Vec<_> = (0..5).map(|_| pool.take(&backend, LIMIT / 4)).collect();
        drop(out);
        assert!(kept(&pool).iter().sum::<usize>() <= LIMIT && kept(&pool).len() >= 3);
        drop(pool.take(&backend, LIMIT + 1));
        assert!(kept(&pool).iter().all(|size| *size <= LIMIT));
    }
}
