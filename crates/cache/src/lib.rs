//! Poncho's cache: the state that a language model computed for a list of tokens, stored by exactly those tokens,
//! found again at token granularity, and safe against crashes.
//!
//! - **Token-exact.** A hash finds a row, the stored tokens decide.
//! - **Never wrong, only slower.** A damaged file, a full disk, a failing tier make a lookup miss or a save drop;
//!   they never reach the caller as an error and never return other bytes than were saved.
//! - **Crash-safe.** A row is visible whole or not at all; what was announced survives `kill -9`.
//! - **Written once.** A row stores what the row it builds on lacks, and names it; a restore walks the chain.
//!
//! [`Cache`] is the handle: [`Cache::open`], [`Cache::lookup`], [`Cache::save`]. This crate knows files, tokens and
//! bytes; it knows neither llama.cpp nor HTTP nor async.
//!
//! ```
//! use poncho_cache::{Cache, CacheConfig, Needs, PartKind, PayloadPart, SaveRequest, SaveReason};
//! use poncho_cache::{FingerprintMode, Namespace, QuantType};
//!
//! let cache = Cache::open(CacheConfig::in_memory(1 << 20))?;
//! let namespace = Namespace { fingerprint: [1; 32], quant: QuantType::Q4_1, context_hash: [2; 32] };
//! let tokens: Vec<u32> = (0..600).collect();
//! cache.save(SaveRequest {
//!     namespace,
//!     mode: FingerprintMode::Safe,
//!     tokens: &tokens,
//!     base: None,
//!     parts: vec![PayloadPart { kind: PartKind::Attention, bytes: vec![7; 6000].into() }],
//!     reason: SaveReason::Finish,
//!     flags: 0,
//!     context_size: 4096,
//!     text: String::new(),
//!     tier: None,
//!     owner: None,
//! })?;
//!
//! // Another prompt that shares the first 500 tokens resumes there.
//! let mut prompt = tokens[..500].to_vec();
//! prompt.extend([9000, 9001]);
//! let plan = cache.lookup(&namespace, &prompt, Needs::ATTENTION).expect("a stored prefix");
//! assert_eq!(plan.reach(), 500);
//! assert_eq!(plan.rows()[0].bytes(PartKind::Attention).map(|bytes| bytes.len()), Some(6000));
//! # Ok::<(), poncho_cache::CacheError>(())
//! ```

mod cache;
mod config;
mod error;
mod folder;
mod format;
mod identity;
mod index;
mod inspect;
mod io;
mod policy;
mod pressure;
mod remote;
mod stats;
mod store;

use poncho_kinds as kinds;

pub use cache::{Cache, RowInfo, StoredPrompt};
pub use config::{CacheConfig, FileTierConfig, Stage, StageObserver};
pub use error::{BadSave, CacheError};
pub use folder::privacy::{Closed, OpenToOthers, close_cache_folder, open_to_others};
#[cfg(any(test, feature = "testing"))]
pub use format::encode_v1;
pub use format::{
    Crc32c, FLAG_GRID, FileNameKind, FilePart, FormatError, FormatField, HEADER_LENGTH, HITS_OFFSET, LAST_USED_OFFSET,
    LOCK_FILE_NAME, MAGIC, MAX_PREFIX, NewPart, PrefixDraft, RecordTag, RowMeta, RowPrefix, Touch, VERSION_CHAINED,
    VERSION_WHOLE, bad_path, classify, crc32c, crc32c_combine, decode_prefix, encode_prefix, encode_touch,
    is_row_folder_name, prefix_length, row_file_name, row_folder, row_path, tmp_path,
};
pub use identity::context_hash::ContextFacts;
pub use identity::fingerprint::{
    AdapterIdentity, Fingerprint, FingerprintError, effective_fingerprint, identify, split_part_names, split_parts,
};
pub use identity::key::{Key, KeyHasher, Namespace, to_hex};
pub use identity::owner::OwnerId;
pub use index::journal::Changes;
pub use index::rows::PayloadPart;
pub use index::user_pins::Pinned;
pub use index::{Cut, Needs};
pub use inspect::alignment::{Alignment, Gap, Run};
pub use inspect::explain::{ExplainedRow, Explanation, Parting, Similar, Then, Verdict};
pub use inspect::folder_index::{Eviction, FolderIndex};
pub use inspect::listing::{Finding, FolderReport, RowFile, inspect_file, inspect_folder};
#[cfg(any(test, feature = "testing"))]
pub use io::clock::PausedClock;
pub use io::clock::{Clock, SystemClock};
pub use io::files::{
    Links, NotRegular, PRIVATE_FILE, PRIVATE_FOLDER, close_to_others, create_private, create_private_folder,
    open_folder, open_or_create_private, open_regular, open_regular_with,
};
pub use io::fs::{Entry, Fs, NewFile, ReadFile, StdFs};
#[cfg(any(test, feature = "testing"))]
pub use io::testing;
pub use kinds::{EvictionCause, FingerprintMode, HitKind, HitTier, PartKind, RemoteCounts, SaveReason, Tier};
pub use policy::{GateError, Gates, Policy};
pub use poncho_gguf::QuantType;
pub use poncho_gguf::file::FileStamp;
pub use pressure::config::{PressureConfig, PressureConfigError};
pub use pressure::sources::{
    NoopSource, PressureError, PressureSample, PressureSource, PressureSourceKind, SystemSource,
};
pub use pressure::watcher::{EvictBytes, PressureAction, PressureReport, PressureWatcher};
pub use remote::{
    Cancellation, CanonicalRow, Chain, Export, NO_TENANT, Offer, OfferReason, Patience, RemoteError, RemoteQuery,
    RemoteRates, RemoteRow, RemoteStatus, RemoteTier,
};
pub use stats::evictions::Evictions;
pub use stats::{CounterSnapshot, Counters};
pub use store::compact::Compaction;
pub use store::lease::SaveBase;
pub use store::lookup::RestorePlan;
pub use store::lookup::export::ExportError;
pub use store::pinned_row::check::CheckedCopy;
pub use store::pinned_row::{PinnedRow, Unusable};
pub use store::save::import::{ImportError, ImportRequest, Imported, JoinParts};
pub use store::save::{DropReason, SaveOutcome, SaveRequest, Saved};
pub use store::tier::{Readable, TierHealth};
