//! Sizes as people write and read them: `500MiB`, `10G`, `1.5 GiB`.
//!
//! Used by the flags and by every table. Sums and JSON use plain numbers; nothing is computed from the text that is
//! printed here.

use bytesize::ByteSize;

/// Parses a size such as `500MiB`. `K`, `M`, `G` and `T` alone are binary units.
///
/// # Errors
/// Returns a message with examples if the text is not a size.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    // `ByteSize` reads a unit of one letter as a decimal one.
    let is_short = text.ends_with(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']);
    let unit = if is_short { "iB" } else { "" };
    let size = format!("{text}{unit}").parse::<ByteSize>();
    size.map(|size| size.as_u64()).map_err(|_| format!("`{text}` is not a size; write 4096, 500MiB or 1.5G"))
}

/// Formats a size: whole bytes below 1 KiB, otherwise one decimal.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
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
            ("16777216T", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn text_that_is_not_a_size_is_refused() {
        for text in ["", " ", "G", "-1", "+1G", "1.2.3", "1e9", "10X", "1,5G", "ten", "\u{e9}"] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains("write 4096"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_with_one_decimal() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (500 << 20, "500.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(show_bytes(bytes), expected);
        }
    }
}
