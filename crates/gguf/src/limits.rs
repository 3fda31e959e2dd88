//! The limits of a header: far above what any model has, low enough that a made-up file costs little.
//!
//! Read by the reader and by its callers' messages. A file may be sparse, so its size alone bounds neither time nor
//! memory; these numbers do. They may be lowered with a reason, and raised only for a real file that needs it.

/// Metadata keys; a model has about a hundred.
pub const MAX_KEYS: u64 = 65_536;
/// Tensors in one file; the largest models have some thousands.
pub const MAX_TENSORS: u64 = 65_536;
/// Bytes of a key or of a tensor's name: the bound of the format.
pub const MAX_NAME_BYTES: u64 = 65_535;
/// Dimensions of a tensor in any version of the format so far.
pub const MAX_DIMENSIONS: u32 = 4;
/// Arrays inside arrays.
pub const MAX_DEPTH: u32 = 4;
/// Texts and inner arrays in all arrays of a file: those are visited one by one, even to skip them.
pub const MAX_VISITED: u64 = 1 << 25;
/// Memory for the metadata and the names of a file, as estimated by [`VALUE_COST`] and the lengths of texts. Texts and
/// arrays that would exceed it are skipped.
pub const MAX_KEPT_BYTES: u64 = 256 << 20;
/// Estimated memory of a value besides the bytes of its text.
pub const VALUE_COST: u64 = 64;
/// A longer text is never kept, whatever the caller asks for. The longest in use are chat templates.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;
/// A length above this that does not fit into the file is damage, not a missing tail.
pub const MAX_PLAUSIBLE_BYTES: u64 = 1 << 32;
/// The name of an architecture is a word.
pub const MAX_ARCHITECTURE_BYTES: usize = 256;
/// Where tensors start if `general.alignment` does not say otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;
