//! Token bytes to text: valid UTF-8 comes out as soon as it is complete.
//!
//! A character may be spread over several tokens, so the worker pushes the bytes of each token through one of these per
//! reply. Up to three bytes are held back while they may still become a character; bytes that cannot be one come out as
//! U+FFFD. However the bytes are split, the text is that of `String::from_utf8_lossy` over all of them.

use std::str;

/// The decoder of one stream of bytes.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// The start of a character that is not complete, at most three bytes between two pushes.
    pending: Vec<u8>,
    /// What the last push brought; kept for its memory.
    text: String,
}

impl Utf8Stream {
    /// A decoder that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes more bytes and returns the text that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> &str {
        self.text.clear();
        self.pending.extend_from_slice(bytes);
        let mut held = 0;
        let mut chunks = self.pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && is_incomplete(invalid) {
                held = invalid.len();
            } else if !invalid.is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - held);
        &self.text
    }

    /// The stream ended: a character that was not completed comes out as U+FFFD.
    pub fn flush(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }

    /// Whether bytes are held back.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        !self.pending.is_empty()
    }
}

/// Whether more bytes could make a character of these.
fn is_incomplete(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_character_over_several_tokens_comes_out_whole() {
        let mut stream = Utf8Stream::new();
        let bytes = "a😀b".as_bytes();
        assert_eq!(stream.push(&bytes[..3]), "a");
        assert!(stream.is_holding());
        assert_eq!(stream.push(&bytes[3..4]), "");
        assert_eq!(stream.push(&bytes[4..]), "😀b");
        assert!(!stream.is_holding());
        assert_eq!(stream.flush(), "");
    }

    #[test]
    fn bytes_that_can_be_no_character_do_not_wait() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"\xff"), "\u{fffd}");
        assert_eq!(stream.push(b"\xe2\x82"), "");
        assert_eq!(stream.push(b"x"), "\u{fffd}x");
        assert_eq!(stream.push(b"\xed\xa0"), "\u{fffd}\u{fffd}", "a surrogate is refused at its second byte");
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.flush(), "\u{fffd}");
        assert_eq!(stream.flush(), "");
    }

    /// Bytes that make and break characters often.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b'a'),
            0x80_u8..=0xbf,
            0xc0_u8..=0xff,
            prop::sample::select("é€😀\u{d7ff}\u{10ffff}".as_bytes()),
        ];
        prop::collection::vec(byte, 0..6)
    }

    proptest! {
        #[test]
        fn any_split_gives_the_lossy_text_of_the_whole(pieces in prop::collection::vec(piece(), 0..12)) {
            let mut stream = Utf8Stream::new();
            let mut text = String::new();
            for piece in &pieces {
                text.push_str(stream.push(piece));
                prop_assert!(stream.pending.len() <= 3);
            }
            text.push_str(stream.flush());
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole).into_owned());
        }

        #[test]
        fn valid_text_cut_anywhere_stays_what_it_is(text in "\\PC{0,20}", cut in any::<prop::sample::Index>()) {
            let (left, right) = text.as_bytes().split_at(cut.index(text.len() + 1));
            let mut stream = Utf8Stream::new();
            let joined = stream.push(left).to_owned() + stream.push(right);
            prop_assert_eq!(joined, text);
        }
    }
}
