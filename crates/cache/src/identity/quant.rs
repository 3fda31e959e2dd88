//! The quantisation of a model's weights, as one byte of a row's identity.
//!
//! Read from a GGUF's `general.file_type`, never asked of the user; part of every `Namespace`. The table
//! below is the whole truth: byte, name, bits per weight and llama.cpp's file type. It must never be
//! renumbered, because the byte is in every stored key.

use std::fmt;

/// The quantisation of a model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(non_camel_case_types, reason = "the spelling of llama.cpp, which everybody knows")]
#[repr(u8)]
pub enum QuantType {
    /// `f32`
    F32 = 0,
    /// `f16`
    F16 = 1,
    /// `q4_0`
    Q4_0 = 2,
    /// `q4_1`
    Q4_1 = 3,
    /// `q5_0`
    Q5_0 = 4,
    /// `q5_1`
    Q5_1 = 5,
    /// `q8_0`
    Q8_0 = 6,
    /// `q4_k_m`
    Q4_K_M = 7,
    /// `q4_k_s`
    Q4_K_S = 8,
    /// `q5_k_m`
    Q5_K_M = 9,
    /// `q5_k_s`
    Q5_K_S = 10,
    /// `q6_k`
    Q6_K = 11,
    /// `q8_k`
    Q8_K = 12,
    /// `q2_k`
    Q2_K = 13,
    /// `q3_k_s`
    Q3_K_S = 14,
    /// `q3_k_m`
    Q3_K_M = 15,
    /// `q3_k_l`
    Q3_K_L = 16,
    /// `iq2_xxs`
    IQ2_XXS = 17,
    /// `iq2_xs`
    IQ2_XS = 18,
    /// `iq2_s`
    IQ2_S = 19,
    /// `iq2_m`
    IQ2_M = 20,
    /// `iq3_xxs`
    IQ3_XXS = 21,
    /// `iq3_xs`
    IQ3_XS = 22,
    /// `iq3_s`
    IQ3_S = 23,
    /// `iq3_m`
    IQ3_M = 24,
    /// `iq1_s`
    IQ1_S = 25,
    /// `iq1_m`
    IQ1_M = 26,
    /// `iq4_nl`
    IQ4_NL = 27,
    /// `iq4_xs`
    IQ4_XS = 28,
    /// `bf16`
    BF16 = 29,
    /// Anything else.
    Other = 255,
}

/// Name, bits per weight and `general.file_type` of each known quantisation.
const TABLE: [(QuantType, &str, u8, Option<u32>); 31] = [
    (QuantType::F32, "f32", 32, Some(0)),
    (QuantType::F16, "f16", 16, Some(1)),
    (QuantType::Q4_0, "q4_0", 4, Some(2)),
    (QuantType::Q4_1, "q4_1", 4, Some(3)),
    (QuantType::Q5_0, "q5_0", 5, Some(8)),
    (QuantType::Q5_1, "q5_1", 5, Some(9)),
    (QuantType::Q8_0, "q8_0", 8, Some(7)),
    (QuantType::Q4_K_M, "q4_k_m", 4, Some(15)),
    (QuantType::Q4_K_S, "q4_k_s", 4, Some(14)),
    (QuantType::Q5_K_M, "q5_k_m", 5, Some(17)),
    (QuantType::Q5_K_S, "q5_k_s", 5, Some(16)),
    (QuantType::Q6_K, "q6_k", 6, Some(18)),
    (QuantType::Q8_K, "q8_k", 8, None),
    (QuantType::Q2_K, "q2_k", 2, Some(10)),
    (QuantType::Q3_K_S, "q3_k_s", 3, Some(11)),
    (QuantType::Q3_K_M, "q3_k_m", 3, Some(12)),
    (QuantType::Q3_K_L, "q3_k_l", 3, Some(13)),
    (QuantType::IQ2_XXS, "iq2_xxs", 2, Some(19)),
    (QuantType::IQ2_XS, "iq2_xs", 2, Some(20)),
    (QuantType::IQ2_S, "iq2_s", 2, Some(28)),
    (QuantType::IQ2_M, "iq2_m", 2, Some(29)),
    (QuantType::IQ3_XXS, "iq3_xxs", 3, Some(23)),
    (QuantType::IQ3_XS, "iq3_xs", 3, Some(22)),
    (QuantType::IQ3_S, "iq3_s", 3, Some(26)),
    (QuantType::IQ3_M, "iq3_m", 3, Some(27)),
    (QuantType::IQ1_S, "iq1_s", 1, Some(24)),
    (QuantType::IQ1_M, "iq1_m", 1, Some(31)),
    (QuantType::IQ4_NL, "iq4_nl", 4, Some(25)),
    (QuantType::IQ4_XS, "iq4_xs", 4, Some(30)),
    (QuantType::BF16, "bf16", 16, Some(32)),
    (QuantType::Other, "other", 0, None),
];

impl QuantType {
    /// All known quantisations, `Other` last.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|entry| entry.0)
    }

    /// The byte in keys and files.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The quantisation for a byte; bytes that are not in the table are `Other`.
    #[must_use]
    pub fn from_byte(byte: u8) -> Self {
        Self::all().find(|quant| quant.byte() == byte).unwrap_or(Self::Other)
    }

    /// The quantisation for the value of a GGUF's `general.file_type`. The bit that marks a guessed type is ignored.
    #[must_use]
    pub fn from_file_type(file_type: u32) -> Self {
        const GUESSED: u32 = 1024;
        let file_type = file_type & !GUESSED;
        TABLE.iter().find(|entry| entry.3 == Some(file_type)).map_or(Self::Other, |entry| entry.0)
    }

    /// The one spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        TABLE.iter().find(|entry| entry.0 == self).map_or("other", |entry| entry.1)
    }

    /// Nominal bits per weight, 0 where unknown.
    #[must_use]
    pub fn bits(self) -> u8 {
        TABLE.iter().find(|entry| entry.0 == self).map_or(0, |entry| entry.2)
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_are_the_published_ones() {
        for quant in QuantType::all() {
            assert_eq!(QuantType::from_byte(quant.byte()), quant);
        }
        assert_eq!(QuantType::from_byte(200), QuantType::Other);
        assert_eq!((QuantType::F32.byte(), QuantType::Q4_K_M.byte(), QuantType::BF16.byte()), (0, 7, 29));
    }

    #[test]
    fn file_types_of_llama_cpp_are_understood() {
        assert_eq!(QuantType::from_file_type(1), QuantType::F16);
        assert_eq!(QuantType::from_file_type(15), QuantType::Q4_K_M);
        assert_eq!(QuantType::from_file_type(1024 + 7), QuantType::Q8_0);
        assert_eq!(QuantType::from_file_type(99), QuantType::Other);
    }
}
