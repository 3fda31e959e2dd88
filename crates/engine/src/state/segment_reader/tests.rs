//! Tests of the reading threads: order, damage, stalls, and what is left behind.

use std::sync::mpsc::channel;

use poncho_cache::testing::{Fault, FaultFs, MemoryFs, Operation};
use poncho_cache::{
    Cache, CacheConfig, FingerprintMode, Namespace, Needs, PayloadPart, QuantType, SaveOutcome, SaveReason, SaveRequest,
};

use super::*;
use crate::backend::MemoryKind;
use crate::backend::stub::StubBackend;

const NAMESPACE: Namespace = Namespace { fingerprint: [1; 32], quant: QuantType::F16, context_hash: [2; 32] };
/// Two of these are worth a second thread.
const ROW: usize = WORTH_A_THREAD / 2 + 7;
const ROWS: u32 = 5;
/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(60);

/// A cache with rows in files that can stall, and a chain of rows of ten tokens each, with their numbers in their bytes.
struct Bench {
    fs: FaultFs,
    files: MemoryFs,
    cache: Cache,
    tokens: Vec<u32>,
    readers: Readers,
}

impl Bench {
    fn new(in_memory: usize) -> Self {
        let files = MemoryFs::new();
        let fs = FaultFs::new(Arc::new(files.clone()));
        let ram_quota = (in_memory * (ROW + 100)) as u64;
        let config = CacheConfig { ram_quota, fs: Arc::new(fs.clone()), ..CacheConfig::on_disk("/cache", 1 << 30) };
        let cache = Cache::open(config).unwrap();
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
                flags: 0,
                context_size: 100,
                text: String::new(),
                tier: None,
                owner: None,
            };
            assert_eq!(cache.save(request).unwrap().outcome, SaveOutcome::Published);
        }
        cache.flush();
        Self { fs, files, cache, tokens, readers: Readers::default() }
    }

    fn plan(&self) -> Arc<RestorePlan> {
        Arc::new(self.cache.lookup(&NAMESPACE, &self.tokens, Needs::ATTENTION).unwrap())
    }

    /// The parts of a plan that are in files.
    fn missing(plan: &RestorePlan) -> Vec<PartId> {
        let rows = plan.rows().iter().enumerate();
        let missing = rows.filter(|(_, segment)| segment.bytes(PartKind::Attention).is_none());
        missing.map(|(row, _)| (row, PartKind::Attention)).collect()
    }

    fn read(&self, plan: &Arc<RestorePlan>, wake: Option<Wake>) -> Reading {
        let backend = Arc::new(StubBackend::new(MemoryKind::Attention));
        let buffers = Buffers { backend, pool: BufferPool::default() };
        self.readers.read(buffers, plan, &Self::missing(plan), wake).unwrap()
    }

    fn threads(&self) -> (usize, usize) {
        let state = self.readers.pool.lock();
        (state.threads, state.stuck)
    }
}

fn eventually(what: &str, reached: impl Fn() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < LONG, "{what} did not come");
        std::thread::yield_now();
    }
}

#[test]
fn rows_from_files_come_in_order_and_whole_and_the_worker_is_woken() {
    for in_memory in [0, 2] {
        let bench = Bench::new(in_memory);
        let plan = bench.plan();
        let missing = Bench::missing(&plan);
        assert_eq!((plan.rows().len(), missing.len()), (ROWS as usize, ROWS as usize - in_memory));
        let (wake, woken) = channel();
        let reading = bench.read(&plan, Some(Arc::new(move || wake.send(()).unwrap())));
        assert_eq!(woken.recv_timeout(LONG), Ok(()));
        assert!(reading.is_over());
        let came = reading.take();
        assert_eq!(came.outcome, Some(Ok(())));
        for part in missing {
            let (bytes, took) = came.parts.get(part).unwrap();
            assert_eq!((bytes.len(), took.is_zero()), (ROW + part.0, false), "{part:?}");
            assert!(bytes.iter().all(|byte| usize::from(*byte) == part.0), "{part:?}");
        }
        drop(came);
        drop(plan);
        eventually("the end of the lease", || bench.cache.pinned_rows() == 0);
    }
}

#[test]
fn a_row_that_cannot_be_read_is_not_handed_out() {
    let bench = Bench::new(0);
    let plan = bench.plan();
    bench.fs.fail_once(Operation::Read, 3, Fault::Error(5));
    let reading = bench.read(&plan, None);
    reading.wait(Instant::now() + LONG);
    assert_eq!(reading.take().outcome, Some(Err(Failure::Unusable)));
    // A thread that panics costs its reading and nothing else.
    let bench = Bench::new(0);
    let plan = bench.plan();
    bench.fs.fail(Operation::Open, Fault::Panic);
    let reading = bench.read(&plan, None);
    reading.wait(Instant::now() + LONG);
    assert_eq!(reading.take().outcome, Some(Err(Failure::Refused)));
    bench.fs.clear();
    let reading = bench.read(&plan, None);
    reading.wait(Instant::now() + LONG);
    assert_eq!(reading.take().outcome, Some(Ok(())));
    assert!(!bench.files.paths().is_empty());
}

/// Hardening 15: what has come counts, what is late is dropped, and the row can be read again.
#[test]
fn a_reading_that_is_given_up_keeps_what_has_come_and_drops_what_is_late() {
    let bench = Bench::new(0);
    let plan = bench.plan();
    // The rows make several pieces; the last file to be opened stalls, in whichever of them.
    bench.fs.fail_once(Operation::Open, ROWS as usize - 1, Fault::Stall);
    let reading = bench.read(&plan, None);
    assert!(bench.fs.wait_until_stalled(1, LONG));
    let pieces = pieces_of(&plan, &Bench::missing(&plan)).unwrap().len();
    eventually("the other pieces", || reading.fetch.lock().done.len() + 1 == pieces);
    reading.wait(Instant::now());
    let came = reading.take();
    assert_eq!(came.outcome, None);
    let there = |piece: &[Item]| piece.iter().filter(|item| came.parts.get(item.part).is_some()).count();
    let pieces = pieces_of(&plan, &Bench::missing(&plan)).unwrap();
    let (whole, none): (Vec<_>, Vec<_>) = pieces.iter().partition(|piece| there(piece) == piece.len());
    assert_eq!((whole.len() + 1, none.len()), (pieces.len(), 1), "the others were there in time");
    assert_eq!(there(none[0]), 0, "a piece comes whole or not at all");
    assert_eq!(bench.threads().1, 1, "the thread is still in its read");
    drop((came, plan));
    assert!(bench.cache.pinned_rows() > 0, "and holds the rows, which must not be replaced under it");
    bench.fs.release();
    eventually("the end of the lease", || bench.cache.pinned_rows() == 0);
    eventually("the end of the stall", || bench.threads().1 == 0);
    let plan = bench.plan();
    let reading = bench.read(&plan, None);
    reading.wait(Instant::now() + LONG);
    assert_eq!(reading.take().outcome, Some(Ok(())), "the rows are as good as before");
}

/// Hardening 15: stalled threads are replaced, but not without end.
#[test]
fn threads_that_are_stuck_are_replaced_up_to_a_bound_and_come_back() {
    let bench = Bench::new(0);
    let plan = bench.plan();
    bench.fs.fail(Operation::Open, Fault::Stall);
    let mut stuck = 0;
    while stuck < STUCK + READERS {
        let reading = bench.read(&plan, None);
        stuck += LANES;
        assert!(bench.fs.wait_until_stalled(stuck, LONG), "{stuck} threads");
        drop(reading);
    }
    let reading = bench.read(&plan, None);
    assert_eq!(bench.threads(), (STUCK + READERS, STUCK + READERS), "no more are started");
    assert!(!reading.is_over());
    bench.fs.release();
    reading.wait(Instant::now() + LONG);
    assert_eq!(reading.take().outcome, Some(Ok(())));
    eventually("the end of those that are too many", || {
        let (threads, stuck) = bench.threads();
        threads <= READERS && stuck == 0
    });
    // Nobody waits for threads that are still stuck.
    bench.fs.fail(Operation::Open, Fault::Stall);
    let reading = bench.read(&plan, None);
    assert!(bench.fs.wait_until_stalled(1, LONG));
    let Bench { readers, fs, .. } = bench;
    drop((readers, reading));
    fs.release();
}
