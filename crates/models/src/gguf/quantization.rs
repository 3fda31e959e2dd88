//! The quantisations of llama.cpp: the names of its file types, and the bytes that a tensor of a type takes.
//!
//! Two tables. Numbers that are not in them give no name and no size, never a wrong one.

/// The names of `general.file_type`.
const FILE_TYPES: [(u64, &str); 33] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
];

/// Type, weights in a block, bytes of a block.
const TENSOR_TYPES: [(u32, u64, u64); 20] = [
    (0, 1, 4),
    (1, 1, 2),
    (2, 32, 18),
    (3, 32, 20),
    (6, 32, 22),
    (7, 32, 24),
    (8, 32, 34),
    (9, 32, 36),
    (10, 256, 84),
    (11, 256, 110),
    (12, 256, 144),
    (13, 256, 176),
    (14, 256, 210),
    (15, 256, 292),
    (24, 1, 1),
    (25, 1, 2),
    (26, 1, 4),
    (27, 1, 8),
    (28, 1, 8),
    (30, 1, 2),
];

/// The name of a file type.
pub(super) fn file_type_name(number: u64) -> Option<&'static str> {
    FILE_TYPES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// Whether a text is the name of a file type, in whatever case.
pub(crate) fn is_file_type_name(text: &str) -> bool {
    FILE_TYPES.iter().any(|(_, name)| name.eq_ignore_ascii_case(text))
}

/// The bytes that a tensor takes; 0 for a type that is not known.
pub(super) fn tensor_bytes(kind: u32, weights: u64) -> u64 {
    let found = TENSOR_TYPES.iter().find(|(known, ..)| *known == kind);
    found.map_or(0, |(_, block, bytes)| (weights / block).saturating_mul(*bytes))
}
