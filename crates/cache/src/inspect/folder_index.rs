//! The rows of a listed folder as an index, built without opening the folder.
//!
//! For `poncho cache explain` and for `--dry-run`, which answer beside a running server exactly as the server would:
//! same longest prefix, same order of eviction. It lives in memory only and never takes a lock or changes a file.

use std::path::Path;

use super::explain::{self, Explanation, LendIndex, Scope};
use super::listing::RowFile;
use super::sketch::Sketches;
use crate::folder::notes;
use crate::folder::parents_first::ParentsFirst;
use crate::format::VERSION_CHAINED;
use crate::identity::key::{Key, Namespace};
use crate::index::user_pins::UserPins;
use crate::index::{Cut, DroppedFile, Index};
use crate::io::clock::{Clock as _, SystemClock};
use crate::kinds::Tier;

/// See the module.
pub struct FolderIndex {
    index: Index,
    sketches: Sketches,
}

impl LendIndex for FolderIndex {
    fn lend<T>(&self, step: impl FnOnce(&Index) -> T) -> T {
        step(&self.index)
    }
}

/// A file that an eviction would remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    /// The row.
    pub key: Key,
    /// The tier that it would leave.
    pub tier: Tier,
    /// Bytes of the file.
    pub bytes: u64,
}

impl FolderIndex {
    /// Enters listed rows, parents first. A row with a broken chain is left out, as it is when a folder is opened.
    pub fn new<'a>(rows: impl IntoIterator<Item = (Tier, &'a RowFile)>) -> Self {
        // As at opening: rows of version 1 are not restored.
        let restored = rows.into_iter().filter(|(_, row)| row.prefix.meta.version >= VERSION_CHAINED);
        let mut rows = ParentsFirst::new(restored.map(|(tier, row)| (row.key, row.prefix.meta.parent, (tier, row))));
        let mut index = Index::new([u64::MAX; 3]);
        let now = SystemClock::default().unix_seconds();
        while let Some((key, copies, _)) = rows.next() {
            // A row may be in both file tiers; its children need to see both.
            let entered = copies.into_iter().filter_map(|(tier, row)| enter(&mut index, tier, row, now)).count();
            if entered > 0 {
                rows.accept(&key, &());
            }
        }
        Self { index, sketches: Sketches::default() }
    }

    /// With the rows that are pinned in a folder: they are not evicted.
    #[must_use]
    pub fn with_pins_of(mut self, folder: &Path) -> Self {
        self.index.user_pins = UserPins::from_text(&notes::read(folder, notes::PINS));
        self
    }

    /// How many rows were entered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether none was.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the rows depend on besides their tokens.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.index.namespaces().collect()
    }

    /// As [`Cache::explain`](crate::Cache::explain).
    #[must_use]
    pub fn explain(&self, namespace: &Namespace, tokens: &[u32], cut: Cut) -> Explanation {
        explain::explain(self, &self.sketches, Scope { namespace, owner: None, then: None }, tokens, cut)
    }

    /// What [`Cache::evict_bytes`](crate::Cache::evict_bytes) would remove, in its order. The rows leave this index.
    pub fn evict(&mut self, bytes: u64, tiers: &[Tier]) -> Vec<Eviction> {
        let evicted = self.index.evict(bytes, tiers, None);
        let eviction = |file: DroppedFile| Eviction { key: file.key, tier: file.tier, bytes: file.bytes };
        evicted.dropped.into_iter().map(eviction).collect()
    }
}

/// Enters one row after its parent. `None` if it does not fit onto that parent.
fn enter(index: &mut Index, tier: Tier, row: &RowFile, now: u64) -> Option<()> {
    let above = index.above(&row.prefix.meta, tier)?;
    let mut tokens = above.tokens;
    tokens.extend_from_slice(&row.prefix.tokens);
    index.enter_file(row.key, tier, &row.prefix, &tokens, above.parent, now).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Cache, CacheConfig, FileTierConfig, FingerprintMode, FolderReport, Needs, PartKind, PayloadPart, QuantType,
        SaveReason, SaveRequest, Verdict, inspect_folder,
    };

    const NAMESPACE: Namespace = Namespace { fingerprint: [1; 32], quant: QuantType::Q4_1, context_hash: [2; 32] };

    fn save(cache: &Cache, tokens: &[u32], tier: Tier) {
        let base = cache.base_for(&NAMESPACE, tokens, Some(tier));
        let saved = cache.save(SaveRequest {
            namespace: NAMESPACE,
            mode: FingerprintMode::Safe,
            tokens,
            base: base.as_ref(),
            parts: vec![PayloadPart { kind: PartKind::Attention, bytes: vec![7; 1000].into() }],
            reason: SaveReason::Evict,
            flags: 0,
            context_size: 4096,
            text: String::new(),
            tier: Some(tier),
            owner: None,
        });
        assert_eq!(saved.unwrap().outcome, crate::SaveOutcome::Published);
    }

    fn listed_keys(reports: &[FolderReport; 2], bytes: u64) -> Vec<Key> {
        let mut listed = index_of(&[(Tier::Disk, &reports[0]), (Tier::RamFile, &reports[1])]);
        listed.evict(bytes, &[Tier::Disk]).into_iter().map(|eviction| eviction.key).collect()
    }

    fn index_of(folders: &[(Tier, &FolderReport)]) -> FolderIndex {
        FolderIndex::new(folders.iter().flat_map(|(tier, report)| report.rows.iter().map(|row| (*tier, row))))
    }

    #[test]
    fn a_listed_folder_answers_and_evicts_as_the_open_one_does() {
        let (disk, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ram_file = Some(FileTierConfig { folder: memory.path().to_path_buf(), quota: 1 << 30 });
        let config = CacheConfig { ram_quota: 0, ram_file, ..CacheConfig::on_disk(disk.path(), 1 << 30) };
        let cache = Cache::open(config).unwrap();
        let tokens: Vec<u32> = (0..900).collect();
        for end in [100, 250, 400] {
            save(&cache, &tokens[..end], Tier::Disk);
        }
        // In both tiers, and a row of the memory tier on top of a row of the disk.
        save(&cache, &tokens[..600], Tier::Disk);
        save(&cache, &tokens[..700], Tier::RamFile);
        save(&cache, &[&tokens[..120], &[9, 9, 9]].concat(), Tier::Disk);
        drop(cache.lookup(&NAMESPACE, &tokens[..250], Needs::ATTENTION));
        cache.flush();

        let reports = [disk.path(), memory.path()].map(|folder| inspect_folder(folder).unwrap());
        let folders = [(Tier::Disk, &reports[0]), (Tier::RamFile, &reports[1])];
        let listed = index_of(&folders);
        assert_eq!((listed.len(), listed.namespaces()), (6, vec![NAMESPACE]));
        for prompt in [&tokens[..], &tokens[..250], &tokens[..123], &[1, 2, 3][..], &[]] {
            for cut in [Cut::AnyToken, Cut::SavedBoundary] {
                assert_eq!(listed.explain(&NAMESPACE, prompt, cut), cache.explain(&NAMESPACE, prompt, cut));
            }
        }
        let other = Namespace { quant: QuantType::F16, ..NAMESPACE };
        let verdict = listed.explain(&other, &tokens, Cut::AnyToken).verdict;
        assert_eq!(verdict, Verdict::OtherNamespace { fingerprint: false, quant: true, context: false });

        // Without a pin it would be the first one to leave.
        let first = listed_keys(&reports, 3000)[0];
        assert_eq!(cache.pin_row(&first, None), crate::Pinned::Yes);
        let mut listed = listed.with_pins_of(disk.path());
        let expected: Vec<Eviction> = listed.evict(2500, &[Tier::RamFile, Tier::Disk]);
        let freed = cache.evict_bytes(2500, &[Tier::RamFile, Tier::Disk]);
        assert_eq!(freed, expected.iter().map(|eviction| eviction.bytes).sum::<u64>());
        assert!(expected.len() >= 2, "{expected:?}");
        for eviction in &expected {
            assert!(!cache.contains(&eviction.key), "{eviction:?} was foretold and stayed");
        }
        assert!(cache.contains(&first), "a pinned row stays");
        assert_eq!(cache.len(), listed.len());
    }

    #[test]
    fn rows_with_a_broken_chain_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(folder.path(), 1 << 30) }).unwrap();
        let tokens: Vec<u32> = (0..300).collect();
        for end in [100, 200, 300] {
            save(&cache, &tokens[..end], Tier::Disk);
        }
        let mut report = inspect_folder(folder.path()).unwrap();
        report.rows.retain(|row| row.prefix.meta.token_count != 200);
        let listed = index_of(&[(Tier::Disk, &report)]);
        assert_eq!(listed.len(), 1);
        assert_eq!(listed.explain(&NAMESPACE, &tokens, Cut::AnyToken).common, 100);
        assert!(FolderIndex::new([]).is_empty());
    }
}
