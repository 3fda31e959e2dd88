//! Poncho's shared tier: chains of cached states in an object store, so that machines restore what one of them computed.
//!
//! - **Never mixed.** A manifest names every segment of its chain by content; two machines that write one key with
//!   different bits leave two whole chains, never a mixture.
//! - **Never believed.** Bytes are checked by length, SHA-256 and MAC before they are handed out. What fails is a miss.
//! - **Never waited for.** Calls end at their deadline, a failing store is left alone and probed in the background.
//!
//! [`SharedTier`] implements [`poncho_cache::RemoteTier`] for the engine; [`SharedStore`] serves the commands.
//! [`PeerTier`] and [`RowServer`] do the same between nodes, without a store: one pulls what the other one has.
//! [`Nearest`] is both tiers as one. This crate knows object stores and bytes; it knows neither llama.cpp nor HTTP
//! dialects, and it reads no cache folder.

mod content;
mod error;
mod measure;
mod nearest;
mod objects;
mod peer;
mod quota;
mod settings;
mod store;
mod tier;
mod transfer;

pub use content::manifest::Damage;
pub use error::SharedError;
pub use measure::Measurement;
pub use nearest::Nearest;
pub use peer::server::RowServer;
pub use peer::tier::PeerTier;
pub use peer::{Holder, PullError, PullLimits, PullSecret, PullTls, Whereabouts};
pub use quota::collect::Collection;
pub use settings::{Settings, Sizes, Timing};
pub use store::{Listing, RowListing, SharedStore, StoredPrefix, TenantListing};
pub use tier::SharedTier;
