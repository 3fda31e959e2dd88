//! Reports about the cache: its counters and tiers, its rows, and why a prompt misses.
//!
//! Made by the engine, shown by the server's own endpoints and its metrics. Plain owned data; words are those of
//! `poncho-kinds`.

mod follow;
pub(crate) mod rows;

use std::time::Duration;

use poncho_kinds::{HitTier, Key, RemoteCounts, SaveReason, Tier};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use follow::{RowBatch, RowChange, StoredRow};

/// The cache at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
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
    /// The tier that several machines share, if there is one.
    pub shared: Option<SharedTierReport>,
    /// The caches of other nodes, if this one pulls from them. Uploads are rows that they pulled from this one.
    pub peers: Option<SharedTierReport>,
}

/// A tier of other machines.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SharedTierReport {
    /// Where its rows are, without credentials.
    pub location: String,
    /// Whether it is used now. A failing store is left alone for a while.
    pub on: bool,
    /// The last failure.
    pub last_error: Option<String>,
    /// What it has done.
    #[serde(flatten)]
    pub counts: RemoteCounts,
    /// Time to read a million bytes, lately.
    pub megabyte: Option<Duration>,
    /// Time until the first byte, lately.
    pub round_trip: Option<Duration>,
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
    /// Whether somebody pinned it; in a list of one owner's rows, whether that owner did.
    pub pinned: bool,
    /// Its first tokens, enough to recognise it; of rows that build on no other only.
    pub first: Vec<u32>,
}

/// A prompt that was computed before, as it was looked up then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLookup {
    /// How many of its tokens were cached.
    pub cached_tokens: usize,
    /// When it was sent, unix seconds.
    pub at: u64,
}

/// Why a prompt is found in the cache or not: what differs from the cached prompt that is most like it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// How many leading tokens agree with some stored row.
    pub agree: usize,
    /// How many leading tokens the model can resume from.
    pub usable: usize,
    /// How many of the other tokens are stored, behind what differs, and have to be computed again.
    pub lost: usize,
    /// The likely reason why it is not cached to its end. A guess, unlike the positions.
    pub cause: Cause,
    /// The message of the prompt in which it differs, if it was made of messages and one of them differs.
    pub message: Option<MessagePlace>,
    /// The row that the prompt was compared with.
    pub row: Option<ExplainedRow>,
    /// Where the prompt and that row differ.
    pub divergence: Option<Divergence>,
    /// A longer beginning of the prompt that other machines have.
    pub remote: Option<RemotePrefix>,
}

/// A beginning of a prompt that can be fetched from other machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemotePrefix {
    /// The name of its row.
    #[schemars(with = "String")]
    pub key: Key,
    /// How many leading tokens it has.
    pub tokens: usize,
    /// Bytes of the row with everything it builds on.
    pub bytes: u64,
    /// Where it is: in the shared tier, or in another node.
    #[schemars(with = "String", extend("enum" = [HitTier::Peer.as_str(), HitTier::Shared.as_str()]))]
    pub tier: HitTier,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MessagePlace {
    /// Its number, from 1. A system prompt that comes in a field of its own counts as a message.
    #[schemars(range(min = 1))]
    pub number: usize,
    /// Its role.
    pub role: String,
}

/// The row that a prompt was compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedRow {
    /// Its name.
    #[schemars(with = "String")]
    pub key: Key,
    /// How many tokens it has.
    pub tokens: usize,
    /// The fastest tier that holds it.
    #[schemars(with = "Option<String>", extend("enum" = ["ram", "ram_file", "disk", null]))]
    pub tier: Option<Tier>,
}

/// Where a prompt and a row differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// The first token that differs.
    pub offset: usize,
    /// The stored text there.
    pub cached: Around,
    /// The prompt's own text there.
    pub asked: Around,
    /// Where both go on with the same text, if they do.
    pub resumes: Option<Resumption>,
}

/// The text around a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TextAround")]
pub struct Around {
    /// What stands before it.
    pub before: String,
    /// What stands after it.
    pub after: String,
}

/// Where a prompt and a row go on with the same text after they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resumption {
    /// The position in the row.
    pub cached: usize,
    /// The position in the prompt.
    pub asked: usize,
}

/// The likely reason why a prompt is not cached to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It is.
    Cached,
    /// The prompt goes on where the cached one ends.
    Grown,
    /// The beginning is cached and the rest is new.
    Branched,
    /// A time of day differs.
    Clock,
    /// A date differs.
    Date,
    /// An id or another number differs, or was put in front.
    ChangingId,
    /// A billing header differs.
    BillingHeader,
    /// The same tools come in another order.
    ToolOrder,
    /// A tool was added, removed or changed.
    ToolsChanged,
    /// The texts are the same, and the marks between messages differ.
    TemplateChanged,
    /// The tokens are cached for another model file or other adapters.
    ModelChanged,
    /// The tokens are cached for other context settings.
    SettingsChanged,
    /// Messages were left out.
    TruncatedHistory,
    /// The system prompt or the first message differs.
    EditedBeginning,
    /// A later message differs.
    EditedHistory,
    /// No cached prompt is like this one.
    NeverSeen,
}

/// What is known about a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CauseWords {
    /// Its name in JSON.
    pub word: &'static str,
    /// What happened.
    pub reason: &'static str,
    /// What to do, as an imperative sentence; `None` if there is nothing to do.
    pub fix: Option<&'static str>,
}

impl Cause {
    /// Its name, its sentence and what to do about it.
    #[must_use]
    pub const fn words(self) -> CauseWords {
        let (word, reason, fix) = match self {
            Self::Cached => ("cached", "every token is cached", None),
            Self::Grown => ("grown", "nothing differs; the prompt goes on where the cached one ends", None),
            Self::Branched => (
                "branched",
                "the beginning is cached and the rest is new: another conversation, or another last message",
                None,
            ),
            Self::Clock => (
                "clock",
                "a time of day differs, and the text behind it is cached",
                Some("Keep the hygiene rule clock on, or move the time to the end of the prompt."),
            ),
            Self::Date => (
                "date",
                "a date differs, and the text behind it is cached",
                Some("Move the date to the end of the prompt, for example into the last message."),
            ),
            Self::ChangingId => (
                "changing_id",
                "an id or another number differs, and the text behind it is cached",
                Some("Move this to the end of the prompt, for example into the last message, or leave it out."),
            ),
            Self::BillingHeader => (
                "billing_header",
                "a billing header differs, and the text behind it is cached",
                Some("Keep the hygiene rule billing_header on."),
            ),
            Self::ToolOrder => (
                "tool_order",
                "the same tools come in another order",
                Some("Keep the tools in one order, or keep the hygiene rule tool_order on."),
            ),
            Self::ToolsChanged => (
                "tools_changed",
                "a tool was added, removed or changed, and the text behind it is cached",
                Some("Send the same tools with every request of a conversation."),
            ),
            Self::TemplateChanged => (
                "template_changed",
                "the texts are the same, and the marks of the chat template between them differ",
                Some("Use one chat template and the same template options for all requests of a conversation."),
            ),
            Self::ModelChanged => (
                "model_changed",
                "the same tokens are cached for another model file or other adapters",
                Some("Use the model file and the adapters that computed the cached prompt."),
            ),
            Self::SettingsChanged => (
                "settings_changed",
                "the same tokens are cached for other context settings",
                Some("Start the model with the context settings that computed the cached prompt."),
            ),
            Self::TruncatedHistory => (
                "truncated_history",
                "messages were left out here or replaced by fewer, and the messages behind them are cached",
                Some("Send the whole conversation; if it has to be shortened, drop many messages at once, and rarely."),
            ),
            Self::EditedBeginning => (
                "edited_beginning",
                "the beginning of the prompt differs, and the text behind it is cached",
                Some("Keep the beginning the same word for word, and move what changes to the end of the prompt."),
            ),
            Self::EditedHistory => (
                "edited_history",
                "an earlier message differs, and the text behind it is cached",
                Some("Send earlier messages unchanged, and put what is new into the last message."),
            ),
            Self::NeverSeen => ("never_seen", "no cached prompt is like this one", None),
        };
        CauseWords { word, reason, fix }
    }
}
