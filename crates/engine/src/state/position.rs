//! Token positions as the backend counts them.
//!
//! Used wherever a count of tokens becomes a position of a sequence. A context holds fewer than 2^32 tokens, so a count that
//! does not fit is a broken invariant: it must never be clamped, because a wrong position would be decoded or stored.

/// A count of tokens as a position.
///
/// # Panics
/// If the count does not fit. The supervisor contains the panic: the model's worker is restarted.
#[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
pub(crate) fn position(count: usize) -> u32 {
    u32::try_from(count).expect("invariant: a sequence holds fewer than 2^32 tokens")
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_position_that_does_not_fit_is_never_clamped() {
        assert_eq!(position(0), 0);
        assert_eq!(position(u32::MAX as usize), u32::MAX);
        assert!(catch_unwind(|| position(u32::MAX as usize + 1)).is_err());
    }
}
