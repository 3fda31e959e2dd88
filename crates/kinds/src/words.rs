//! The words: save reasons, tiers, payload parts, fingerprint modes, hit kinds.
//!
//! Every enum here has one spelling (`as_str`) that the logs, the metrics, the JSON output and the documents share,
//! and, where it is stored, one byte. Used by the cache, the engine and the server. It must never get a second spelling
//! for the same thing.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Why a row was saved. The discriminant is the byte in the file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum SaveReason {
    /// The file does not say (files of other writers).
    Unknown = 0,
    /// After a cold prefill, at the trimmed and aligned boundary.
    Cold = 1,
    /// At fixed intervals of generated tokens.
    Continued = 2,
    /// A sequence had to give up its place.
    Evict = 3,
    /// The model is being unloaded.
    Shutdown = 4,
    /// A request is complete.
    Finish = 5,
}

impl SaveReason {
    /// All reasons, in the order of their bytes.
    pub const ALL: [Self; 6] = [Self::Unknown, Self::Cold, Self::Continued, Self::Evict, Self::Shutdown, Self::Finish];

    /// The byte in the file header.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The reason for a header byte, or `None` for a byte that no version defines.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.byte() == byte)
    }

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Cold => "cold",
            Self::Continued => "continued",
            Self::Evict => "evict",
            Self::Shutdown => "shutdown",
            Self::Finish => "finish",
        }
    }

    /// Whether the caller waits for the save: its sequence is about to go away.
    #[must_use]
    pub const fn is_synchronous(self) -> bool {
        matches!(self, Self::Evict | Self::Shutdown)
    }
}

/// Where a row lives. The order is the order of durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Process memory: gone with the process.
    Ram,
    /// Files on a memory file system: survive the process, not the machine.
    RamFile,
    /// Files on a disk: survive the machine.
    Disk,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Self; 3] = [Self::Ram, Self::RamFile, Self::Disk];
    /// The tiers of files, fastest first.
    pub const FILES: [Self; 2] = [Self::RamFile, Self::Disk];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::RamFile => "ram_file",
            Self::Disk => "disk",
        }
    }

    /// The tier of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.as_str() == name)
    }

    /// The value of this tier, of one for each.
    #[must_use]
    pub const fn pick<T: Copy>(self, [ram, ram_file, disk]: &[T; 3]) -> T {
        match self {
            Self::Ram => *ram,
            Self::RamFile => *ram_file,
            Self::Disk => *disk,
        }
    }

    /// Position in arrays with one slot per tier.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Why a row left a tier although its file was usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EvictionCause {
    /// Another row needed its room.
    Room,
    /// The machine ran out of memory.
    Pressure,
    /// The tier holds less than it did at an earlier start.
    Quota,
    /// Somebody asked for it.
    Asked,
    /// Its conversation has other rows close by.
    Thinned,
}

impl EvictionCause {
    /// All causes.
    pub const ALL: [Self; 5] = [Self::Room, Self::Pressure, Self::Quota, Self::Asked, Self::Thinned];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Pressure => "pressure",
            Self::Quota => "quota",
            Self::Asked => "asked",
            Self::Thinned => "thinned",
        }
    }

    /// The cause of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == name)
    }
}

/// What a piece of a row's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PartKind {
    /// The whole state of a version 1 row, as one blob. Never written, only read.
    Whole = 0,
    /// Plain attention state of the token range that the file covers.
    Attention = 1,
    /// What is not plain attention (window, recurrent state) at the row's boundary.
    Partial = 2,
    /// The logits of the row's last token.
    Logits = 3,
}

impl PartKind {
    /// All kinds, in the order of their bytes.
    pub const ALL: [Self; 4] = [Self::Whole, Self::Attention, Self::Partial, Self::Logits];

    /// The byte in the parts table.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The kind for a byte of the parts table of a version 2 file.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.byte() == byte)
    }

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Attention => "attention",
            Self::Partial => "partial",
            Self::Logits => "logits",
        }
    }
}

/// How the fingerprint of the model file was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FingerprintMode {
    /// SHA-256 of every byte of the model's files.
    Safe = 0,
    /// SHA-256 of the metadata block and the first weight tensor.
    GgufChunked = 1,
    /// The caller's bytes, trusted.
    FastUnsafe = 2,
}

impl FingerprintMode {
    /// All modes, in the order of their bytes.
    pub const ALL: [Self; 3] = [Self::Safe, Self::GgufChunked, Self::FastUnsafe];

    /// The byte in the file.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The mode for a byte of a file.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.byte() == byte)
    }

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::GgufChunked => "gguf_chunked",
            Self::FastUnsafe => "fast_unsafe",
        }
    }
}

/// How a request found its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HitKind {
    /// The whole prompt was stored.
    Exact,
    /// A proper prefix was stored.
    Partial,
    /// Nothing was stored.
    Cold,
    /// The session's sequence already held a prefix.
    Sticky,
    /// The caller appended to its session unchecked.
    Continuation,
}

impl HitKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Exact, Self::Partial, Self::Cold, Self::Sticky, Self::Continuation];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Partial => "partial",
            Self::Cold => "cold",
            Self::Sticky => "sticky",
            Self::Continuation => "continuation",
        }
    }

    /// The kind as it is reported. An overlap of fewer than 32 tokens that is also less than 5 % of the prompt is
    /// `cold`: two unrelated prompts share the first words of their template.
    #[must_use]
    pub const fn reported(self, cached: usize, prompt: usize) -> Self {
        let is_tiny = cached < 32 && cached.saturating_mul(20) < prompt;
        match self {
            Self::Partial | Self::Sticky if is_tiny => Self::Cold,
            other => other,
        }
    }
}

/// Where the prefix of a request was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HitTier {
    /// In a sequence of the context.
    Sequence,
    /// In process memory.
    Ram,
    /// In files on a memory file system.
    RamFile,
    /// In files on a disk.
    Disk,
    /// In the cache of another node.
    Peer,
    /// In the tier that several machines share.
    Shared,
}

impl HitTier {
    /// All of them, fastest first.
    pub const ALL: [Self; 6] = [Self::Sequence, Self::Ram, Self::RamFile, Self::Disk, Self::Peer, Self::Shared];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::Ram => Tier::Ram.as_str(),
            Self::RamFile => Tier::RamFile.as_str(),
            Self::Disk => Tier::Disk.as_str(),
            Self::Peer => "peer",
            Self::Shared => "shared",
        }
    }
}

impl From<Tier> for HitTier {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Ram => Self::Ram,
            Tier::RamFile => Self::RamFile,
            Tier::Disk => Self::Disk,
        }
    }
}

/// The word wherever a kind is shown or sent.
macro_rules! spelled {
    ($($name:ty),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = String::deserialize(deserializer)?;
                Self::ALL.into_iter().find(|known| known.as_str() == word).ok_or_else(|| {
                    de::Error::custom(format_args!("{word:?} is not a known {}", stringify!($name)))
                })
            }
        }
    )+};
}
spelled!(SaveReason, Tier, EvictionCause, PartKind, FingerprintMode, HitKind, HitTier);

#[cfg(test)]
mod tests {
    use super::*;

    /// Everyday use 10: 6 of 2,705 tokens were called a partial hit.
    #[test]
    fn a_tiny_overlap_is_cold() {
        for (kind, cached, prompt, reported) in [
            (HitKind::Partial, 6, 2705, HitKind::Cold),
            (HitKind::Sticky, 6, 2705, HitKind::Cold),
            (HitKind::Partial, 31, 621, HitKind::Cold),
            (HitKind::Partial, 31, 620, HitKind::Partial),
            (HitKind::Partial, 32, 100_000, HitKind::Partial),
            (HitKind::Partial, 3, 9, HitKind::Partial),
            (HitKind::Continuation, 6, 2705, HitKind::Continuation),
            (HitKind::Exact, 2705, 2705, HitKind::Exact),
        ] {
            assert_eq!(kind.reported(cached, prompt), reported, "{kind} {cached} of {prompt}");
        }
    }

    #[test]
    fn every_stored_byte_round_trips() {
        for reason in SaveReason::ALL {
            assert_eq!(SaveReason::from_byte(reason.byte()), Some(reason));
        }
        for kind in PartKind::ALL {
            assert_eq!(PartKind::from_byte(kind.byte()), Some(kind));
        }
        for mode in FingerprintMode::ALL {
            assert_eq!(FingerprintMode::from_byte(mode.byte()), Some(mode));
        }
        assert_eq!(SaveReason::from_byte(6), None);
        assert_eq!(PartKind::from_byte(4), None);
        assert_eq!(FingerprintMode::from_byte(3), None);
    }

    #[test]
    fn tiers_are_ordered_by_durability() {
        assert!(Tier::Ram < Tier::RamFile && Tier::RamFile < Tier::Disk);
        for tier in Tier::ALL {
            assert_eq!(Tier::from_name(tier.as_str()), Some(tier));
        }
        for cause in EvictionCause::ALL {
            assert_eq!(EvictionCause::from_name(cause.as_str()), Some(cause));
        }
    }

    #[test]
    fn a_kind_is_sent_as_its_word() {
        for hit in HitKind::ALL {
            let sent = serde_json::to_string(&hit).unwrap();
            assert_eq!(sent, format!("\"{hit}\""));
            assert_eq!(serde_json::from_str::<HitKind>(&sent).unwrap(), hit);
        }
        assert!(serde_json::from_str::<Tier>("\"tape\"").is_err());
        assert_eq!(Tier::Disk.pick(&[1, 2, 3]), 3);
    }
}
