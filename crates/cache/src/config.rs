//! Settings of a cache: raw as the caller gives them (`CacheConfig`), checked once when it is opened.
//!
//! Built by the engine and by the command line. After `check` has passed, no other module needs to
//! check a setting.

use std::fmt::Debug;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::CacheError;
use crate::identity::key::Key;
use crate::io::clock::{Clock, SystemClock};
use crate::io::fs::{Fs, StdFs};
use crate::kinds::Tier;
use crate::policy::{Gates, Policy};
use crate::pressure::config::PressureConfig;
use crate::remote::RemoteTier;

/// A tier of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTierConfig {
    /// The folder; created if it is not there.
    pub folder: PathBuf,
    /// Bytes of files that it may hold; 0 turns the tier off.
    pub quota: u64,
}

/// All settings of a cache.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// Bytes of payload that may stay in process memory; 0 turns the tier off.
    pub ram_quota: u64,
    /// Files on a memory file system.
    pub ram_file: Option<FileTierConfig>,
    /// Files on a disk.
    pub disk: Option<FileTierConfig>,
    /// Where saves go. `None`: the disk if it is on, else memory files, else memory.
    pub save_tier: Option<Tier>,
    /// Keep the payload of rows saved to files in memory too, by reference, while `ram_quota` has room.
    pub keep_hot: bool,
    /// Threads that write files.
    pub writers: usize,
    /// Saves that may wait for a writer; one more is dropped.
    pub queue: usize,
    /// How long a writer may own a key before another may take it over.
    pub reservation_ttl_ms: u64,
    /// How long closing the cache waits for what is still being written.
    pub drain_limit: Duration,
    /// The save gates.
    pub gates: Gates,
    /// The memory pressure watcher.
    pub pressure: PressureConfig,
    /// The file system. Tests put a faulty one here.
    pub fs: Arc<dyn Fs>,
    /// The clock. Tests put a paused one here.
    pub clock: Arc<dyn Clock>,
    /// Notified at each publish stage.
    pub observer: Option<Arc<dyn StageObserver>>,
    /// The tier that other machines share. The cache itself never calls it: the engine does.
    pub remote: Option<Arc<dyn RemoteTier>>,
    /// The process that an error names to another user of the folder: this one, or the one that it works for.
    pub process: u32,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            // Enough for a handful of hot system prompts of a small model; the disk holds the rest.
            ram_quota: 512 << 20,
            ram_file: None,
            disk: None,
            save_tier: None,
            keep_hot: true,
            // One thread keeps a disk busy; the second overlaps checksums with the first one's sync.
            writers: 2,
            queue: 64,
            // Far above any honest write, low enough that a stuck one does not block its key for long.
            reservation_ttl_ms: 60_000,
            // A queue full of rows of a large model, on a slow disk.
            drain_limit: Duration::from_secs(30),
            gates: Gates::default(),
            pressure: PressureConfig::default(),
            fs: Arc::new(StdFs),
            clock: Arc::new(SystemClock::default()),
            observer: None,
            remote: None,
            process: std::process::id(),
        }
    }
}

impl CacheConfig {
    /// A cache on a disk folder with a quota, everything else at its default.
    #[must_use]
    pub fn on_disk(folder: impl Into<PathBuf>, quota: u64) -> Self {
        Self { disk: Some(FileTierConfig { folder: folder.into(), quota }), ..Self::default() }
    }

    /// A cache in memory only.
    #[must_use]
    pub fn in_memory(ram_quota: u64) -> Self {
        Self { ram_quota, ..Self::default() }
    }

    /// Quota of a tier, 0 if it is off.
    #[must_use]
    pub fn quota(&self, tier: Tier) -> u64 {
        match tier {
            Tier::Ram => self.ram_quota,
            Tier::RamFile | Tier::Disk => self.file_tier(tier).map_or(0, |config| config.quota),
        }
    }

    /// The settings of a file tier that is on.
    #[must_use]
    pub fn file_tier(&self, tier: Tier) -> Option<&FileTierConfig> {
        let config = match tier {
            Tier::Ram => None,
            Tier::RamFile => self.ram_file.as_ref(),
            Tier::Disk => self.disk.as_ref(),
        };
        config.filter(|config| config.quota > 0)
    }

    /// The tier of saves that name none.
    #[must_use]
    pub fn default_tier(&self) -> Tier {
        self.save_tier
            .unwrap_or_else(|| Tier::ALL.into_iter().rev().find(|tier| self.quota(*tier) > 0).unwrap_or(Tier::Ram))
    }

    /// Refuses invalid settings, by name.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), CacheError> {
        if Tier::ALL.into_iter().all(|tier| self.quota(tier) == 0) {
            return Err(CacheError::NoTier);
        }
        let tier = self.default_tier();
        if self.quota(tier) == 0 {
            return Err(CacheError::TierOff { tier });
        }
        for (field, got) in [("writers", self.writers), ("queue", self.queue)] {
            if got == 0 || got > 4096 {
                return Err(CacheError::BadSetting { field, got: got as u64, expected: "between 1 and 4096" });
            }
        }
        if self.reservation_ttl_ms == 0 {
            return Err(CacheError::BadSetting { field: "reservation_ttl_ms", got: 0, expected: "at least 1" });
        }
        let folders = [Tier::RamFile, Tier::Disk].map(|tier| self.file_tier(tier).map(|config| &config.folder));
        for (field, folder) in ["ram_file.folder", "disk.folder"].into_iter().zip(folders) {
            folder.map_or(Ok(()), |folder| refuse_nul(field, folder))?;
        }
        if let [Some(one), Some(two)] = folders
            && one == two
        {
            return Err(CacheError::SharedFolder { path: one.clone() });
        }
        Policy::new(self.gates)?;
        self.pressure.validate()?;
        Ok(())
    }

    /// The settings, once they have passed the check.
    pub(crate) fn checked(self) -> Result<CheckedConfig, CacheError> {
        self.check()?;
        Ok(CheckedConfig { policy: Policy::new(self.gates)?, settings: self })
    }
}

/// Settings that passed the check, and the policy that was made from them.
pub(crate) struct CheckedConfig {
    settings: CacheConfig,
    policy: Policy,
}

impl CheckedConfig {
    pub(crate) fn settings(&self) -> &CacheConfig {
        &self.settings
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }
}

/// A point in the life of a file that is being published, reported right after it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The key is reserved; nothing is on the disk yet.
    Reserved,
    /// The temporary file is complete and synced.
    TmpWritten,
    /// The reservation was still ours, and stays so.
    Checked,
    /// The final name exists; the temporary name too.
    Linked,
    /// The temporary name is gone.
    TmpRemoved,
    /// The folder is synced.
    FolderSynced,
    /// The row is announced.
    Announced,
}

impl Stage {
    /// All stages in their order.
    pub const ALL: [Self; 7] = [
        Self::Reserved,
        Self::TmpWritten,
        Self::Checked,
        Self::Linked,
        Self::TmpRemoved,
        Self::FolderSynced,
        Self::Announced,
    ];
}

/// Learns of each stage. Tests kill the process or fail there.
pub trait StageObserver: Send + Sync + Debug {
    /// `key` has just reached `stage`.
    fn reached(&self, stage: Stage, key: &Key);
}

/// A NUL would end the path early in the kernel, so that another file is used than the one that was named.
pub(crate) fn refuse_nul(field: &'static str, path: &Path) -> Result<(), CacheError> {
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(CacheError::NulInPath { field, path: path.to_path_buf() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_tier_is_the_most_durable_that_is_on() {
        assert_eq!(CacheConfig::in_memory(1).default_tier(), Tier::Ram);
        assert_eq!(CacheConfig::on_disk("/x", 1).default_tier(), Tier::Disk);
        assert_eq!(CacheConfig::on_disk("/x", 0).default_tier(), Tier::Ram);
    }

    #[test]
    fn senseless_settings_are_refused_by_name() {
        assert!(matches!(CacheConfig::in_memory(0).check(), Err(CacheError::NoTier)));
        let wrong_tier = CacheConfig { save_tier: Some(Tier::Disk), ..CacheConfig::in_memory(1) };
        assert!(matches!(wrong_tier.check(), Err(CacheError::TierOff { tier: Tier::Disk })));
        let no_writers = CacheConfig { writers: 0, ..CacheConfig::in_memory(1) };
        assert!(matches!(no_writers.check(), Err(CacheError::BadSetting { field: "writers", .. })));
        let nul = CacheConfig::on_disk("/tmp/a\0b", 1);
        assert!(matches!(nul.check(), Err(CacheError::NulInPath { field: "disk.folder", .. })));
        let ram_file = Some(FileTierConfig { folder: "/x".into(), quota: 1 });
        let shared = CacheConfig { ram_file, ..CacheConfig::on_disk("/x", 1) };
        assert!(matches!(shared.check(), Err(CacheError::SharedFolder { .. })));
    }
}
