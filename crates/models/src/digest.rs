//! A SHA-256, computed over files and written as 64 lower-case hexadecimal digits.
//!
//! The identity of every file in the registry. A digest that was read from outside is checked here before it can become
//! the name of a file.

use std::fmt;
use std::io::{self, Read};

use sha2::Digest as _;

/// Bytes read at once: large enough that the system call is cheap, small enough that a stop takes effect soon.
pub(crate) const PIECE: usize = 1 << 20;

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// Reads 64 hexadecimal digits, with or without `sha256:` or `sha256-` before them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:").or_else(|| text.strip_prefix("sha256-")).unwrap_or(text);
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(index * 2..index * 2 + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// The 64 digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The hash of some bytes in memory.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Sha256({self})")
    }
}

impl serde::Serialize for Sha256 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Sha256 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as serde::Deserialize>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a SHA-256 is 64 hexadecimal digits"))
    }
}

/// A hash that grows with the bytes that are written through it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hasher(sha2::Sha256);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Sha256 {
        Sha256(self.0.finalize().into())
    }
}

/// Reads to the end, handing every piece to `each` with the count of bytes so far.
pub(crate) fn for_each_piece<E: From<io::Error>>(
    mut reader: impl Read,
    mut each: impl FnMut(&[u8], u64) -> Result<(), E>,
) -> Result<u64, E> {
    let mut buffer = vec![0; PIECE];
    let mut done = 0_u64;
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(0) => return Ok(done),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        done = done.saturating_add(count as u64);
        each(buffer.get(..count).unwrap_or_default(), done)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn digests_are_read_and_written_alike() {
        for text in [EMPTY.to_owned(), format!("sha256:{EMPTY}"), format!("sha256-{}", EMPTY.to_uppercase())] {
            assert_eq!(Sha256::parse(&text).unwrap().to_hex(), EMPTY);
        }
        assert_eq!(Sha256::of(b"").to_hex(), EMPTY);
        for wrong in
            ["", "abc", "../../../etc/passwd", &EMPTY.replace('e', "/"), &format!("{EMPTY}0"), &"\u{e9}".repeat(32)]
        {
            assert_eq!(Sha256::parse(wrong), None, "{wrong}");
        }
    }
}
