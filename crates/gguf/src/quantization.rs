//! The quantisations of models: llama.cpp's file types, their names, and the byte in the cache's keys.
//!
//! The number of a file type comes from `general.file_type` of a GGUF file, never from a user. One table has all of it.
//! The byte of a `QuantType` is in every stored key: it must never be renumbered, and a file type that is `Other` must
//! stay so.

use std::fmt;

/// Set by llama.cpp in a file type that it guessed.
const GUESSED: u32 = 1024;

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

struct Row {
    quant: QuantType,
    name: &'static str,
    /// Nominal bits per weight.
    bits: u8,
    file_type: Option<u32>,
}

const fn row(quant: QuantType, name: &'static str, bits: u8, file_type: Option<u32>) -> Row {
    Row { quant, name, bits, file_type }
}

const TABLE: [Row; 38] = [
    row(QuantType::F32, "f32", 32, Some(0)),
    row(QuantType::F16, "f16", 16, Some(1)),
    row(QuantType::Q4_0, "q4_0", 4, Some(2)),
    row(QuantType::Q4_1, "q4_1", 4, Some(3)),
    row(QuantType::Q5_0, "q5_0", 5, Some(8)),
    row(QuantType::Q5_1, "q5_1", 5, Some(9)),
    row(QuantType::Q8_0, "q8_0", 8, Some(7)),
    row(QuantType::Q4_K_M, "q4_k_m", 4, Some(15)),
    row(QuantType::Q4_K_S, "q4_k_s", 4, Some(14)),
    row(QuantType::Q5_K_M, "q5_k_m", 5, Some(17)),
    row(QuantType::Q5_K_S, "q5_k_s", 5, Some(16)),
    row(QuantType::Q6_K, "q6_k", 6, Some(18)),
    row(QuantType::Q8_K, "q8_k", 8, None),
    row(QuantType::Q2_K, "q2_k", 2, Some(10)),
    row(QuantType::Q3_K_S, "q3_k_s", 3, Some(11)),
    row(QuantType::Q3_K_M, "q3_k_m", 3, Some(12)),
    row(QuantType::Q3_K_L, "q3_k_l", 3, Some(13)),
    row(QuantType::IQ2_XXS, "iq2_xxs", 2, Some(19)),
    row(QuantType::IQ2_XS, "iq2_xs", 2, Some(20)),
    row(QuantType::IQ2_S, "iq2_s", 2, Some(28)),
    row(QuantType::IQ2_M, "iq2_m", 2, Some(29)),
    row(QuantType::IQ3_XXS, "iq3_xxs", 3, Some(23)),
    row(QuantType::IQ3_XS, "iq3_xs", 3, Some(22)),
    row(QuantType::IQ3_S, "iq3_s", 3, Some(26)),
    row(QuantType::IQ3_M, "iq3_m", 3, Some(27)),
    row(QuantType::IQ1_S, "iq1_s", 1, Some(24)),
    row(QuantType::IQ1_M, "iq1_m", 1, Some(31)),
    row(QuantType::IQ4_NL, "iq4_nl", 4, Some(25)),
    row(QuantType::IQ4_XS, "iq4_xs", 4, Some(30)),
    row(QuantType::BF16, "bf16", 16, Some(32)),
    // Named, and without a byte of their own in keys.
    row(QuantType::Other, "q2_k_s", 2, Some(21)),
    row(QuantType::Other, "tq1_0", 1, Some(36)),
    row(QuantType::Other, "tq2_0", 2, Some(37)),
    row(QuantType::Other, "mxfp4_moe", 4, Some(38)),
    row(QuantType::Other, "nvfp4", 4, Some(39)),
    row(QuantType::Other, "q1_0", 1, Some(40)),
    row(QuantType::Other, "q2_0", 2, Some(41)),
    row(QuantType::Other, "f8_e4m3", 8, Some(42)),
];

impl QuantType {
    /// All quantisations with a byte of their own, and `Other` last.
    pub fn all() -> impl Iterator<Item = Self> {
        let own = TABLE.iter().map(|row| row.quant).filter(|quant| *quant != Self::Other);
        own.chain(std::iter::once(Self::Other))
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
        find(file_type).map_or(Self::Other, |row| row.quant)
    }

    fn own_row(self) -> Option<&'static Row> {
        TABLE.iter().find(|row| row.quant == self && self != Self::Other)
    }

    /// The one spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.own_row().map_or("other", |row| row.name)
    }

    /// Nominal bits per weight, 0 where unknown.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.own_row().map_or(0, |row| row.bits)
    }
}

fn find(file_type: u32) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.file_type == Some(file_type & !GUESSED))
}

/// The name of a file type as llama.cpp spells it, such as `Q4_K_M`.
#[must_use]
pub fn file_type_name(number: u64) -> Option<String> {
    find(u32::try_from(number).ok()?).map(|row| row.name.to_ascii_uppercase())
}

/// Whether a text is the name of a file type, in any case.
#[must_use]
pub fn is_file_type_name(text: &str) -> bool {
    TABLE.iter().any(|row| row.file_type.is_some() && row.name.eq_ignore_ascii_case(text))
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

    #[test]
    fn file_types_without_a_byte_of_their_own_have_names_only() {
        for (number, name) in [(21, "Q2_K_S"), (36, "TQ1_0"), (38, "MXFP4_MOE"), (1024 + 39, "NVFP4")] {
            assert_eq!(file_type_name(number).as_deref(), Some(name));
            assert_eq!(QuantType::from_file_type(u32::try_from(number).unwrap()), QuantType::Other);
        }
        assert_eq!((QuantType::Other.as_str(), QuantType::Other.bits()), ("other", 0));
        assert_eq!((file_type_name(4), file_type_name(u64::MAX)), (None, None));
        assert!(is_file_type_name("q4_K_m") && is_file_type_name("MXFP4_MOE"));
        assert!(!is_file_type_name("Q8_K") && !is_file_type_name("other") && !is_file_type_name(""));
    }

    /// The bytes are in stored keys: this list is what releases have written.
    #[test]
    fn every_file_type_keeps_its_byte() {
        const BYTES: [(u32, u8); 29] = [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 3),
            (8, 4),
            (9, 5),
            (7, 6),
            (15, 7),
            (14, 8),
            (17, 9),
            (16, 10),
            (18, 11),
            (10, 13),
            (11, 14),
            (12, 15),
            (13, 16),
            (19, 17),
            (20, 18),
            (28, 19),
            (29, 20),
            (23, 21),
            (22, 22),
            (26, 23),
            (27, 24),
            (24, 25),
            (31, 26),
            (25, 27),
            (30, 28),
            (32, 29),
        ];
        for file_type in 0..1024 {
            let expected = BYTES.iter().find(|(known, _)| *known == file_type).map_or(255, |(_, byte)| *byte);
            assert_eq!(QuantType::from_file_type(file_type).byte(), expected, "{file_type}");
        }
    }
}
