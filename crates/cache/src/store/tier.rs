//! A tier of files: its folder, whether it is durable, and whether it works at the moment.
//!
//! `ram_file` and `disk` are this one type and differ in root and durability. A tier that fails is switched
//! off with one log line, and tried again later with growing pauses; requests do not notice. It must never
//! turn an I/O error into an error of a caller.
//!
//! Reads that do not come in time have a state of their own: a folder on a network disk may stall for reading while its
//! writes still wait in memory. The engine says which reads were late, and asks before it reads again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::CacheConfig;
use crate::error::CacheError;
use crate::folder::lock::FolderLock;
use crate::folder::privacy;
use crate::format;
use crate::identity::key::Key;
use crate::io::fs::Fs;
use crate::io::sync::Mutex;
use crate::kinds::Tier;

/// First pause after a failure. Short, because a full disk is often freed by the next eviction.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause: a disk that was mounted read-only for hours is noticed within a minute of its return.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Whether a tier works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierHealth {
    /// Which tier.
    pub tier: Tier,
    /// Why it is off, or `None` while it works.
    pub off: Option<String>,
    /// Why it is not read from at the moment, or `None` while its reads come in time.
    pub slow: Option<String>,
}

/// Whether rows of a tier may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readable {
    /// Its reads finish in time.
    Yes,
    /// Its reads were late; this read checks whether they still are.
    Probe,
    /// Its reads were late, and the next check is not due yet.
    No,
}

#[derive(Debug, Default)]
struct State {
    off: Option<Off>,
    slow: Option<Slow>,
}

#[derive(Debug)]
struct Off {
    reason: String,
    retry_at: Duration,
    pause: Duration,
}

#[derive(Debug)]
struct Slow {
    waited: Duration,
    retry_at: Duration,
    pause: Duration,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FileTier {
    tier: Tier,
    root: PathBuf,
    state: Mutex<State>,
    /// Held for as long as any part of the store lives. `None` on a file system without locks.
    lock: Mutex<Option<FolderLock>>,
}

impl FileTier {
    pub(crate) fn new(tier: Tier, root: PathBuf) -> Self {
        Self { tier, root, state: Mutex::new(State::default()), lock: Mutex::new(None) }
    }

    /// Makes sure that the folder is still this process's before something is written. If somebody removed it or its
    /// lock, the folder is created and locked again; another process may have been faster.
    pub(crate) fn keep_lock(&self, fs: &dyn Fs) -> io::Result<()> {
        let mut held = self.lock.lock();
        let Some(lock) = held.as_ref().filter(|lock| !lock.is_in_place(&self.root)) else { return Ok(()) };
        fs.create_folder(&self.root)?;
        let again = lock.take_again(&self.root).map_err(io::Error::other)?;
        tracing::warn!(folder = %self.root.display(), "the cache folder was removed; it is created and locked again");
        *held = Some(again);
        Ok(())
    }

    pub(crate) fn tier(&self) -> Tier {
        self.tier
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn row_path(&self, key: &Key) -> PathBuf {
        format::row_path(&self.root, key)
    }

    /// Whether written data must be on the device before it is announced. A memory file system has none.
    pub(crate) fn is_durable(&self) -> bool {
        self.tier == Tier::Disk
    }

    /// Whether a write should be tried now.
    pub(crate) fn is_on(&self, now: Duration) -> bool {
        self.state.lock().off.as_ref().is_none_or(|off| now >= off.retry_at)
    }

    /// A write failed. True if that switched the tier off just now.
    pub(crate) fn failed(&self, action: &'static str, error: &io::Error, now: Duration) -> bool {
        let mut state = self.state.lock();
        let pause = state.off.as_ref().map_or(FIRST_PAUSE, |off| (off.pause * 2).min(LONGEST_PAUSE));
        let was_on = state.off.is_none();
        let reason = format!("cannot {action} in {}: {error}", self.root.display());
        if was_on {
            tracing::warn!(
                tier = self.tier.as_str(),
                reason,
                "cache tier switched off; requests go on without it and it is tried again later"
            );
        }
        state.off = Some(Off { reason, retry_at: now.saturating_add(pause), pause });
        was_on
    }

    /// A write worked.
    pub(crate) fn worked(&self) {
        if let Some(off) = self.state.lock().off.take() {
            tracing::info!(tier = self.tier.as_str(), was = off.reason, "cache tier switched on again");
        }
    }

    /// Whether a read may be tried now, and how much it is trusted. A tier that was late is probed by one caller after
    /// each pause, not by all at once.
    pub(crate) fn may_read(&self, now: Duration) -> Readable {
        match &mut self.state.lock().slow {
            None => Readable::Yes,
            Some(slow) if now >= slow.retry_at => {
                slow.retry_at = now.saturating_add(slow.pause);
                Readable::Probe
            }
            Some(_) => Readable::No,
        }
    }

    /// A read did not come within the time that a restore had for it. True if the tier was in time until now.
    pub(crate) fn read_late(&self, waited: Duration, now: Duration) -> bool {
        let mut state = self.state.lock();
        let was_in_time = state.slow.is_none();
        let pause = state.slow.as_ref().map_or(FIRST_PAUSE, |slow| (slow.pause * 2).min(LONGEST_PAUSE));
        if was_in_time {
            tracing::warn!(
                tier = self.tier.as_str(),
                folder = %self.root.display(),
                waited_ms = waited.as_millis(),
                "the cache folder does not answer in time; requests are computed instead and it is read again later"
            );
        }
        state.slow = Some(Slow { waited, retry_at: now.saturating_add(pause), pause });
        was_in_time
    }

    /// Reads come in time.
    pub(crate) fn read_in_time(&self) {
        if self.state.lock().slow.take().is_some() {
            tracing::info!(tier = self.tier.as_str(), folder = %self.root.display(), "the cache folder is read again");
        }
    }

    /// A read came, perhaps too late for its caller: the next one need not wait for the pause.
    pub(crate) fn read_came(&self, now: Duration) {
        if let Some(slow) = &mut self.state.lock().slow {
            slow.retry_at = slow.retry_at.min(now);
        }
    }

    pub(crate) fn health(&self) -> TierHealth {
        let state = self.state.lock();
        let late = |slow: &Slow| {
            format!("a read in {} did not come within {} ms", self.root.display(), slow.waited.as_millis())
        };
        TierHealth {
            tier: self.tier,
            off: state.off.as_ref().map(|off| off.reason.clone()),
            slow: state.slow.as_ref().map(late),
        }
    }
}

/// The configured file tiers and their file system.
pub(crate) struct FileTiers {
    fs: Arc<dyn Fs>,
    tiers: Vec<FileTier>,
}

impl FileTiers {
    /// Creates the folders, closes them to others and takes their locks.
    pub(crate) fn open(config: &CacheConfig) -> Result<Self, CacheError> {
        let mut opened = Self { fs: Arc::clone(&config.fs), tiers: Vec::new() };
        for tier in Tier::FILES {
            let Some(settings) = config.file_tier(tier) else { continue };
            let folder = &settings.folder;
            let wrap = |source| CacheError::Folder { action: "create", path: folder.clone(), source };
            config.fs.create_folder(folder).map_err(wrap)?;
            let file_tier = FileTier::new(tier, folder.clone());
            if config.fs.has_locks() {
                close_to_others(folder);
                *file_tier.lock.lock() = Some(FolderLock::take(folder, config.process)?);
            }
            opened.tiers.push(file_tier);
        }
        Ok(opened)
    }

    pub(crate) fn fs(&self) -> &dyn Fs {
        &*self.fs
    }

    /// The folder that keeps the notes of the cache: the most durable one, if it is a folder of this machine.
    pub(crate) fn notes(&self) -> Option<&Path> {
        self.tiers.last().filter(|_| self.fs.has_locks()).map(FileTier::root)
    }

    /// The configured tiers, fastest first.
    pub(crate) fn all(&self) -> &[FileTier] {
        &self.tiers
    }

    /// A file tier, if it is configured.
    pub(crate) fn get(&self, tier: Tier) -> Option<&FileTier> {
        self.tiers.iter().find(|candidate| candidate.tier() == tier)
    }

    /// The tier of a row that is in a file.
    #[expect(clippy::expect_used, reason = "the index would name files in a folder that is not ours")]
    pub(crate) fn of(&self, tier: Tier) -> &FileTier {
        self.get(tier).expect("invariant: rows are in configured tiers only")
    }
}

/// Closes a folder that was there before to others. A folder that cannot be closed is used all the same: new files are
/// closed to others by themselves.
fn close_to_others(folder: &Path) {
    match privacy::shield(folder) {
        Ok(false) => {}
        Ok(true) => tracing::info!(folder = %folder.display(), "others could read the cache folder; closed to them"),
        Err(error) => tracing::warn!(
            folder = %folder.display(), %error,
            "others may read what older releases put into the cache folder; run `poncho cache verify --repair` as its owner"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_in_a_tier_that_is_not_configured_is_loud() {
        let tiers = FileTiers::open(&CacheConfig::in_memory(1)).unwrap();
        let complaint = crate::testing::broken_invariant(|| assert!(tiers.of(Tier::Disk).is_durable()));
        assert_eq!(complaint, "invariant: rows are in configured tiers only");
    }

    #[test]
    fn a_failing_tier_is_tried_again_with_growing_pauses_and_recovers() {
        let tier = FileTier::new(Tier::Disk, PathBuf::from("/nowhere"));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let mut now = Duration::ZERO;
        assert!(tier.is_on(now));
        assert!(tier.failed("write", &full, now), "the first failure switches it off");
        assert!(!tier.is_on(now));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let start = now;
            while !tier.is_on(now) {
                now += Duration::from_millis(500);
            }
            pauses.push((now - start).as_secs());
            assert!(!tier.failed("write", &full, now), "it is off already");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(tier.health().off.is_some_and(|reason| reason.contains("/nowhere")));
        tier.worked();
        assert!(tier.is_on(now) && tier.health().off.is_none());
    }

    #[test]
    fn a_tier_whose_reads_are_late_is_asked_again_after_growing_pauses_by_one_at_a_time() {
        let tier = FileTier::new(Tier::Disk, PathBuf::from("/nowhere"));
        let (waited, mut now) = (Duration::from_millis(250), Duration::from_secs(1000));
        assert_eq!(tier.may_read(now), Readable::Yes);
        assert!(tier.read_late(waited, now), "the first late read makes it slow");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let start = now;
            while tier.may_read(now) == Readable::No {
                now += Duration::from_millis(500);
            }
            pauses.push((now - start).as_secs());
            assert_eq!(tier.may_read(now), Readable::No, "one asks, the others do not wait with it");
            assert!(!tier.read_late(waited, now), "it is slow already");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(tier.health().slow.is_some_and(|reason| reason.contains("/nowhere") && reason.contains("250 ms")));
        assert!(tier.is_on(now), "writing is another matter");
        tier.read_came(now);
        assert_eq!(tier.may_read(now), Readable::Probe, "a late answer is an answer");
        tier.read_in_time();
        assert_eq!((tier.may_read(now), tier.health().slow), (Readable::Yes, None));
    }
}
