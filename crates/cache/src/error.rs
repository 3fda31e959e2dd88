//! All errors of the cache that a caller can do something about: wrong settings, a folder that cannot be used, a save
//! that contradicts itself.
//!
//! Faults of files and disks while the cache runs are NOT here: they make a row a miss or a save dropped
//! (`SaveOutcome`, `Unusable`), are counted, and must never reach a request as an error.

use std::io;
use std::path::PathBuf;

use crate::format::FormatError;
use crate::identity::key::Key;
use crate::kinds::{PartKind, Tier};
use crate::policy::GateError;
use crate::pressure::config::PressureConfigError;

/// An error that the caller can fix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The folder belongs to another process.
    #[error(
        "cache folder {path} is in use by process {pid}: stop it, or give this process a folder of its own with --cache-dir"
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Who holds it, as the lock file says.
        pid: String,
    },
    /// The folder cannot be created, locked or listed.
    #[error("cannot {action} {path}: {source}; check that the folder exists, is writable and has free space")]
    Folder {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A path with a NUL byte, which no system call can take.
    #[error("{field} is {path:?}, which contains a NUL byte; give a path without one")]
    NulInPath {
        /// The setting or the argument.
        field: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// Two tiers in one folder would delete each other's files.
    #[error("tiers ram_file and disk both use {path}; give each a folder of its own")]
    SharedFolder {
        /// The folder.
        path: PathBuf,
    },
    /// No tier is on.
    #[error("every tier has a quota of 0 or no folder; turn on at least one of ram, ram_file and disk")]
    NoTier,
    /// The default tier of saves is off.
    #[error(
        "saves are configured to go to tier {tier}, which is off; give it a quota (and a folder), or choose another tier"
    )]
    TierOff {
        /// The tier.
        tier: Tier,
    },
    /// A number that makes no sense.
    #[error("{field} is {got}, which must be {expected}")]
    BadSetting {
        /// The field of the configuration.
        field: &'static str,
        /// Its value.
        got: u64,
        /// What would do.
        expected: &'static str,
    },
    /// The save gates contradict each other.
    #[error(transparent)]
    Gates(#[from] GateError),
    /// The pressure watcher's settings contradict each other.
    #[error(transparent)]
    Pressure(#[from] PressureConfigError),
    /// One row is larger than everything the tier may hold.
    #[error(
        "a row of {bytes} bytes does not fit into tier {tier} with a quota of {quota} bytes; raise {setting} to several times the size of a row",
        setting = quota_setting(*tier)
    )]
    QuotaTooSmall {
        /// The tier.
        tier: Tier,
        /// Bytes of the row's file.
        bytes: u64,
        /// The tier's quota.
        quota: u64,
    },
    /// The save contradicts itself.
    #[error("this row cannot be saved: {0}")]
    BadSave(#[from] BadSave),
    /// A file that is not a usable row.
    #[error("{path}: {source}")]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: FormatError,
    },
    /// A file that cannot be read.
    #[error("cannot read {path}: {source}; check its permissions")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// No row of that name.
    #[error("no row {key}; list the rows with `poncho cache ls`")]
    NoSuchRow {
        /// The name that was asked for.
        key: String,
    },
}

/// What a tier's quota is called where it is set, in a program and on the command line.
const fn quota_setting(tier: Tier) -> &'static str {
    match tier {
        Tier::Ram => "ram_quota (--cache-ram)",
        Tier::RamFile => "ram_file.quota",
        Tier::Disk => "disk.quota (--cache-size)",
    }
}

/// Why a save contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadSave {
    /// No tokens.
    #[error("it has no tokens; a row is the state after at least one token")]
    NoTokens,
    /// More tokens than a file can say.
    #[error(
        "its {tokens} tokens and {text} bytes of text do not fit into the {limit} bytes that a file has before its payload; \
         save fewer tokens or a shorter text"
    )]
    TooManyTokens {
        /// How many.
        tokens: usize,
        /// Bytes of the text.
        text: usize,
        /// Bytes that a file may have before its payload.
        limit: u64,
    },
    /// No payload.
    #[error("it has no payload parts; give at least one, the attention state as a rule")]
    NoParts,
    /// The same kind of part twice.
    #[error("part {kind} is given twice; join the two or leave one out")]
    PartTwice {
        /// The kind.
        kind: PartKind,
    },
    /// Whole states are of version 1, which is only listed and verified.
    #[error(
        "part `whole` belongs to files of version 1, which are no longer written; pack attention and partial state apart"
    )]
    WholePart,
    /// The range starts after it ends. One that starts where it ends is the row of its base with other parts.
    #[error(
        "its base holds {start} tokens, but it has only {end} itself; ask for the base of these very tokens (`base_for`)"
    )]
    EmptyRange {
        /// First token of the range.
        start: usize,
        /// Token count of the row.
        end: usize,
    },
    /// The parent belongs to another model or context.
    #[error(
        "its parent {parent} belongs to another namespace; ask for a base in the namespace of the row (`base_for`), or save all tokens without one"
    )]
    OtherNamespace {
        /// The parent.
        parent: Key,
    },
    /// The parent does not hold the tokens before the range.
    #[error(
        "its parent {parent} agrees with it for {agree} tokens only, but the range starts at token {start}; ask for the base of these very tokens (`base_for`), or start at {agree} (`starting_at`)"
    )]
    ParentDiffers {
        /// The parent.
        parent: Key,
        /// How many leading tokens agree.
        agree: usize,
        /// First token of the range.
        start: usize,
    },
}
