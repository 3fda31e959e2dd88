//! Restoring a chain of small rows that all lie in memory: they are joined, and fewer and larger pieces are set.
//!
//! Part of the restorer. Setting a row costs the library some tens of microseconds beside its bytes, and a device a copy for
//! each layer; a row of a short turn is hardly more than that. In one pool of cells rows are set as they are until the first
//! joined piece is there, which another thread makes meanwhile. With a pool for each sequence a chain has to be set at once, so it
//! is joined at once, by two threads. It must never be slower than setting the rows one by one.

use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use bytes::Bytes;
use poncho_cache::{PartKind, Segment, Tier};

use crate::backend::{Backend, KvLayout, SegmentJoiner};
use crate::restore::{Failure, Restorer};
use crate::staging::{Staged, Staging};

/// In one pool, chains of fewer rows are set one by one.
const FEWEST_ROWS: usize = 8;
/// A chain is set in about so many pieces, so that the first one is soon there.
const PIECES: usize = 8;
/// Rows of this size are as good as joined ones.
const LARGE: usize = 6 << 20;

/// A row of the chain: its bytes, and the tokens that count.
struct Row {
    bytes: Bytes,
    range: Range<u32>,
}

/// What is set in one go.
enum Piece<'a> {
    /// Rows as they are.
    Rows(&'a [Row]),
    Joined(Staged<'a>, Range<u32>),
}

impl Restorer<'_> {
    /// Sets the rows of a chain if all are in memory and small enough for that to pay. `None` if they are not.
    pub(crate) fn restore_joined(&mut self, segments: &[&Segment]) -> Option<Result<(), Failure>> {
        let kv = self.context.info().kv;
        let fewest = if kv == KvLayout::Split { 2 } else { FEWEST_ROWS };
        if segments.len() < fewest {
            return None;
        }
        let row = |segment: &&Segment| Some(Row { bytes: segment.bytes(PartKind::Attention)?, range: segment.range() });
        let rows: Vec<Row> = segments.iter().map(row).collect::<Option<_>>()?;
        let total: usize = rows.iter().map(|row| row.bytes.len()).sum();
        let joiner = self.context.joiner()?;
        let joins = Joins { backend: self.backend, staging: self.staging, joiner: &*joiner };
        let started = Instant::now();
        let restored = match kv {
            KvLayout::Split => joins.join(&rows, 2).and_then(|piece| self.put_piece(&piece)),
            KvLayout::Unified if total / rows.len() >= LARGE => return None,
            KvLayout::Unified => self.restore_pieces(joins, &groups(&rows, (total / PIECES).min(LARGE))),
        };
        if restored.is_ok() {
            self.estimates.record_restore(Tier::Ram, total as u64, started.elapsed());
        }
        Some(restored)
    }

    /// Sets one group after the other; the next one is joined while one is set.
    fn restore_pieces(&mut self, joins: Joins<'_>, groups: &[&[Row]]) -> Result<(), Failure> {
        let Some((first, others)) = groups.split_first() else { return Ok(()) };
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(1);
            let helper = std::thread::Builder::new().name("poncho-joiner".to_owned());
            let work = move || {
                for group in others {
                    let piece = joins.join(group, 1);
                    let failed = piece.is_err();
                    if sender.send(piece).is_err() || failed {
                        break;
                    }
                }
            };
            helper.spawn_scoped(scope, work).map_err(|_| Failure::Refused)?;
            self.put_piece(&Piece::Rows(first))?;
            for _ in others {
                let piece = receiver.recv().map_err(|_| Failure::Refused)??;
                self.put_piece(&piece)?;
            }
            Ok(())
        })
    }

    fn put_piece(&mut self, piece: &Piece<'_>) -> Result<(), Failure> {
        match piece {
            Piece::Rows(rows) => rows.iter().try_for_each(|row| self.put_segment(&row.bytes, row.range.end)),
            Piece::Joined(bytes, range) => self.put_segment(bytes.as_ref(), range.end),
        }
    }
}

/// What joining takes.
#[derive(Clone, Copy)]
struct Joins<'a> {
    backend: &'a dyn Backend,
    staging: &'a Staging,
    joiner: &'a dyn SegmentJoiner,
}

impl<'a> Joins<'a> {
    fn join(self, rows: &'a [Row], threads: usize) -> Result<Piece<'a>, Failure> {
        let [first, .., last] = rows else { return Ok(Piece::Rows(rows)) };
        let range = first.range.start..last.range.end;
        let segments: Vec<&[u8]> = rows.iter().map(|row| row.bytes.as_ref()).collect();
        let mut joined = self.staging.take(self.backend, self.joiner.joined_len(&range));
        self.joiner.join(&segments, range.clone(), threads, joined.as_mut()).map_err(|error| {
            tracing::warn!(%error, "stored segments do not fit together; the prompt is computed instead");
            Failure::Refused
        })?;
        Ok(Piece::Joined(joined, range))
    }
}

/// Neighbours that together have at least `size` bytes.
fn groups(rows: &[Row], size: usize) -> Vec<&[Row]> {
    let mut groups = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (place, row) in rows.iter().enumerate() {
        bytes += row.bytes.len();
        if bytes >= size || place + 1 == rows.len() {
            groups.extend(rows.get(start..=place));
            (start, bytes) = (place + 1, 0);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_size_or_end_the_chain_and_nothing_is_lost() {
        let row = |length: usize| Row { bytes: vec![0; length].into(), range: 0..1 };
        let rows: Vec<Row> = [3, 3, 3, 9, 1, 1, 1].into_iter().map(row).collect();
        let sizes = |size| groups(&rows, size).iter().map(|group| group.len()).collect::<Vec<_>>();
        assert_eq!(sizes(6), [2, 2, 3]);
        assert_eq!(sizes(9), [3, 1, 3]);
        assert_eq!(sizes(1), [1; 7]);
        assert_eq!(sizes(1000), [7]);
        assert!(groups(&[], 5).is_empty());
    }
}
