//! Reports about the cache: its counters and tiers, its rows, and why a prompt misses.
//!
//! Made by the engine, shown by the server's own endpoints and its metrics. Plain owned data; words are those of
//! `poncho-kinds`.

use poncho_kinds::{Key, SaveReason, Tier};
use serde::{Deserialize, Serialize};

/// The cache at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// What was counted since it was opened.
    pub counters: Vec<Counter>,
    /// All tiers, fastest first.
    pub tiers: Vec<TierReport>,
    /// Rows in the index.
    pub rows: usize,
    /// Rows that are being read.
    pub pinned_rows: usize,
    /// Saves that wait for a writer.
    pub write_queue: usize,
    /// Memory of the index.
    pub index_bytes: usize,
    /// What the watcher of memory pressure does.
    pub pressure: PressureReport,
}

/// A counter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Its name.
    pub name: String,
    /// What it counts.
    pub help: String,
    /// How many so far.
    pub value: u64,
}

/// One tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierReport {
    /// Which.
    pub tier: Tier,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Bytes that it may hold; 0 where it is not used.
    pub quota: u64,
    /// Rows that it holds.
    pub rows: u64,
    /// How its files fare; `None` for memory, and where there is none.
    pub health: Option<TierHealth>,
}

/// How the files of a tier fare.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierHealth {
    /// Why it is off, or `None` while it works.
    pub off: Option<String>,
    /// Why it is not read from at the moment, or `None` while its reads come in time.
    pub slow: Option<String>,
}

/// What the watcher of memory pressure has seen and done.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PressureReport {
    /// Whether it watches.
    pub on: bool,
    /// Samples taken, failed ones included.
    pub samples: u64,
    /// Evictions done.
    pub evictions: u64,
    /// Samples at which nothing was evicted, because evictions before had changed nothing.
    pub held_back: u64,
    /// Bytes in use and in all, at the last sample.
    pub last_sample: Option<(u64, u64)>,
    /// Bytes wanted and freed, at the last eviction.
    pub last_action: Option<(u64, u64)>,
    /// What went wrong the last time.
    pub last_error: Option<String>,
}

/// Some rows of the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowPage {
    /// How many rows there are.
    pub total: usize,
    /// Those that were asked for, by key.
    pub rows: Vec<RowReport>,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowReport {
    /// Its name.
    pub key: Key,
    /// The row it builds on.
    pub parent: Option<Key>,
    /// The model's fingerprint with its adapters folded in.
    pub fingerprint: [u8; 32],
    /// How many tokens it has.
    pub tokens: u32,
    /// The first token that it stores itself.
    pub start: u32,
    /// How many rows build on it.
    pub children: usize,
    /// Tiers that hold it, fastest first.
    pub tiers: Vec<Tier>,
    /// Whether a write of it is queued or running.
    pub pending: bool,
    /// Bytes it takes, all tiers together.
    pub bytes: u64,
    /// How often it was used.
    pub hits: u32,
    /// Creation, unix seconds.
    pub created: u64,
    /// Last use, unix seconds.
    pub last_used: u64,
    /// Why it was saved.
    pub reason: SaveReason,
}

/// Why a prompt is found in the cache or not: where it leaves the best cached one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// How many leading tokens agree with the best stored row.
    pub agree: usize,
    /// How many leading tokens the model can resume from.
    pub usable: usize,
    /// The likely reason why it is not cached to its end. A guess, but for the offset.
    pub cause: Cause,
    /// The row that agrees longest.
    pub row: Option<ExplainedRow>,
    /// Where prompt and row part: the cached text around that place, and the prompt's own.
    pub parting: Option<(Around, Around)>,
}

/// The row that agrees longest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedRow {
    /// Its name.
    pub key: Key,
    /// How many tokens it has.
    pub tokens: usize,
    /// The fastest tier that holds it.
    pub tier: Option<Tier>,
}

/// The text around a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Around {
    /// What stands before it.
    pub before: String,
    /// What stands after it.
    pub after: String,
}

/// The likely reason why a prompt is not cached to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It is.
    Cached,
    /// The prompt goes on where the cached one ends.
    Grown,
    /// A time of day differs.
    Clock,
    /// A billing header differs.
    BillingHeader,
    /// The same tools come in another order.
    ToolOrder,
    /// The tokens are cached for another model file or other adapters.
    ModelChanged,
    /// The tokens are cached for other context settings.
    SettingsChanged,
    /// Something was left out.
    TruncatedHistory,
    /// The texts differ.
    EditedHistory,
    /// No cached prompt begins like this one.
    NeverSeen,
}

impl Cause {
    /// Its word and its sentence.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Cached => ("cached", "every token is cached"),
            Self::Grown => ("grown", "nothing differs; the prompt goes on where the cached one ends"),
            Self::Clock => ("clock", "a time of day differs; keep the hygiene rule clock on or take the time out"),
            Self::BillingHeader => {
                ("billing_header", "a billing header differs; keep the hygiene rule billing_header on")
            }
            Self::ToolOrder => {
                ("tool_order", "the same tools come in another order; keep the hygiene rule tool_order on")
            }
            Self::ModelChanged => {
                ("model_changed", "the same tokens are cached for another model file or other adapters")
            }
            Self::SettingsChanged => ("settings_changed", "the same tokens are cached for other context settings"),
            Self::TruncatedHistory => {
                ("truncated_history", "something was left out here; what follows is cached further on")
            }
            Self::EditedHistory => (
                "edited_history",
                "the texts differ from here on: an edited message, or another conversation with the same beginning",
            ),
            Self::NeverSeen => ("never_seen", "no cached prompt begins like this one"),
        }
    }
}
