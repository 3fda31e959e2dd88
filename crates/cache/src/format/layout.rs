//! The fixed numbers of the KVC format: versions, offsets, limits and flags.
//!
//! Used by the encoder, the decoder and the store. A number of a version that exists must never change.

/// The first bytes of every file.
pub const MAGIC: [u8; 3] = *b"KVC";

/// The version of files that hold a whole row as one blob. Listed and verified, never written or restored.
pub const VERSION_WHOLE: u8 = 1;

/// The version of files that form chains and have a payload of parts. The one that is written and restored.
pub const VERSION_CHAINED: u8 = 2;

/// The length of the fixed header: a reader needs this much to learn how long the prefix is.
pub const HEADER_LENGTH: usize = 72;

/// The most bytes before the payload. A million tokens take 4 MB and a long prompt's text about as much, so this
/// leaves room, and it bounds what a damaged length can make a reader allocate.
pub const MAX_PREFIX: u64 = 64 * 1024 * 1024;

/// Where the hit count is, a little-endian `u32` that is rewritten in place.
pub const HITS_OFFSET: usize = 12;

/// Where the time of last use is, a little-endian `u64` that is rewritten in place.
pub const LAST_USED_OFFSET: usize = 32;

/// Flag of version 2: the state was computed on the cold-exact grid.
pub const FLAG_GRID: u16 = 1;

/// The codec of payloads stored as they are.
pub(super) const CODEC_RAW: u8 = 0;
