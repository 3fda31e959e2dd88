//! Memory for the next chain from another machine, with its pages made beforehand.
//!
//! Making the pages of a fresh buffer takes as long as filling it, and a request waits meanwhile. A reader takes its memory
//! here; when a fetch is over and its request has its first token, memory of the same size is made ready for the next one.
//! At most one buffer is kept, for a while, and never a large one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;

/// Less is made as fast as it is found.
const LEAST: usize = 1 << 20;
/// More is not kept.
const MOST: usize = 128 << 20;
/// A kept buffer may be longer than what is asked for by one part in this many.
const SLACK: usize = 4;
/// How long a fetch must be over: its request has its first token by then.
const QUIET: Duration = Duration::from_secs(1);
/// How long a buffer is kept if nobody takes it.
const KEEP: Duration = Duration::from_secs(120);

/// See the module. Clones share what is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    buffer: Option<BytesMut>,
    /// Counts what was made, so that a later buffer is not dropped in the place of its predecessor.
    number: u64,
}

impl Spare {
    /// An empty buffer with at least this much room.
    pub(crate) fn take(&self, bytes: usize) -> BytesMut {
        let fits = |buffer: &mut BytesMut| (bytes..=bytes + bytes / SLACK).contains(&buffer.capacity());
        self.lock().buffer.take_if(fits).unwrap_or_else(|| BytesMut::with_capacity(bytes))
    }

    /// Makes memory of this size ready after a while. Must be called on a runtime.
    pub(crate) fn prepare(&self, bytes: usize) {
        if !(LEAST..=MOST).contains(&bytes) {
            return;
        }
        let spare = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(QUIET).await;
            let made = tokio::task::spawn_blocking(move || touched(bytes)).await;
            let Ok(buffer) = made else { return };
            let number = spare.put(buffer);
            tokio::time::sleep(KEEP).await;
            spare.drop_unused(number);
        });
    }

    fn put(&self, buffer: BytesMut) -> u64 {
        let mut kept = self.lock();
        kept.number += 1;
        kept.buffer = Some(buffer);
        kept.number
    }

    fn drop_unused(&self, number: u64) {
        let mut kept = self.lock();
        if kept.number == number {
            kept.buffer = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An empty buffer that has its pages.
fn touched(bytes: usize) -> BytesMut {
    let mut buffer = BytesMut::with_capacity(bytes);
    // Zeros might come from the system untouched.
    buffer.resize(bytes, 1);
    buffer.clear();
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn memory_is_ready_after_a_while_and_is_taken_once_by_what_fits() {
        let spare = Spare::default();
        spare.prepare(LEAST - 1);
        spare.prepare(MOST + 1);
        tokio::time::sleep(QUIET * 2).await;
        assert!(spare.lock().buffer.is_none(), "too small or too large");
        spare.prepare(4 * LEAST);
        assert!(spare.lock().buffer.is_none(), "not beside the first token");
        while spare.lock().buffer.is_none() {
            tokio::time::sleep(QUIET).await;
        }
        assert_eq!(spare.take(2 * LEAST).capacity(), 2 * LEAST, "too long for this one");
        let address = spare.lock().buffer.as_ref().map(|buffer| buffer.as_ptr());
        let taken = spare.take(4 * LEAST - 1000);
        assert_eq!((Some(taken.as_ptr()), taken.len()), (address, 0));
        assert!(spare.lock().buffer.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_that_nobody_takes_is_returned() {
        let spare = Spare::default();
        spare.prepare(2 * LEAST);
        while spare.lock().buffer.is_none() {
            tokio::time::sleep(QUIET).await;
        }
        tokio::time::sleep(KEEP * 2).await;
        assert!(spare.lock().buffer.is_none());
    }
}
