//! Why a plan could not be restored: the one error of choosing, reading and filling.
//!
//! Plain data. A failure never reaches a caller: the prompt is computed instead.

/// Why a plan could not be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A row cannot be read; it has left the cache.
    Unusable,
    /// The context has no free cells for the bytes; idle sequences may make room.
    NoRoom,
    /// The context does not accept the bytes.
    Refused,
}
