//! Memory that states are packed into and restored from.
//!
//! Made by `Backend::host_buffer`, filled by the worker, kept by the cache (it can be the owner of a `Bytes`).
//! It must never be moved or resized once made: a device may be copying into it.

use std::fmt;

/// The memory behind the bytes: plain memory here, page-locked memory in a GPU backend.
pub trait HostMemory: AsRef<[u8]> + AsMut<[u8]> + Send + Sync + 'static {
    /// Whether a device can copy from and to it without a detour.
    fn is_page_locked(&self) -> bool;
}

/// A fixed piece of memory, of which the first `len` bytes count.
pub struct HostBuffer {
    memory: Box<dyn HostMemory>,
    len: usize,
}

impl HostBuffer {
    /// Plain memory, zeroed, aligned to [`PLAIN_ALIGNMENT`].
    #[must_use]
    pub fn plain(len: usize) -> Self {
        Self::from_memory(Box::new(PlainMemory::new(len)))
    }

    /// Takes over memory of any kind.
    #[must_use]
    pub fn from_memory(memory: Box<dyn HostMemory>) -> Self {
        let len = memory.as_ref().as_ref().len();
        Self { memory, len }
    }

    /// Makes only the first `len` bytes count; a larger value changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the first `len` bytes count, as far as the memory reaches.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// Bytes that count.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no byte counts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes the memory has, whatever counts.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.as_ref().as_ref().len()
    }

    /// Whether a device can copy from and to it without a detour.
    #[must_use]
    pub fn is_page_locked(&self) -> bool {
        self.memory.is_page_locked()
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        let all = self.memory.as_ref().as_ref();
        all.get(..self.len).unwrap_or(all)
    }
}

impl AsMut<[u8]> for HostBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        let all = self.memory.as_mut().as_mut();
        let end = len.min(all.len());
        all.get_mut(..end).unwrap_or_default()
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .field("page_locked", &self.is_page_locked())
            .finish()
    }
}

/// Alignment of plain buffers: a cache line, which is also the widest vector load.
pub const PLAIN_ALIGNMENT: usize = 64;

/// Aligned by starting the slice at the first aligned byte of a slightly larger vector.
pub(crate) struct PlainMemory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl PlainMemory {
    /// Zeroed.
    pub(crate) fn new(len: usize) -> Self {
        // A zeroed vector comes from the system untouched: pages are only made when they are written.
        let bytes = vec![0; len.saturating_add(PLAIN_ALIGNMENT)];
        let start = bytes.as_ptr().align_offset(PLAIN_ALIGNMENT).min(PLAIN_ALIGNMENT);
        Self { bytes, start, len }
    }
}

impl AsRef<[u8]> for PlainMemory {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.start..self.start.saturating_add(self.len)).unwrap_or_default()
    }
}

impl AsMut<[u8]> for PlainMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.start.saturating_add(self.len)).unwrap_or_default()
    }
}

impl HostMemory for PlainMemory {
    fn is_page_locked(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_memory_is_aligned_zeroed_and_of_the_asked_length() {
        for len in [0, 1, 63, 64, 65, 4096, 1_000_003] {
            let buffer = HostBuffer::plain(len);
            assert_eq!(buffer.as_ref().len(), len);
            assert_eq!(buffer.as_ref().as_ptr().align_offset(PLAIN_ALIGNMENT), 0);
            assert!(buffer.as_ref().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn truncating_keeps_the_bytes_in_place() {
        let mut buffer = HostBuffer::plain(100);
        buffer.as_mut().fill(7);
        let address = buffer.as_ref().as_ptr();
        buffer.truncate(40);
        buffer.truncate(60);
        assert_eq!(buffer.as_ref(), &[7; 40]);
        assert_eq!(buffer.as_ref().as_ptr(), address);
        assert_eq!(buffer.capacity(), 100);
    }
}
