//! Checking the stored copies of a row against their checksums.
//!
//! Called by `Cache::verify_row` for somebody who wants to know, not for a request. Reads files in steps, whatever their
//! size. A copy that is found damaged is moved aside, as it is when a request reads it; one that cannot be read at the
//! moment stays.

use std::io;

use super::PinnedRow;
use crate::folder::scan::{PrefixError, read_found_prefix};
use crate::format::{Crc32c, FilePart};
use crate::index::rows::FileSpot;
use crate::kinds::Tier;

/// Bytes that are read at a time.
const STEP: usize = 1 << 20;

/// The check of one copy of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedCopy {
    /// The tier that holds it.
    pub tier: Tier,
    /// Bytes that were compared with their checksums. Memory has none.
    pub checked_bytes: u64,
    /// The problem, if it has one.
    pub problem: Option<String>,
}

/// Why a copy is not usable.
enum Problem {
    /// Its bytes are wrong.
    Damaged(String),
    /// The file system does not read it.
    Unreadable(io::Error),
}

impl PinnedRow {
    /// Checks every copy of the row. Damaged ones are moved aside.
    pub(crate) fn check(&self) -> Vec<CheckedCopy> {
        let memory = self.memory.iter().map(|_| CheckedCopy { tier: Tier::Ram, checked_bytes: 0, problem: None });
        let files = self.spots.iter().map(|(tier, spot)| {
            let problem = self.check_file(*tier, spot).err();
            let problem = problem.map(|problem| match problem {
                Problem::Damaged(problem) => {
                    self.reader.remover.condemn(self.id, &self.key, *tier);
                    problem
                }
                Problem::Unreadable(error) => format!("it cannot be read: {error}"),
            });
            let checked_bytes = if problem.is_none() { spot.file_length } else { 0 };
            CheckedCopy { tier: *tier, checked_bytes, problem }
        });
        memory.chain(files).collect()
    }

    fn check_file(&self, tier: Tier, spot: &FileSpot) -> Result<(), Problem> {
        let tiers = &self.reader.remover.tiers;
        let path = tiers.of(tier).row_path(&self.key);
        let prefix = read_found_prefix(tiers.fs(), &path).map_err(|error| match error {
            PrefixError::Io(error) => unreadable(error),
            PrefixError::Format(error) => Problem::Damaged(error.to_string()),
        })?;
        if prefix.meta.namespace != self.meta.namespace || prefix.meta.token_count != self.meta.token_count {
            return Err(Problem::Damaged("it is the file of another row".to_owned()));
        }
        spot.parts.iter().try_for_each(|part| {
            let got = self.sum(tier, spot, part).map_err(unreadable)?;
            let (kind, expected) = (part.kind, part.crc);
            let problem = || Problem::Damaged(format!("part {kind} has checksum {got:08x}, expected {expected:08x}"));
            if got == expected { Ok(()) } else { Err(problem()) }
        })
    }

    /// The checksum of a part's bytes.
    fn sum(&self, tier: Tier, spot: &FileSpot, part: &FilePart) -> io::Result<u32> {
        let tiers = &self.reader.remover.tiers;
        let file = tiers.fs().open(&tiers.of(tier).row_path(&self.key))?;
        let mut buffer = vec![0; STEP];
        let (mut crc, mut done) = (Crc32c::new(), 0);
        while done < part.length {
            let step = usize::try_from(part.length - done).unwrap_or(STEP).min(STEP);
            let Some(piece) = buffer.get_mut(..step) else { break };
            file.read_exact_at(piece, spot.payload_offset.saturating_add(part.offset).saturating_add(done))?;
            crc.update(piece);
            done += step as u64;
        }
        Ok(crc.finish())
    }
}

/// A file that ends too early is damaged; any other error may pass.
fn unreadable(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Problem::Damaged("it is shorter than its header says".to_owned()),
        _ => Problem::Unreadable(error),
    }
}
