//! Sizes as people write and read them: `500MiB`, `10G`, `1.5 GiB`.
//!
//! Used by the flags and by every table. Sums and JSON use plain numbers; nothing is ever computed from the text that
//! is printed here.

/// Units with their powers: the short ones and those with an `i` are binary, those with a `B` alone decimal.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

/// Digits after the point that still count; 2^40 has no use for more.
const MOST_DECIMALS: usize = 12;

/// The bytes that a text such as `500MiB` stands for, rounded down.
///
/// # Errors
/// A sentence that says what would do.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write 4096, 500MiB, 1.5G or the like");
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end).ok_or_else(wrong)?;
    let unit = unit.trim().to_ascii_lowercase();
    let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || decimals.len() > MOST_DECIMALS || number.ends_with('.') {
        return Err(wrong());
    }
    let digits: u128 = format!("{whole}{decimals}").parse().map_err(|_| wrong())?;
    let scale = 10_u128.pow(u32::try_from(decimals.len()).map_err(|_| wrong())?);
    let bytes = digits.checked_mul(u128::from(factor)).ok_or_else(wrong)? / scale;
    u64::try_from(bytes).map_err(|_| format!("`{text}` is more than the 16 EiB that a size can say; write less"))
}

/// A size for people: whole bytes below 1 KiB, else one decimal.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // In tenths of the unit, rounded; a value that rounds up to 1024.0 moves on to the next unit.
    let mut power = 1_u128 << 10;
    for name in NAMES {
        let tenths = (u128::from(bytes) * 10 + power / 2) / power;
        if tenths < 10_240 || name == "EiB" {
            return format!("{}.{} {name}", tenths / 10, tenths % 10);
        }
        power <<= 10;
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_spelling() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("512KiB", 512 << 10),
            ("512k", 512 << 10),
            ("500MiB", 500 << 20),
            ("500 MiB", 500 << 20),
            ("10G", 10 << 30),
            ("1.5GiB", 3 << 29),
            ("1.5kB", 1500),
            ("2MB", 2_000_000),
            ("0.0005K", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let wrong =
            ["", " ", "G", "-1", "+1", "1.", ".5G", "1.2.3", "1e9", "10X", "1,5G", "16777216T", "0.1234567890123K"];
        for text in wrong.into_iter().chain(["99999999999999999999999999999999999999999999"]) {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains("write"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_with_one_decimal() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (500 << 20, "500.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(show_bytes(bytes), expected);
        }
    }
}
