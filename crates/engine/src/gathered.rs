//! All rows of a chain at hand at once: by reference where they are in memory, read into one buffer where they are not.
//!
//! The restorer calls it for chains that are set as a whole: those in memory, and all where a sequence has cells of its own. Two
//! threads read. It must never hand out a row that was not read to its end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use poncho_cache::{PartKind, Segment};

use crate::backend::Backend;
use crate::restore::Failure;
use crate::staging::{Staged, Staging};

/// Below this many bytes another thread costs more than it saves.
const WORTH_A_THREAD: usize = 4 << 20;

/// See the module.
pub(crate) struct Gathered<'a> {
    places: Vec<Place>,
    read: Staged<'a>,
}

enum Place {
    InMemory(Bytes),
    /// So many bytes of the buffer, after those of the rows before.
    Read {
        length: usize,
        took: Duration,
    },
}

/// A row that is to be read, where to, and how long that took.
struct Job<'a> {
    segment: &'a Segment,
    into: &'a mut [u8],
    took: &'a mut Duration,
}

impl<'a> Gathered<'a> {
    /// Reads what is not in memory.
    pub(crate) fn read(backend: &dyn Backend, staging: &'a Staging, segments: &[&Segment]) -> Result<Self, Failure> {
        let place = |segment: &&Segment| match segment.bytes(PartKind::Attention) {
            Some(bytes) => Ok(Place::InMemory(bytes)),
            None => {
                let length = segment.length(PartKind::Attention).and_then(|length| usize::try_from(length).ok());
                length.map(|length| Place::Read { length, took: Duration::ZERO }).ok_or(Failure::Refused)
            }
        };
        let mut places: Vec<Place> = segments.iter().map(place).collect::<Result<_, _>>()?;
        let total = places.iter().map(Place::in_buffer).sum();
        let mut read = staging.take(backend, total);
        let mut jobs: Vec<Job<'_>> = Vec::new();
        let mut rest = read.as_mut();
        for (segment, place) in segments.iter().zip(&mut places) {
            if let Place::Read { length, took } = place {
                let (into, after) = rest.split_at_mut_checked(*length).ok_or(Failure::Refused)?;
                rest = after;
                jobs.push(Job { segment, into, took });
            }
        }
        let threads = if total < WORTH_A_THREAD { 1 } else { jobs.len().min(2) };
        read_jobs(jobs, threads)?;
        Ok(Self { places, read })
    }

    /// The rows in order, each with the time that reading it took.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&[u8], Duration)> {
        let mut rest = self.read.as_ref();
        self.places.iter().map(move |place| match place {
            Place::InMemory(bytes) => (bytes.as_ref(), Duration::ZERO),
            Place::Read { length, took } => {
                let (here, after) = rest.split_at_checked(*length).unwrap_or_default();
                rest = after;
                (here, *took)
            }
        })
    }
}

impl Place {
    fn in_buffer(&self) -> usize {
        match self {
            Self::InMemory(_) => 0,
            Self::Read { length, .. } => *length,
        }
    }
}

/// Reads rows with so many threads, this one among them; with fewer if no other can be had.
fn read_jobs(jobs: Vec<Job<'_>>, threads: usize) -> Result<(), Failure> {
    let jobs = Mutex::new(jobs.into_iter());
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> Result<(), Failure> {
        while let Some(Job { segment, into, took }) = next() {
            let started = Instant::now();
            segment.read(PartKind::Attention, into).map_err(|error| {
                tracing::debug!(%error, "a row is unusable");
                Failure::Unusable
            })?;
            *took = started.elapsed();
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let helper = || std::thread::Builder::new().name("poncho-reader".to_owned()).spawn_scoped(scope, work).ok();
        let helpers: Vec<_> = (1..threads).filter_map(|_| helper()).collect();
        let ours = work();
        helpers.into_iter().map(|helper| helper.join().unwrap_or(Err(Failure::Refused))).fold(ours, Result::and)
    })
}

#[cfg(test)]
mod tests {
    use poncho_cache::{
        Cache, CacheConfig, FingerprintMode, Namespace, Needs, PayloadPart, QuantType, SaveOutcome, SaveReason,
        SaveRequest,
    };

    use super::*;
    use crate::backend::MemoryKind;
    use crate::backend::stub::StubBackend;

    const NAMESPACE: Namespace = Namespace { fingerprint: [1; 32], quant: QuantType::F16, context_hash: [2; 32] };
    /// Two of these are worth a second thread.
    const ROW: usize = WORTH_A_THREAD / 2 + 7;
    const ROWS: u32 = 5;

    /// A chain of rows of ten tokens each, with their numbers in their bytes.
    fn saved(cache: &Cache) -> Vec<u32> {
        let tokens: Vec<u32> = (0..ROWS * 10).collect();
        for row in 0..ROWS {
            let tokens = &tokens[..(row as usize + 1) * 10];
            let base = cache.base_for(&NAMESPACE, tokens, None);
            assert_eq!(base.as_ref().map_or(0, |base| base.start()), row * 10);
            let bytes = vec![u8::try_from(row).unwrap(); ROW + row as usize].into();
            let request = SaveRequest {
                namespace: NAMESPACE,
                mode: FingerprintMode::Safe,
                tokens,
                base: base.as_ref(),
                parts: vec![PayloadPart { kind: PartKind::Attention, bytes }],
                reason: SaveReason::Evict,
                reason_detail: None,
                flags: 0,
                context_size: 100,
                text: String::new(),
                tier: None,
                owner: None,
            };
            assert_eq!(cache.save(request).unwrap().outcome, SaveOutcome::Published);
        }
        tokens
    }

    #[test]
    fn rows_from_files_and_from_memory_come_in_order_and_whole() {
        let backend = StubBackend::new(MemoryKind::Attention);
        for in_memory in [0, 2] {
            let folder = tempfile::tempdir().unwrap();
            let ram_quota = (in_memory * (ROW + 100)) as u64;
            let config = CacheConfig { ram_quota, ..CacheConfig::on_disk(folder.path(), 1 << 30) };
            let cache = Cache::open(config).unwrap();
            let tokens = saved(&cache);
            let plan = cache.lookup(&NAMESPACE, &tokens, Needs::ATTENTION).unwrap();
            let segments: Vec<&Segment> = plan.segments().iter().collect();
            let held = segments.iter().filter(|segment| segment.bytes(PartKind::Attention).is_some()).count();
            assert_eq!((segments.len(), held), (ROWS as usize, in_memory));
            let staging = Staging::default();
            let gathered = Gathered::read(&backend, &staging, &segments).unwrap();
            assert_eq!(gathered.rows().count(), ROWS as usize);
            for (row, (bytes, took)) in gathered.rows().enumerate() {
                let is_held = segments[row].bytes(PartKind::Attention).is_some();
                assert_eq!((bytes.len(), took.is_zero()), (ROW + row, is_held), "row {row}");
                assert!(bytes.iter().all(|byte| usize::from(*byte) == row), "row {row}");
            }
        }
    }

    #[test]
    fn a_row_that_cannot_be_read_is_not_handed_out() {
        let backend = StubBackend::new(MemoryKind::Attention);
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(folder.path(), 1 << 30) }).unwrap();
        let tokens = saved(&cache);
        let plan = cache.lookup(&NAMESPACE, &tokens, Needs::ATTENTION).unwrap();
        let segments: Vec<&Segment> = plan.segments().iter().collect();
        let key = NAMESPACE.key(&tokens[..20]);
        let file = poncho_cache::format::row_path(folder.path(), &key);
        std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(ROW as u64 / 2).unwrap();
        let staging = Staging::default();
        assert!(matches!(Gathered::read(&backend, &staging, &segments), Err(Failure::Unusable)));
    }
}
