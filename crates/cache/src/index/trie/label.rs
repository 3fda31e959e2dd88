//! Edge labels: ranges of shared token buffers, so that splitting an edge copies nothing.
//!
//! A buffer counts how many of its tokens labels still use. It is freed with the last one, and the trie copies
//! the rest out of a buffer that has become sparse. Called by the trie only. Two labels must never overlap in a
//! buffer, or the count is wrong.

use super::arena::Arena;

/// Buffers up to this many tokens (4 KiB) may stay mostly unused: copying them out saves too little.
const SMALL_BUFFER_TOKENS: usize = 1024;

/// A larger buffer is sparse when less than one token in this many is used.
const SPARSE_FACTOR: usize = 4;

/// Tokens that are compared at once: long enough for vector instructions, short enough that finding the place of
/// a difference inside the run costs nothing.
const COMPARED_RUN: usize = 256;

/// What the heap adds to each buffer, roughly.
const ALLOCATION_OVERHEAD: usize = 16;

/// A range of tokens in a buffer. The default is the empty label of the root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Label {
    buffer: u32,
    start: u32,
    end: u32,
}

impl Label {
    pub(super) fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// The first `at` tokens and the rest. Both halves together use what the whole used.
    pub(super) fn split(self, at: usize) -> (Self, Self) {
        let middle = self.start + narrow(at);
        assert!(middle <= self.end, "invariant: a label is split inside its tokens");
        (Self { end: middle, ..self }, Self { start: middle, ..self })
    }

    /// Whether both labels lie in one buffer.
    pub(super) fn shares_buffer(self, other: Self) -> bool {
        self.len() > 0 && other.len() > 0 && self.buffer == other.buffer
    }
}

#[derive(Debug)]
struct Buffer {
    tokens: Box<[u32]>,
    /// Tokens that some label still covers.
    used: usize,
}

/// The buffers of one trie.
#[derive(Debug)]
pub(super) struct Labels {
    buffers: Arena<Buffer>,
    /// Bytes of all buffers, used or not.
    buffer_bytes: usize,
}

impl Labels {
    pub(super) const fn new() -> Self {
        Self { buffers: Arena::new(), buffer_bytes: 0 }
    }

    /// Copies tokens into a buffer of their own.
    pub(super) fn add(&mut self, tokens: &[u32]) -> Label {
        self.own(Box::from(tokens))
    }

    pub(super) fn tokens(&self, label: Label) -> &[u32] {
        if label.len() == 0 {
            // The root's label names no buffer, whatever its index says.
            return &[];
        }
        let (_, from_start) = self.buffer(label).tokens.split_at(label.start as usize);
        let (tokens, _) = from_start.split_at(label.len());
        tokens
    }

    #[expect(clippy::expect_used, reason = "a label that names no buffer is a defect of the trie")]
    fn buffer(&self, label: Label) -> &Buffer {
        self.buffers.get(label.buffer).expect("invariant: a label lies in a buffer")
    }

    /// The first token of a label that is not empty.
    #[expect(clippy::expect_used, reason = "only the root has an empty label, and nothing asks for its first token")]
    pub(super) fn first(&self, label: Label) -> u32 {
        *self.tokens(label).first().expect("invariant: a label has a first token")
    }

    /// The token that follows the label in its buffer: by it the next label of the same buffer is found.
    pub(super) fn following(&self, label: Label) -> Option<u32> {
        self.buffers.get(label.buffer)?.tokens.get(label.end as usize).copied()
    }

    /// Gives up a label; the buffer goes with its last one.
    #[expect(clippy::expect_used, reason = "a label that names no buffer is a defect of the trie")]
    pub(super) fn release(&mut self, label: Label) {
        let buffer = self.buffers.get_mut(label.buffer).expect("invariant: a label lies in a buffer");
        buffer.used -= label.len();
        if buffer.used == 0 {
            self.buffer_bytes -= bytes_of(buffer.tokens.len());
            self.buffers.remove(label.buffer);
        }
    }

    /// One label in place of two that follow each other on a path. Halves of a former split cost nothing.
    pub(super) fn join(&mut self, upper: Label, lower: Label) -> Label {
        if upper.shares_buffer(lower) && upper.end == lower.start {
            return Label { end: lower.end, ..upper };
        }
        let joined = [self.tokens(upper), self.tokens(lower)].concat().into_boxed_slice();
        self.release(upper);
        self.release(lower);
        self.own(joined)
    }

    /// Whether the label keeps a buffer alive that is much larger than what is used of it.
    pub(super) fn is_sparse(&self, label: Label) -> bool {
        // The root's empty label names no buffer, whatever its index says.
        label.len() > 0
            && self.buffers.get(label.buffer).is_some_and(|buffer| {
                buffer.tokens.len() > SMALL_BUFFER_TOKENS && buffer.used < buffer.tokens.len() / SPARSE_FACTOR
            })
    }

    /// Moves labels that follow each other in one buffer, shallow to deep, into a buffer of just their size.
    pub(super) fn move_out(&mut self, labels: &mut [Label]) {
        let (Some(&first), Some(&last)) = (labels.first(), labels.last()) else { return };
        let fitting = self.own(Box::from(self.tokens(Label { end: last.end, ..first })));
        for label in labels {
            let old = *label;
            *label = Label { buffer: fitting.buffer, start: old.start - first.start, end: old.end - first.start };
            self.release(old);
        }
    }

    pub(super) fn has_room(&self, more: usize) -> bool {
        self.buffers.has_room(more)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.buffers.heap_bytes() + self.buffer_bytes
    }

    /// Panics unless each buffer counts exactly the given labels and none is sparse.
    #[cfg(test)]
    pub(super) fn check(&self, labels: &[Label]) {
        let mut buffer_bytes = 0;
        for (index, buffer) in self.buffers.iter() {
            let held: Vec<Label> = labels.iter().copied().filter(|label| label.buffer == index).collect();
            assert_eq!(held.iter().map(|label| label.len()).sum::<usize>(), buffer.used);
            assert!(buffer.used > 0, "a buffer without labels was kept");
            assert!(held.iter().all(|label| !self.is_sparse(*label)), "a sparse buffer was kept");
            buffer_bytes += bytes_of(buffer.tokens.len());
        }
        assert_eq!(buffer_bytes, self.buffer_bytes);
    }

    fn own(&mut self, tokens: Box<[u32]>) -> Label {
        let used = tokens.len();
        self.buffer_bytes += bytes_of(used);
        Label { buffer: self.buffers.add(Buffer { tokens, used }), start: 0, end: narrow(used) }
    }
}

/// Offsets take 32 bits to keep nodes small; the trie refuses rows of more tokens than that can count.
#[expect(clippy::expect_used, reason = "a longer offset would name other tokens")]
fn narrow(offset: usize) -> u32 {
    u32::try_from(offset).expect("invariant: the tokens of a row are counted in 32 bits")
}

const fn bytes_of(tokens: usize) -> usize {
    tokens * size_of::<u32>() + ALLOCATION_OVERHEAD
}

/// How many tokens two lists have in common from their start.
pub(super) fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    let shorter = left.len().min(right.len());
    let ((left, _), (right, _)) = (left.split_at(shorter), right.split_at(shorter));
    let mut common = 0;
    for (left_run, right_run) in left.chunks(COMPARED_RUN).zip(right.chunks(COMPARED_RUN)) {
        if left_run != right_run {
            return common + left_run.iter().zip(right_run).take_while(|(a, b)| a == b).count();
        }
        common += left_run.len();
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefix_is_exact_around_the_ends_of_runs() {
        let tokens: Vec<u32> = (0..600).collect();
        for length in [0, 1, 255, 256, 257, 511, 512, 513, 600] {
            assert_eq!(common_prefix(&tokens, &tokens[..length]), length);
            assert_eq!(common_prefix(&tokens[..length], &tokens), length);
            let mut other = tokens.clone();
            if let Some(token) = other.get_mut(length) {
                *token = u32::MAX;
                assert_eq!(common_prefix(&tokens, &other), length);
            }
        }
    }

    #[test]
    fn halves_share_a_buffer_and_join_without_a_copy() {
        let mut labels = Labels::new();
        let whole = labels.add(&[1, 2, 3, 4, 5]);
        let before = labels.heap_bytes();
        let (upper, lower) = whole.split(2);
        assert_eq!((labels.tokens(upper), labels.tokens(lower)), (&[1, 2][..], &[3, 4, 5][..]));
        assert_eq!(labels.following(upper), Some(3));
        assert_eq!(labels.join(upper, lower), whole);
        assert_eq!(labels.heap_bytes(), before);
    }

    #[test]
    fn strangers_join_into_one_buffer_and_leave_theirs() {
        let mut labels = Labels::new();
        let (upper, lower) = (labels.add(&[1, 2]), labels.add(&[3]));
        let joined = labels.join(upper, lower);
        assert_eq!(labels.tokens(joined), [1, 2, 3]);
        labels.check(&[joined]);
        labels.release(joined);
        assert_eq!(labels.heap_bytes(), 0);
    }

    #[test]
    fn the_rest_of_a_sparse_buffer_moves_out_together() {
        let mut labels = Labels::new();
        let tokens: Vec<u32> = (0..40_000).collect();
        let (dropped_head, tail) = labels.add(&tokens).split(100);
        let (middle, dropped_tail) = tail.split(50);
        labels.release(dropped_head);
        assert!(!labels.is_sparse(middle));
        labels.release(dropped_tail);
        assert!(labels.is_sparse(middle));
        let (upper, lower) = middle.split(20);
        let mut kept = [upper, lower];
        labels.move_out(&mut kept);
        assert_eq!(labels.tokens(kept[0]), &tokens[100..120]);
        assert_eq!(labels.tokens(kept[1]), &tokens[120..150]);
        labels.check(&kept);
        assert!(labels.buffer_bytes < 1000);
    }
}
