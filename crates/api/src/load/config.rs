//! How a model is loaded and served: raw settings, checked once when the model is loaded.
//!
//! Built by the server, the command line or a Rust program, read by the engine. It travels to where the model is loaded:
//! paths are those of that machine.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use poncho_kinds::{FileStamp, Gates, Tier};
use serde::{Deserialize, Serialize};

use crate::drafts::{DraftRule, Drafts};
use crate::load::markers::MarkerSet;
use crate::load::options::{ContextOptions, ModelOptions};
use crate::load::prober::Prober;
use crate::load::reasoning::Reasoning;
use crate::signature::SigningKey;

/// Where the identity of the model file comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FingerprintSource {
    /// Every byte of the file is hashed, once; the result is remembered beside it or in this folder.
    Safe {
        /// Where to remember it if the model's own folder cannot be written.
        memo_folder: Option<PathBuf>,
    },
    /// The metadata block and the first weight tensor are hashed.
    GgufChunked,
    /// The caller hashed every byte of the one file and says how the file was then. A file that is still so is not read
    /// again; any other one is, and is refused if it has another hash.
    Hashed {
        /// SHA-256 of the file.
        sha256: [u8; 32],
        /// The file right after it was hashed; `None` if nobody remembers.
        stamp: Option<FileStamp>,
    },
    /// The caller knows best.
    FastUnsafe([u8; 32]),
}

/// The most prompt tokens that one request may take in a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PrefillChunk {
    /// A quarter of the batch, at least 64. All prompts together take no more than a quarter of a second, by the measured
    /// speed, so that others do not wait long.
    #[default]
    Default,
    /// This number of tokens.
    Tokens(NonZeroUsize),
    /// As many as fit.
    Unlimited,
}

/// Cold-exact replies: byte-identical to those of a cold, idle server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Exactness {
    /// Not offered: a request that asks for it is refused.
    #[default]
    Off,
    /// For the requests that ask for it; the others run as always and share nothing with them.
    OnRequest,
    /// For every request.
    Always,
}

/// Whether a stored state is put back or computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RestoreRule {
    /// Whichever is expected to be faster, by what was measured so far.
    #[default]
    Faster,
    /// Always put back what is stored.
    Always,
}

/// Positions between two boundaries of exact states: small enough that little is read again, large enough that a chunk
/// is computed efficiently.
const DEFAULT_GRID: NonZeroUsize = NonZeroUsize::MIN.saturating_add(127);

/// Some fifty turns: a chain of this many rows still restores nearly as fast as one row, and most conversations end
/// before anything of them is written twice.
const DEFAULT_CHAIN: usize = 96;

/// Enough that a prompt which parts anywhere is read again by not much more than what follows.
const DEFAULT_PARTIALS: usize = 24;

/// Everything about one model.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelConfig {
    /// The name under which requests find it.
    pub id: String,
    /// The files and where their weights go.
    pub model: ModelOptions,
    /// The context.
    pub context: ContextOptions,
    /// Tries the files in a process of their own before this one loads them; `None` for files that are trusted.
    pub prober: Option<Prober>,
    /// The identity of the files.
    pub fingerprint: FingerprintSource,
    /// When to save.
    pub gates: Gates,
    /// Where saves go; `None` for the cache's own choice.
    pub tier: Option<Tier>,
    /// Requests that may wait for a sequence.
    pub queue_limit: usize,
    /// How prompts are sliced.
    pub prefill_chunk: PrefillChunk,
    /// Rows in a chain before they are joined in the background; 0 never joins them.
    pub chain_limit: usize,
    /// Partial states (windows, recurrent states) that a conversation keeps, the older the further apart; 0 keeps all.
    pub partial_limit: usize,
    /// How long a request waits for stored rows that have to be read, if half of what computing them would take is less. What
    /// has not come by then is computed, and the tier is left alone for a while.
    pub read_wait: Duration,
    /// Whether stored states are put back even where computing them is faster.
    pub restore_rule: RestoreRule,
    /// Which tokens replies are guessed from.
    pub drafts: Drafts,
    /// When such guesses are computed.
    pub draft_rule: DraftRule,
    /// Whether replies can be made exact. If so, each sequence gets its own cells, and flash attention is off unless
    /// it was asked for.
    pub exactness: Exactness,
    /// Exact prompts are read in chunks that end at multiples of this.
    pub exact_grid: NonZeroUsize,
    /// Thinking and tool-call markers.
    pub markers: MarkerSet,
    /// Whether and how long it thinks, for requests that leave it open.
    pub reasoning: Reasoning,
    /// Signs thinking blocks.
    pub signing_key: Option<SigningKey>,
    /// A tick that takes longer is aborted, and after the same time again the worker is given up.
    pub watchdog: Duration,
    /// Pause before a worker that ended is started again; doubled each time it ends again soon.
    pub restart_pause: Duration,
    /// The longest such pause.
    pub restart_pause_limit: Duration,
}

impl ModelConfig {
    /// A model with everything else at its default.
    #[must_use]
    pub fn new(id: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self {
            id: id.into(),
            model: ModelOptions::new(path),
            context: ContextOptions::default(),
            prober: None,
            fingerprint: FingerprintSource::Safe { memo_folder: None },
            gates: Gates::default(),
            tier: None,
            queue_limit: 64,
            prefill_chunk: PrefillChunk::Default,
            chain_limit: DEFAULT_CHAIN,
            partial_limit: DEFAULT_PARTIALS,
            // Enough for a disk that is busy with our own writes; a tier that was late gets a tenth of it.
            read_wait: Duration::from_secs(1),
            restore_rule: RestoreRule::Faster,
            drafts: Drafts::Auto,
            draft_rule: DraftRule::Faster,
            exactness: Exactness::Off,
            exact_grid: DEFAULT_GRID,
            markers: MarkerSet::default(),
            reasoning: Reasoning::default(),
            signing_key: None,
            // Far above any honest tick, also of a large model on a slow machine.
            watchdog: Duration::from_secs(300),
            restart_pause: Duration::from_millis(100),
            restart_pause_limit: Duration::from_secs(10),
        }
    }
}
