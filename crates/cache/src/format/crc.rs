//! CRC-32C (Castagnoli, iSCSI), the checksum of payloads, parts and prefixes.
//!
//! Called by the encoder and the decoder, and by the store while it writes and reads payloads. A match says
//! that bytes are those that were written; it must never be used to say that two rows are the same.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// The polynomial, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// In the same order of bits, x to the power of 0 and of 8.
const ONE: u32 = 1 << 31;
const ONE_BYTE: u32 = 1 << 23;

/// The CRC-32C of some bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// The CRC-32C of two runs of bytes laid end to end, from the CRC of each and the length of the second.
///
/// The first one moves on by as many zeros as the second has bytes: a multiplication by a power of x. The library's own way
/// of doing so, with matrices, takes as long as the sum of a megabyte.
#[must_use]
pub fn crc32c_combine(first: u32, second: u32, second_length: u64) -> u32 {
    let (mut moved, mut step, mut left) = (first, ONE_BYTE, second_length);
    while left > 0 && first != 0 {
        if left & 1 == 1 {
            moved = multiply(moved, step);
        }
        step = multiply(step, step);
        left >>= 1;
    }
    moved ^ second
}

/// The product of two polynomials modulo the CRC's.
fn multiply(left: u32, right: u32) -> u32 {
    let (mut sum, mut shifted, mut bit) = (0, right, ONE);
    while bit != 0 {
        if left & bit != 0 {
            sum ^= shifted;
        }
        shifted = (shifted >> 1) ^ (POLYNOMIAL * (shifted & 1));
        bit >>= 1;
    }
    sum
}

/// A CRC-32C that grows with the bytes it is given.
#[derive(Debug, Clone)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// The CRC of no bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Feeds more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC of everything fed so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        low_half(self.0.finalize())
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// The library computes all widths in a `u64`; a 32-bit CRC is its low half.
const fn low_half(crc: u64) -> u32 {
    (crc & 0xffff_ffff) as u32
}

#[cfg(test)]
mod tests {
    use crc_fast::checksum_combine;
    use proptest::prelude::*;

    use super::*;

    /// The definition, bit by bit.
    fn slow(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL * (crc & 1)))
        })
    }

    #[test]
    fn check_value_is_the_published_one() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        assert_eq!(Crc32c::new().finish(), 0);
    }

    #[test]
    fn lengths_beyond_memory_combine_as_the_library_says() {
        for length in [1_u64, 1 << 20, (1 << 40) + 12_345, u64::MAX] {
            let theirs = checksum_combine(CrcAlgorithm::Crc32Iscsi, 0x1234_5678, 0x9abc_def0, length);
            assert_eq!(crc32c_combine(0x1234_5678, 0x9abc_def0, length), low_half(theirs), "{length}");
        }
    }

    proptest! {
        #[test]
        fn pieces_and_combination_agree_with_the_definition(
            first in proptest::collection::vec(any::<u8>(), 0..600),
            second in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let joined = [first.as_slice(), second.as_slice()].concat();
            let mut pieces = Crc32c::new();
            pieces.update(&first);
            pieces.update(&[]);
            pieces.update(&second);
            let expected = slow(&joined);
            prop_assert_eq!(crc32c(&joined), expected);
            prop_assert_eq!(pieces.finish(), expected);
            prop_assert_eq!(crc32c_combine(crc32c(&first), crc32c(&second), second.len() as u64), expected);
        }
    }
}
