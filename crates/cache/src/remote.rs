//! Tiers of other machines as the cache sees them: rows that another one computed, behind a trait.
//!
//! The engine asks a [`RemoteTier`] for the longest stored prefix of a prompt, fetches its chain, and imports it with
//! `Cache::import`; it offers rows of its own with [`RemoteTier::offer`]. An implementation speaks to an object store
//! or to a peer. Plain data and one trait; nothing in this file may do I/O. Bytes from a remote tier are never
//! trusted: the import makes every check that recovery makes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::kinds::{HitTier, RemoteCounts};

/// The owner of rows on servers without tenants.
pub const NO_TENANT: OwnerId = OwnerId::from_bytes([0; OwnerId::LENGTH]);

/// One row of a chain as a KVC file in canonical form: the bytes depend on the namespace, the tokens and the state, and
/// not on the machine, the time, the owners, the text or the number of hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanonicalRow {
    /// The row's name.
    pub key: Key,
    /// The first token of its own segment.
    pub start: u32,
    /// The row is the state after this many tokens.
    pub end: u32,
    /// The whole KVC file.
    pub bytes: Bytes,
}

/// A row with everything it builds on. Rows of one chain come from one machine: a parent of another origin under the same
/// name may have other bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Who sent the tokens. Nobody else may find the chain.
    pub owner: OwnerId,
    /// What the states depend on besides the tokens.
    pub namespace: Namespace,
    /// Root first; the last one is the row that was asked for or offered.
    pub rows: Vec<CanonicalRow>,
}

impl Chain {
    /// The row that the chain is for.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        self.rows.last().map(|row| row.key)
    }

    /// Bytes of all rows.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rows.iter().map(|row| row.bytes.len() as u64).sum()
    }
}

/// A row that a remote tier has, found but not fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRow {
    /// Who it belongs to.
    pub owner: OwnerId,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name: one of the keys that were asked for.
    pub key: Key,
    /// The row is the state after this many tokens.
    pub tokens: u32,
    /// Bytes of its whole chain, as the remote tier promises them.
    pub bytes: u64,
    /// Where it is: in the shared tier, or in another node.
    pub tier: HitTier,
    /// What the tier needs to fetch the chain without asking for its description again. Opaque to everybody else.
    pub manifest: Bytes,
}

/// What a remote row is looked for with.
#[derive(Debug, Clone, Copy)]
pub struct RemoteQuery<'a> {
    /// Who asks. Rows of other owners do not exist for this call.
    pub owner: OwnerId,
    /// The namespace of the prompt.
    pub namespace: &'a Namespace,
    /// The names of the prefixes that would help, longest first.
    pub keys: &'a [Key],
}

/// How long a call may take. Checked by the tier: a call returns soon after the deadline or the cancellation, whatever
/// the store does.
#[derive(Debug, Clone)]
pub struct Patience {
    /// When the answer becomes worthless.
    pub deadline: Instant,
    /// Set when nobody waits for the answer.
    pub cancelled: Cancellation,
}

impl Patience {
    /// Whether to go on.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        self.cancelled.is_cancelled() || now >= self.deadline
    }
}

/// A flag that ends a call early. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// Nobody waits for the call.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why a row is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OfferReason {
    /// A second conversation used it.
    Reused,
    /// Its conversation has been quiet for a while.
    Idle,
    /// The sequence that held its state was taken by another conversation.
    Evicted,
    /// The model is being unloaded.
    Drain,
}

impl OfferReason {
    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reused => "reused",
            Self::Idle => "idle",
            Self::Evicted => "evicted",
            Self::Drain => "drain",
        }
    }
}

/// Makes the chain of an offer. Reads files: for upload threads only.
pub type Export = Box<dyn FnOnce() -> Option<Chain> + Send>;

/// A row that may be uploaded.
pub struct Offer {
    /// Who sent its tokens.
    pub owner: OwnerId,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name. A tier that has it already drops the offer.
    pub key: Key,
    /// The row is the state after this many tokens.
    pub tokens: u32,
    /// About how many bytes the chain has.
    pub bytes: u64,
    /// Why now.
    pub reason: OfferReason,
    /// Makes the chain when the upload starts. `None`: the row has left the cache meanwhile.
    pub export: Export,
}

impl fmt::Debug for Offer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, key, tokens, bytes, reason, .. } = self;
        write!(formatter, "Offer({key} of {owner}, {tokens} tokens, {bytes} bytes, {})", reason.as_str())
    }
}

/// What the cost model needs to know of a remote tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RemoteRates {
    /// Bytes per second that a fetch of some megabytes reaches. `None` before the first measurement.
    pub bytes_per_second: Option<f64>,
    /// Time of one small request. `None` before the first measurement.
    pub round_trip: Option<Duration>,
}

/// What a remote tier has done, for reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteStatus {
    /// Where the rows are, without credentials.
    pub location: String,
    /// Whether it is used now. A failing store is left alone for a while.
    pub available: bool,
    /// The last failure.
    pub last_error: Option<String>,
    /// What it has done.
    pub counts: RemoteCounts,
}

/// Why a remote tier did not give a row. The request goes on without it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The deadline passed.
    #[error(
        "the shared tier did not answer in time; the prompt is computed. `poncho doctor --shared` measures the store"
    )]
    Late,
    /// Nobody waits for the answer.
    #[error("the request was cancelled")]
    Cancelled,
    /// The row was found but is gone.
    #[error("row {key} has left the shared tier; it is computed")]
    Gone {
        /// The row.
        key: Key,
    },
    /// The tier is left alone after failures.
    #[error("the shared tier is left alone after failures; it is tried again in {retry_in:?}")]
    Unavailable {
        /// When it is tried again.
        retry_in: Duration,
    },
    /// The bytes are not what the description promises.
    #[error("row {key} of the shared tier is damaged: {detail}; it is computed")]
    Damaged {
        /// The row.
        key: Key,
        /// What is wrong.
        detail: String,
    },
    /// The store refused or failed.
    #[error("the shared tier failed: {detail}; check its address and credentials with `poncho doctor --shared`")]
    Failed {
        /// What the store reported, without credentials.
        detail: String,
    },
}

/// A store of rows that several machines share.
///
/// `find` and `fetch` block and are called on I/O threads. The other methods return at once and may be called anywhere.
pub trait RemoteTier: Send + Sync + fmt::Debug {
    /// The first of the query's keys that exists, with one round of parallel requests. `None`: none of them.
    ///
    /// # Errors
    /// The store failed, or did not answer in time.
    fn find(&self, query: RemoteQuery<'_>, patience: &Patience) -> Result<Option<RemoteRow>, RemoteError>;

    /// The chain of a row that [`find`](Self::find) returned. The number of rounds does not depend on its length.
    ///
    /// # Errors
    /// The store failed, did not answer in time, or its bytes are not what the row promises.
    fn fetch(&self, row: &RemoteRow, patience: &Patience) -> Result<Chain, RemoteError>;

    /// A fetched chain failed the checks of the import: do not return this row again.
    fn distrust(&self, row: &RemoteRow);

    /// A row that may be uploaded in the background. Dropped if the queue is full.
    fn offer(&self, offer: Offer);

    /// Waits until the offers so far are uploaded or given up. Returns whether they are.
    fn flush(&self, deadline: Instant) -> bool;

    /// What was measured lately. `None`: the tier is left alone for now, do not call it.
    fn rates(&self) -> Option<RemoteRates>;

    /// What was measured lately of the place that has this row.
    fn rates_of(&self, _row: &RemoteRow) -> Option<RemoteRates> {
        self.rates()
    }

    /// What it has done.
    fn status(&self) -> RemoteStatus;

    /// The same for each of the tiers that it consists of, with what was measured of it.
    fn reports(&self) -> Vec<(HitTier, RemoteStatus, Option<RemoteRates>)> {
        vec![(HitTier::Shared, self.status(), self.rates())]
    }
}
