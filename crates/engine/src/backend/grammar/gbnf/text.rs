//! From the bytes of tokens to characters, across token borders.
//!
//! It reads as llama.cpp's grammar code reads, also where bytes are not valid UTF-8, because both have to allow the same
//! tokens. Used by the backend's grammar for each token that it is asked about.

/// The beginning of a character that a later token completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartialCharacter {
    value: u32,
    /// Bytes that are missing; below zero if the text was no text.
    missing: i32,
}

impl PartialCharacter {
    /// Whether the text so far ends with a whole character.
    pub(crate) const fn is_whole(self) -> bool {
        self.missing == 0
    }

    /// The characters that it can become.
    pub(super) fn range(self) -> Option<(u32, u32)> {
        let missing = u32::try_from(self.missing).ok()?;
        if missing == 1 && self.value < 2 {
            return None;
        }
        let bits = missing * 6;
        let low = self.value.checked_shl(bits)?;
        let high = low | 1u32.checked_shl(bits)?.wrapping_sub(1);
        let low = match (low, missing) {
            (0, 2) => 1 << 11,
            (0, 3) => 1 << 16,
            (low, _) => low,
        };
        Some((low, high))
    }
}

/// Characters of a token; kept by its user so that reading one allocates nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Characters {
    pub(crate) list: Vec<u32>,
    /// What the token ends with.
    pub(crate) rest: PartialCharacter,
}

impl Characters {
    /// Reads the bytes of a token after what the last one ended with.
    pub(crate) fn read(&mut self, bytes: &[u8], before: PartialCharacter) {
        const INVALID: PartialCharacter = PartialCharacter { value: 0, missing: -1 };
        self.list.clear();
        // llama.cpp takes a zero byte for the end.
        let mut bytes = bytes.iter().copied().take_while(|byte| *byte != 0);
        let PartialCharacter { mut value, mut missing } = before;
        while missing > 0 {
            let Some(byte) = bytes.next() else { break };
            if byte >> 6 != 0b10 {
                self.rest = INVALID;
                return;
            }
            value = (value << 6) | u32::from(byte & 0x3f);
            missing -= 1;
        }
        if before.missing > 0 && missing == 0 {
            self.list.push(value);
        }
        while let Some(first) = bytes.next() {
            (value, missing) = match first {
                0..=0x7f => (u32::from(first), 0),
                0x80..=0xbf => {
                    self.list.clear();
                    self.rest = INVALID;
                    return;
                }
                0xc0..=0xdf => (u32::from(first & 0x3f), 1),
                0xe0..=0xef => (u32::from(first & 0x1f), 2),
                0xf0..=0xff => (u32::from(first & 0x0f), 3),
            };
            while missing > 0 {
                let Some(byte) = bytes.next() else { break };
                value = (value << 6) | u32::from(byte & 0x3f);
                missing -= 1;
            }
            if missing == 0 {
                self.list.push(value);
            }
        }
        self.rest = PartialCharacter { value, missing };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], before: PartialCharacter) -> (Vec<u32>, PartialCharacter) {
        let mut characters = Characters::default();
        characters.read(bytes, before);
        (characters.list, characters.rest)
    }

    #[test]
    fn a_character_may_be_spread_over_tokens() {
        let whole = PartialCharacter::default();
        assert_eq!(read("aé€😀".as_bytes(), whole).0, [0x61, 0xe9, 0x20ac, 0x1_f600]);
        let (none, begun) = read(&[0xe2, 0x82], whole);
        assert!(none.is_empty() && !begun.is_whole());
        assert_eq!(begun.range(), Some((0x2080, 0x20bf)));
        let (list, rest) = read(&[0xac, b'x'], begun);
        assert_eq!((list, rest.is_whole()), (vec![0x20ac, 0x78], true));
        for bytes in [&[b'a', 0x80][..], &[0xbf]] {
            let (list, rest) = read(bytes, whole);
            assert!(list.is_empty() && rest.range().is_none() && !rest.is_whole(), "{bytes:?}");
        }
        assert!(read(b"x", begun).1.range().is_none(), "something else came instead of the rest");
    }
}
