//! A cursor over the bytes of a prefix that cannot read past their end.
//!
//! Called by the decoder and by the TLV records. Every read names the field that it is for, so that an error
//! does too. It must never allocate: it hands out parts of the bytes that it was given.

use super::error::{FormatError, FormatField};

/// A position in some bytes.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// A cursor at the first byte.
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Whether all bytes have been read.
    pub(super) const fn is_at_end(&self) -> bool {
        self.position >= self.bytes.len()
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, field: FormatField, length: usize) -> Result<&'a [u8], FormatError> {
        let end = self.position.saturating_add(length);
        let taken = self.bytes.get(self.position..end).ok_or(FormatError::Overrun {
            field,
            end: end as u64,
            limit: self.bytes.len() as u64,
        })?;
        self.position = end;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, field: FormatField) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N)?);
        Ok(array)
    }

    /// The next byte.
    pub(super) fn u8(&mut self, field: FormatField) -> Result<u8, FormatError> {
        self.array(field).map(u8::from_le_bytes)
    }

    /// The next little-endian `u32`.
    pub(super) fn u32(&mut self, field: FormatField) -> Result<u32, FormatError> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// The next little-endian `u64`.
    pub(super) fn u64(&mut self, field: FormatField) -> Result<u64, FormatError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A `u32` length and as many bytes.
    pub(super) fn sized(&mut self, field: FormatField) -> Result<&'a [u8], FormatError> {
        let length = self.u32(field)?;
        self.take(field, usize::try_from(length).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_little_endian_and_stop_at_the_end() {
        let mut reader = Reader::new(&[1, 2, 0, 0, 0, 9, 8, 7]);
        assert_eq!(reader.u8(FormatField::Header), Ok(1));
        assert_eq!(reader.sized(FormatField::Text), Ok([9, 8].as_slice()));
        assert_eq!(
            reader.u32(FormatField::Text),
            Err(FormatError::Overrun { field: FormatField::Text, end: 11, limit: 8 })
        );
        assert!(!reader.is_at_end());
        assert_eq!(reader.u8(FormatField::Header), Ok(7), "a failed read moves nothing");
        assert!(reader.is_at_end());
    }

    #[test]
    fn largest_length_is_an_error() {
        let bytes = [&u32::MAX.to_le_bytes()[..], &[0; 4]].concat();
        assert!(matches!(Reader::new(&bytes).sized(FormatField::Records), Err(FormatError::Overrun { .. })));
    }
}
