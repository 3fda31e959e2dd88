//! A cursor over the bytes of a header: little-endian numbers, names and byte runs.
//!
//! Used by the readers of metadata and tensors. Each length is checked against the size of the file before anything is
//! done with it, memory grows with the bytes that were really read, and two budgets bound memory and work.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use crate::error::{Damage, GgufError};
use crate::limits::{MAX_KEPT_BYTES, MAX_NAME_BYTES, MAX_PLAUSIBLE_BYTES, MAX_VISITED};
use crate::value::shortened;

const BUFFER_BYTES: usize = 1 << 16;

/// See the module.
pub(crate) struct Cursor<R: Read + Seek> {
    reader: BufReader<R>,
    offset: u64,
    bytes: u64,
    /// Memory that may still be taken.
    keepable: u64,
    /// Elements that may still be visited.
    visitable: u64,
}

impl<R: Read + Seek> Cursor<R> {
    /// A cursor at the start of the file, wherever the reader stands.
    pub(crate) fn new(mut reader: R) -> io::Result<Self> {
        let bytes = reader.seek(SeekFrom::End(0))?;
        reader.rewind()?;
        let reader = BufReader::with_capacity(BUFFER_BYTES, reader);
        Ok(Self { reader, offset: 0, bytes, keepable: MAX_KEPT_BYTES, visitable: MAX_VISITED })
    }

    /// The first bytes of the file; the cursor stays at the start.
    pub(crate) fn peek_start(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let mut start = Vec::new();
        self.reader.by_ref().take(most).read_to_end(&mut start)?;
        self.reader.rewind()?;
        Ok(start)
    }

    /// Bytes read so far.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn damaged(&self, damage: Damage) -> GgufError {
        GgufError::Damaged { offset: self.offset, damage }
    }

    /// Checks that `length` more bytes are left in the file; returns where they end.
    pub(crate) fn require(&self, length: u64) -> Result<u64, GgufError> {
        match self.offset.checked_add(length) {
            Some(end) if end <= self.bytes => Ok(end),
            Some(needed) if length <= MAX_PLAUSIBLE_BYTES => Err(GgufError::CutShort { needed, bytes: self.bytes }),
            _ => Err(self.damaged(Damage::ImpossibleLength { length })),
        }
    }

    /// Takes memory from the budget, if it has that much left.
    pub(crate) fn keep(&mut self, bytes: u64) -> bool {
        let left = self.keepable.checked_sub(bytes);
        self.keepable = left.unwrap_or(self.keepable);
        left.is_some()
    }

    /// Takes elements that will be visited one by one from the budget.
    pub(crate) fn visit(&mut self, count: u64) -> Result<(), GgufError> {
        let too_many = self.damaged(Damage::TooManyElements { limit: MAX_VISITED });
        self.visitable = self.visitable.checked_sub(count).ok_or(too_many)?;
        Ok(())
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let end = self.require(N as u64)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|source| self.shrunk(end, source))?;
        self.offset = end;
        Ok(bytes)
    }

    /// The file ends before the size that it had at the beginning.
    fn shrunk(&self, needed: u64, source: io::Error) -> GgufError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => GgufError::CutShort { needed, bytes: self.offset },
            _ => GgufError::Io(source),
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, GgufError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, GgufError> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn skip(&mut self, length: u64) -> Result<(), GgufError> {
        let end = self.require(length)?;
        let step = i64::try_from(length).map_err(|_| self.damaged(Damage::ImpossibleLength { length }))?;
        self.reader.seek_relative(step)?;
        self.offset = end;
        Ok(())
    }

    /// A run of bytes. The caller has bounded its length.
    pub(crate) fn run(&mut self, length: u64) -> Result<Vec<u8>, GgufError> {
        let end = self.require(length)?;
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(length).read_to_end(&mut bytes)?;
        if u64::try_from(read).ok() != Some(length) {
            return Err(self.shrunk(end, io::ErrorKind::UnexpectedEof.into()));
        }
        self.offset = end;
        Ok(bytes)
    }

    /// A key or the name of a tensor. C++ code compares names up to their first zero byte, so they may have none.
    pub(crate) fn name(&mut self) -> Result<String, GgufError> {
        let length = self.u64()?;
        if length > MAX_NAME_BYTES {
            return Err(self.damaged(Damage::LongName { length, limit: MAX_NAME_BYTES }));
        }
        self.require(length)?;
        if !self.keep(length) {
            return Err(self.damaged(Damage::TooMuchText { limit: MAX_KEPT_BYTES }));
        }
        let bytes = self.run(length)?;
        let name = String::from_utf8_lossy(&bytes).into_owned();
        if bytes.contains(&0) {
            return Err(self.damaged(Damage::ZeroByte { name: shortened(&name) }));
        }
        Ok(name)
    }
}
