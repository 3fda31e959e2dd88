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
//!     reason_detail: None,
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
//! assert_eq!(plan.segments()[0].bytes(PartKind::Attention).map(|bytes| bytes.len()), Some(6000));
//! # Ok::<(), poncho_cache::CacheError>(())
//! ```

mod cache;
mod clock;
mod compact;
mod config;
mod context_hash;
mod error;
mod evict;
mod explain;
pub mod files;
mod fingerprint;
mod folder_index;
pub mod format;
mod fs;
mod index;
mod inspect;
mod key;
mod lease;
mod lock;
mod owner;
mod plan;
mod policy;
mod pressure;
mod pressure_source;
mod privacy;
mod publish;
mod recover;
mod reservation;
mod rows;
mod save;
mod stats;
mod store;
mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tier;
pub mod trie;
mod words;
mod writer;

pub use cache::{Cache, RowInfo};
#[cfg(any(test, feature = "testing"))]
pub use clock::PausedClock;
pub use clock::{Clock, SystemClock};
pub use compact::Compaction;
pub use config::{CacheConfig, FileTierConfig};
pub use context_hash::ContextFacts;
pub use error::{BadSave, CacheError};
pub use explain::{ExplainedRow, Explanation, Parting, Verdict};
pub use fingerprint::{
    AdapterIdentity, Fingerprint, FingerprintError, effective_fingerprint, identify, split_part_names, split_parts,
};
pub use folder_index::{Eviction, FolderIndex};
pub use fs::{Entry, Fs, NewFile, ReadFile, StdFs};
pub use index::{Cut, Needs};
pub use inspect::{Finding, FolderReport, RowFile, inspect_file, inspect_folder};
pub use key::{Key, KeyHasher, Namespace, to_hex};
pub use owner::OwnerId;
pub use plan::{RestorePlan, Segment, Unusable};
pub use policy::{GateError, Gates, Policy};
pub use poncho_gguf::QuantType;
pub use poncho_gguf::file::FileStamp;
pub use pressure::{EvictBytes, PressureAction, PressureConfig, PressureConfigError, PressureReport, PressureWatcher};
pub use pressure_source::{
    NoopSource, PressureError, PressureSample, PressureSource, PressureSourceKind, SystemSource,
};
pub use privacy::{Closed, OpenToOthers, close_cache_folder, open_to_others};
pub use publish::{Stage, StageObserver};
pub use rows::PayloadPart;
pub use save::{DropReason, SaveBase, SaveOutcome, SaveRequest, Saved};
pub use stats::{CounterSnapshot, Counters};
pub use tier::{Readable, TierHealth};
pub use words::{FingerprintMode, HitKind, PartKind, SaveReason, Tier};
