//! Chains, offers and settings for the tests of the shared tier.

pub(crate) mod azurite;
pub(crate) mod counting_store;
pub(crate) mod double;
pub(crate) mod plain_store;
pub(crate) mod proxy;
pub(crate) mod weed;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, atomic::Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use poncho_cache::{
    Cancellation, CanonicalRow, Chain, Key, Namespace, Offer, OfferReason, OwnerId, Patience, QuantType, RemoteQuery,
    RemoteRow, RemoteTier,
};
use poncho_shared::{Settings, SharedTier, Sizes, Timing};

pub(crate) const ANNA: OwnerId = OwnerId::from_bytes([1; 16]);
pub(crate) const BERT: OwnerId = OwnerId::from_bytes([2; 16]);
pub(crate) const NAMESPACE: Namespace =
    Namespace { fingerprint: [7; 32], quant: QuantType::Q4_1, context_hash: [9; 32] };

/// The key of row `number` in conversation `conversation`.
pub(crate) fn key(conversation: u32, number: usize) -> Key {
    NAMESPACE.key(&[conversation, number as u32])
}

/// A chain. Every byte of its rows depends on `writer`: a mixture of two writers shows.
pub(crate) fn chain(owner: OwnerId, conversation: u32, lengths: &[usize], writer: u8) -> Chain {
    let row = |(number, length): (usize, &usize)| {
        let mut state = u64::from(conversation) << 32 | number as u64 | 1 << 20;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u8 ^ writer
        };
        let bytes: Vec<u8> = (0..*length).map(|_| byte()).collect();
        let (start, end) = (number as u32 * 100, number as u32 * 100 + 100);
        CanonicalRow { key: key(conversation, number), start, end, bytes: bytes.into() }
    };
    Chain { owner, namespace: NAMESPACE, rows: lengths.iter().enumerate().map(row).collect() }
}

/// An offer of a chain, with a counter of its exports.
pub(crate) fn counted_offer(chain: Chain, exports: &Arc<AtomicUsize>) -> Offer {
    let exports = Arc::clone(exports);
    Offer {
        owner: chain.owner,
        namespace: chain.namespace,
        key: chain.key().expect("a row"),
        tokens: chain.rows.last().map_or(0, |row| row.end),
        bytes: chain.bytes(),
        reason: OfferReason::Idle,
        export: Box::new(move || {
            exports.fetch_add(1, Ordering::SeqCst);
            Some(chain)
        }),
    }
}

pub(crate) fn offer(chain: Chain) -> Offer {
    counted_offer(chain, &Arc::new(AtomicUsize::new(0)))
}

/// Long enough for a busy machine.
pub(crate) fn patience() -> Patience {
    patience_of(Duration::from_secs(60))
}

pub(crate) fn patience_of(time: Duration) -> Patience {
    Patience { deadline: Instant::now() + time, cancelled: Cancellation::default() }
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Times for tests: a store that returns is noticed soon.
pub(crate) fn timing() -> Timing {
    let millis = Duration::from_millis;
    Timing { first_pause: millis(20), longest_pause: millis(200), measure_again: millis(100), ..Timing::default() }
}

pub(crate) fn settings(url: &str) -> Settings {
    Settings { timing: timing(), ..Settings::new(url) }
}

/// Every row is a segment of its own.
pub(crate) fn small_segments() -> Sizes {
    Sizes { joined: 1, segment: 1000, part: 300, ..Sizes::default() }
}

pub(crate) fn folder_url(folder: &tempfile::TempDir) -> String {
    format!("file://{}", folder.path().display())
}

/// Opens a tier and waits for its first measurement.
pub(crate) fn open(settings: &Settings) -> SharedTier {
    ready(SharedTier::open(settings).expect("opened"))
}

pub(crate) fn ready(tier: SharedTier) -> SharedTier {
    eventually("the tier is measured", || tier.rates().is_some());
    tier
}

pub(crate) fn upload(tier: &SharedTier, chain: Chain) {
    tier.offer(offer(chain));
    assert!(tier.flush(Instant::now() + Duration::from_secs(60)), "the upload ends: {:?}", tier.status());
}

pub(crate) fn find(tier: &SharedTier, owner: OwnerId, keys: &[Key]) -> Option<RemoteRow> {
    tier.find(RemoteQuery { owner, namespace: &NAMESPACE, keys }, &patience()).expect("the store answers")
}

/// Finds and fetches; `None` is a miss.
pub(crate) fn restore(tier: &SharedTier, owner: OwnerId, keys: &[Key]) -> Option<Chain> {
    let row = find(tier, owner, keys)?;
    Some(tier.fetch(&row, &patience()).expect("fetched"))
}

/// All bytes of objects below a folder. A file that is being written has a `#` in its name and is not an object yet.
pub(crate) fn bytes_in(folder: &std::path::Path) -> u64 {
    sizes_in(folder).iter().map(|(_, size)| size).sum()
}

/// Objects below a folder, with their sizes.
pub(crate) fn sizes_in(folder: &std::path::Path) -> Vec<(String, u64)> {
    let objects = files_in(folder).into_iter().filter(|path| !path.display().to_string().contains('#'));
    let size = |path: std::path::PathBuf| Some((path.display().to_string(), std::fs::metadata(&path).ok()?.len()));
    objects.filter_map(size).collect()
}

pub(crate) fn files_in(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return files };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_in(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// Writes an object and removes it again. A store that has just been started may accept connections before it can.
pub(crate) fn takes_writes(bucket: &dyn ObjectStore) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let path = object_store::path::Path::from("probe");
    let written = runtime.block_on(bucket.put(&path, "probe".into())).is_ok();
    written && runtime.block_on(bucket.delete(&path)).is_ok()
}

/// Every object of a bucket: its name and its bytes.
pub(crate) fn objects_in(bucket: &dyn ObjectStore) -> Vec<(String, Bytes)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let read = |meta: ObjectMeta| async move {
        let bytes = bucket.get(&meta.location).await?.bytes().await?;
        Ok((meta.location.to_string(), bytes))
    };
    runtime.block_on(bucket.list(None).and_then(read).try_collect()).expect("read")
}

/// The same for a folder, with files that are not objects.
pub(crate) fn contents(folder: &std::path::Path) -> Vec<(String, Bytes)> {
    let read = |path: std::path::PathBuf| (path.display().to_string(), std::fs::read(&path).expect("read").into());
    files_in(folder).into_iter().map(read).collect()
}
