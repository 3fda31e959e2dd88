//! Files that are not what was written: flipped, cut, swapped, foreign, circular. A row is a miss or is served right,
//! what builds on a lost row goes with it, and nothing that a later release might understand is touched.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use poncho_cache::testing::MemoryFs;
use poncho_cache::{
    Cache, CacheConfig, DropReason, FileTierConfig, FingerprintMode, FolderIndex, Fs, Key, Needs, NewFile, PartKind,
    SaveOutcome, SaveReason, Tier, inspect_file, inspect_folder,
};
use poncho_cache::{
    HITS_OFFSET, LAST_USED_OFFSET, NewPart, PrefixDraft, RowMeta, bad_path, crc32c, decode_prefix, encode_prefix,
    encode_touch, encode_v1, row_path, tmp_path,
};

use super::{NO_FILES, files, save_now, temporaries};
use crate::support::{attention, conversation, namespace, on_disk, reach, request, save_to};

const ROOT: &str = "/cache";

/// A cache with its files in memory, so that it can be opened thousands of times.
fn in_memory_files(fs: &MemoryFs) -> CacheConfig {
    let fs = Arc::new(fs.clone());
    CacheConfig { fs, writers: 1, ..on_disk(Path::new(ROOT), 1 << 20) }
}

/// The file of one small row: where it is, and its bytes.
fn small_row(tokens: &[u32]) -> (PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(save_now(&Cache::open(on_disk(folder.path(), 1 << 20)).unwrap(), tokens), SaveOutcome::Published);
    let bytes = std::fs::read(&files(folder.path())[0]).unwrap();
    (row_path(Path::new(ROOT), &namespace(1).key(tokens)), bytes)
}

/// A file system with just this file.
fn holding(path: &Path, bytes: &[u8]) -> MemoryFs {
    let fs = MemoryFs::new();
    fs.create_folder(path.parent().unwrap()).unwrap();
    fs.write_new(path, &NewFile::of(&[bytes]), false).unwrap();
    fs
}

/// Puts other bytes into a file.
fn overwrite(fs: &MemoryFs, path: &Path, bytes: &[u8]) {
    fs.remove(path).unwrap();
    fs.write_new(path, &NewFile::of(&[bytes]), false).unwrap();
}

fn is_silent(offset: usize) -> bool {
    (HITS_OFFSET..HITS_OFFSET + 4).contains(&offset) || (LAST_USED_OFFSET..LAST_USED_OFFSET + 8).contains(&offset)
}

#[test]
fn any_flipped_bit_makes_the_row_a_miss_when_the_folder_is_opened() {
    let tokens = conversation(1, 2);
    let (path, good) = small_row(&tokens);
    for bit in 0..good.len() * 8 {
        let (offset, mask) = (bit / 8, 1 << (bit % 8));
        let mut bytes = good.clone();
        bytes[offset] ^= mask;
        let fs = holding(&path, &bytes);
        let cache = Cache::open(in_memory_files(&fs)).unwrap();
        let served = reach(&cache, namespace(1), &tokens);
        let counters = cache.counters();
        let case = format!("bit {} of byte {offset}", bit % 8);
        if is_silent(offset) {
            assert_eq!((served, counters.corrupt_files), (2, 0), "{case}: only orders evictions");
            continue;
        }
        assert_eq!(served, 0, "{case} went unnoticed");
        assert_eq!(
            (counters.corrupt_files, counters.unknown_files),
            if offset == 3 { (0, 1) } else { (1, 0) },
            "{case}"
        );
        if offset == 3 {
            // It may be a file of a later release.
            assert_eq!(fs.paths(), std::slice::from_ref(&path), "{case}");
            assert_eq!(save_now(&cache, &tokens), SaveOutcome::Dropped(DropReason::WriteFailed), "{case}");
            assert_eq!((fs.paths(), &cache.health()[0].off), (vec![path.clone()], &None), "{case}");
        } else {
            assert_eq!(fs.paths(), [bad_path(&path)], "{case}: moved aside");
            assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published, "{case}");
            assert_eq!(reach(&cache, namespace(1), &tokens), 2, "{case}: saved again");
        }
    }
}

#[test]
fn any_bit_flipped_under_an_open_cache_is_harmless_or_noticed() {
    let tokens = conversation(1, 2);
    let (path, good) = small_row(&tokens);
    let payload = usize::try_from(decode_prefix(&good, good.len() as u64).unwrap().payload_offset).unwrap();
    for bit in 0..good.len() * 8 {
        let offset = bit / 8;
        let fs = holding(&path, &good);
        let cache = Cache::open(in_memory_files(&fs)).unwrap();
        fs.write_at(&path, &[good[offset] ^ (1 << (bit % 8))], offset as u64).unwrap();
        let (served, damaged) = if offset < payload { (2, 0) } else { (0, 1) };
        assert_eq!(reach(&cache, namespace(1), &tokens), served, "byte {offset}");
        assert_eq!(cache.counters().corrupt_files, damaged, "byte {offset}");
        assert_eq!(fs.paths(), [if damaged == 0 { path.clone() } else { bad_path(&path) }]);
    }
}

#[test]
fn a_file_cut_or_lengthened_anywhere_is_a_miss() {
    let tokens = conversation(1, 2);
    let (path, good) = small_row(&tokens);
    let lengths = (0..good.len()).chain([good.len() + 1, good.len() + 4096]);
    for length in lengths {
        let mut bytes = good.clone();
        bytes.resize(length, 0);
        let fs = holding(&path, &bytes);
        let cache = Cache::open(in_memory_files(&fs)).unwrap();
        assert_eq!(reach(&cache, namespace(1), &tokens), 0, "opened with {length} bytes");
        assert_eq!((cache.counters().corrupt_files, fs.paths()), (1, vec![bad_path(&path)]), "{length} bytes");

        let fs = holding(&path, &good);
        let cache = Cache::open(in_memory_files(&fs)).unwrap();
        overwrite(&fs, &path, &bytes);
        let longer = length > good.len();
        assert_eq!(
            reach(&cache, namespace(1), &tokens),
            if longer { 2 } else { 0 },
            "{length} bytes under an open cache"
        );
        assert_eq!(cache.counters().corrupt_files, u64::from(!longer), "{length} bytes");
        assert_eq!(cache.clear() > 0, longer || length > 0, "{length} bytes: what was moved aside is collected");
        assert_eq!(fs.paths(), NO_FILES, "{length} bytes");
    }
}

/// The description of a row that holds all its tokens itself.
fn old_meta(tokens: &[u32]) -> RowMeta {
    RowMeta {
        reason: SaveReason::Cold,
        hits: 7,
        context_size: 2048,
        created: 1_600_000_000,
        last_used: 1_600_000_001,
        mode: FingerprintMode::GgufChunked,
        ..RowMeta::new(namespace(1), u32::try_from(tokens.len()).unwrap())
    }
}

/// The bytes of a whole row of version 1 with this payload.
fn version_1(tokens: &[u32], payload: &[u8]) -> Vec<u8> {
    let parts = [NewPart { kind: PartKind::Whole, length: payload.len() as u64, crc: crc32c(payload) }];
    let row = PrefixDraft { text: "an old row", ..PrefixDraft::new(old_meta(tokens), tokens, &parts) };
    [encode_v1(&row).unwrap(), payload.to_vec()].concat()
}

#[test]
fn a_version_1_file_is_listed_and_verified_but_not_restored() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = conversation(1, 5);
    let key = namespace(1).key(&tokens);
    let path = row_path(folder.path(), &key);
    let old = version_1(&tokens, b"the whole state");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, &old).unwrap();

    let report = inspect_folder(folder.path()).unwrap();
    assert_eq!(report.rows.iter().map(|row| (row.key, row.prefix.meta.version)).collect::<Vec<_>>(), [(key, 1)]);
    assert_eq!(report.verify(|_| {}), []);
    assert_eq!(inspect_file(&path).unwrap().text, "an old row");
    assert!(FolderIndex::new(report.rows.iter().map(|row| (Tier::Disk, row))).is_empty());

    let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    assert_eq!((cache.len(), cache.counters().unknown_files), (0, 1));
    assert!(cache.lookup(&namespace(1), &tokens, Needs::ATTENTION_AND_PARTIAL).is_none());
    assert!(std::fs::read(&path).unwrap() == old, "the file stays as it is");
    assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
    drop(cache);
    assert_eq!(inspect_file(&path).unwrap().meta.version, 2, "the same row, computed again, takes its name");
}

#[test]
fn a_version_1_file_with_any_flipped_bit_is_never_served_or_removed() {
    let tokens = conversation(1, 2);
    let good = version_1(&tokens, b"old state");
    let path = row_path(Path::new(ROOT), &namespace(1).key(&tokens));
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let fs = holding(&path, &bytes);
        let cache = Cache::open(in_memory_files(&fs)).unwrap();
        assert_eq!(reach(&cache, namespace(1), &tokens), 0, "byte {}", bit / 8);
        assert!(fs.paths() == [path.clone()] || fs.paths() == [bad_path(&path)], "byte {}", bit / 8);
    }
}

#[test]
fn a_file_under_the_name_of_another_row_is_not_taken_for_it() {
    let (one, two) = (conversation(1, 2), conversation(2, 3));
    let ((path, good), (_, other)) = (small_row(&one), small_row(&two));
    let fs = holding(&path, &other);
    let cache = Cache::open(in_memory_files(&fs)).unwrap();
    assert_eq!((reach(&cache, namespace(1), &one), reach(&cache, namespace(1), &two)), (0, 0));
    assert_eq!((cache.counters().corrupt_files, fs.paths()), (1, vec![bad_path(&path)]));

    let fs = holding(&path, &good);
    let cache = Cache::open(in_memory_files(&fs)).unwrap();
    overwrite(&fs, &path, &other);
    assert_eq!(reach(&cache, namespace(1), &one), 0, "swapped under an open cache");
    assert_eq!(save_now(&cache, &one), SaveOutcome::Published);
    assert_eq!(reach(&cache, namespace(1), &one), 2);
}

#[test]
fn leftover_temporaries_go_and_foreign_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let tokens = conversation(1, 20);
    let key = namespace(1).key(&tokens);
    save_now(&Cache::open(on_disk(root, 1 << 20)).unwrap(), &tokens);
    let row = row_path(root, &key);
    let leftovers = ["1-0", "999-12", "x"].map(|writer| tmp_path(root, &key, writer));
    std::fs::write(&leftovers[0], "").unwrap();
    std::fs::copy(&row, &leftovers[1]).unwrap();
    std::fs::hard_link(&row, &leftovers[2]).unwrap();
    let sub_folder = row.parent().unwrap();
    let foreign = ["notes.tmp", "readme.txt", "x.kvc", ".kvc.1.tmp"].map(|name| sub_folder.join(name));
    for path in &foreign {
        std::fs::write(path, "mine").unwrap();
    }
    let cache = Cache::open(on_disk(root, 1 << 20)).unwrap();
    assert_eq!(leftovers.iter().filter(|path| path.exists()).count(), 0);
    assert_eq!(reach(&cache, namespace(1), &tokens), 20);
    cache.clear();
    assert!(foreign.iter().all(|path| std::fs::read(path).unwrap() == b"mine"), "not ours");
    assert_eq!((cache.counters().corrupt_files, row.exists()), (0, false));
}

/// A folder with a chain of rows of 20, 40, 60 and 80 tokens.
fn chain(root: &Path) -> (Vec<u32>, [PathBuf; 4]) {
    let tokens = conversation(1, 80);
    let cache = Cache::open(on_disk(root, 1 << 20)).unwrap();
    for end in [20, 40, 60, 80] {
        assert_eq!(save_now(&cache, &tokens[..end]), SaveOutcome::Published);
    }
    let paths = [20, 40, 60, 80].map(|end| row_path(root, &namespace(1).key(&tokens[..end])));
    (tokens, paths)
}

/// Everyday use 8: collecting garbage emptied the cache.
#[test]
fn garbage_goes_and_usable_rows_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, paths) = chain(folder.path());
    let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    assert_eq!((cache.gc(), cache.len()), (0, 4), "nothing is garbage");
    let key = namespace(1).key(&tokens[..60]);
    assert!(cache.condemn(&key, Tier::Disk) && !cache.condemn(&key, Tier::Disk), "found damaged by a check, once");
    assert_eq!((cache.len(), reach(&cache, namespace(1), &tokens)), (2, 40), "what builds on it goes with it");
    assert_eq!(paths.each_ref().map(|path| path.exists()), [true, true, false, false]);
    let aside = bad_path(&paths[2]);
    let bytes = std::fs::metadata(&aside).unwrap().len();
    assert_eq!((cache.gc(), aside.exists(), cache.len()), (bytes, false, 2));
}

#[test]
fn an_unknown_version_is_left_alone_by_everything_and_its_descendants_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, paths) = chain(folder.path());
    let good = std::fs::read(&paths[0]).unwrap();
    let mut later = good.clone();
    later[3] = 9;
    std::fs::write(&paths[0], &later).unwrap();
    for _ in 0..2 {
        let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
        assert_eq!(cache.counters().unknown_files, 1);
        assert_eq!((cache.len(), reach(&cache, namespace(1), &tokens)), (0, 0));
        assert_eq!(save_now(&cache, &tokens[..20]), SaveOutcome::Dropped(DropReason::WriteFailed));
        assert_eq!(cache.health()[0].off, None, "the tier works");
        cache.clear();
        cache.evict_bytes(u64::MAX, &Tier::ALL);
        assert_eq!(std::fs::read(&paths[0]).unwrap(), later);
        assert!(paths.iter().all(|path| path.exists()), "what builds on it may be useful again");
    }
    let report = inspect_folder(folder.path()).unwrap();
    assert!(report.findings.iter().any(|finding| finding.path == paths[0] && !finding.damage), "{:?}", report.findings);
    std::fs::write(&paths[0], good).unwrap();
    assert_eq!(reach(&Cache::open(on_disk(folder.path(), 1 << 20)).unwrap(), namespace(1), &tokens), 80);
}

#[test]
fn damage_in_one_segment_leaves_the_part_before_it_and_drops_what_builds_on_it() {
    for reopened in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (tokens, paths) = chain(folder.path());
        let open = || Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
        let mut cache = open();
        let mut bytes = std::fs::read(&paths[2]).unwrap();
        let last = bytes.len() - 60;
        bytes[last] ^= 0x10;
        std::fs::write(&paths[2], bytes).unwrap();
        if reopened {
            drop(cache);
            cache = open();
        }
        assert_eq!(reach(&cache, namespace(1), &tokens), 40, "reopened: {reopened}");
        assert_eq!((cache.len(), cache.counters().corrupt_files, cache.counters().orphans_dropped), (2, 1, 1));
        let left = [true, true, false, false];
        assert_eq!(paths.each_ref().map(|path| path.exists()), left);
        assert!(bad_path(&paths[2]).exists(), "the damaged file is kept for inspection");
        assert_eq!(save_now(&cache, &tokens), SaveOutcome::Published);
        assert_eq!(reach(&open_after(cache, folder.path()), namespace(1), &tokens), 80);
    }
}

fn open_after(cache: Cache, root: &Path) -> Cache {
    drop(cache);
    Cache::open(on_disk(root, 1 << 20)).unwrap()
}

#[test]
fn a_missing_parent_drops_all_that_build_on_it() {
    for missing in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let (tokens, paths) = chain(folder.path());
        std::fs::remove_file(&paths[missing]).unwrap();
        let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
        assert_eq!(reach(&cache, namespace(1), &tokens), 20 * missing);
        assert_eq!(cache.counters().orphans_dropped, 3 - missing as u64);
        assert_eq!(files(folder.path()).len(), missing, "orphans can never be used again");
    }
}

/// A crafted row with a segment of one token, and with the given name and parent.
fn craft_row(root: &Path, key: Key, parent: Key) {
    let payload = attention(&[1, 2], 1);
    let parts = [NewPart { kind: PartKind::Attention, length: payload.len() as u64, crc: crc32c(&payload) }];
    let meta = RowMeta { parent: Some(parent), start: 1, ..old_meta(&[1, 2]) };
    let row = PrefixDraft::new(meta, &[2], &parts);
    let path = row_path(root, &key);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, [encode_prefix(&row).unwrap(), payload].concat()).unwrap();
}

#[test]
fn parents_that_run_in_circles_or_lie_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let key = |byte| Key::from_bytes([byte; 32]);
    craft_row(folder.path(), key(1), key(2));
    craft_row(folder.path(), key(2), key(3));
    craft_row(folder.path(), key(3), key(1));
    craft_row(folder.path(), key(4), key(4));
    craft_row(folder.path(), key(5), key(1));
    let report = inspect_folder(folder.path()).unwrap();
    assert_eq!((report.rows.len(), report.verify(|_| {}).len()), (5, 5));
    // A parent that is there, but is not what the segment says.
    let tokens = conversation(1, 20);
    let real = namespace(1).key(&tokens);
    save_now(&Cache::open(on_disk(folder.path(), 1 << 20)).unwrap(), &tokens);
    craft_row(folder.path(), key(6), real);
    let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    assert_eq!((cache.len(), reach(&cache, namespace(1), &tokens)), (1, 20));
    assert_eq!(cache.counters().corrupt_files, 1, "its name is not the key of its tokens");
    let names: Vec<PathBuf> = files(folder.path());
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn folders_and_dangling_links_in_the_place_of_files_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let (blocked, dangling, late) = (conversation(1, 20), conversation(2, 20), conversation(3, 20));
    let [blocked_path, dangling_path, late_path] = [&blocked, &dangling, &late].map(|tokens| {
        let path = row_path(folder.path(), &namespace(1).key(tokens));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    });
    std::fs::create_dir_all(blocked_path.join("inside")).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", &dangling_path).unwrap();
    let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    for tokens in [&blocked, &dangling] {
        assert_eq!(reach(&cache, namespace(1), tokens), 0);
        assert_eq!(save_now(&cache, tokens), SaveOutcome::Published, "what was in the way is moved aside");
        assert_eq!(reach(&cache, namespace(1), tokens), 20);
    }
    assert!(bad_path(&blocked_path).join("inside").is_dir(), "with all that is in it");
    assert!(bad_path(&dangling_path).is_symlink());
    // A folder that comes later is left alone until the cache is opened again.
    std::fs::create_dir(&late_path).unwrap();
    assert_eq!(save_now(&cache, &late), SaveOutcome::Dropped(DropReason::WriteFailed));
    assert_eq!(cache.health()[0].off, None, "one name that is taken says nothing about the tier");
    assert!(late_path.is_dir());
    drop(cache);
    let cache = Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
    assert_eq!(save_now(&cache, &late), SaveOutcome::Published);
    for tokens in [&blocked, &dangling, &late] {
        assert_eq!(reach(&cache, namespace(1), tokens), 20);
    }
    assert_eq!(temporaries(folder.path()), NO_FILES);
}

#[test]
fn a_damaged_copy_in_memory_files_leaves_the_one_on_disk() {
    let (disk, shm) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ram_file = Some(FileTierConfig { folder: shm.path().to_path_buf(), quota: 1 << 20 });
    let cache = Cache::open(CacheConfig { ram_file, ..on_disk(disk.path(), 1 << 20) }).unwrap();
    let tokens = conversation(1, 60);
    for tier in [Tier::RamFile, Tier::Disk] {
        cache
            .save(poncho_cache::SaveRequest { tier: Some(tier), ..request(namespace(1), &tokens[..30], None) })
            .unwrap();
        cache.flush();
    }
    save_to(&cache, namespace(1), &tokens, Some(Tier::Disk));
    cache.flush();
    let key = namespace(1).key(&tokens[..30]);
    assert_eq!(cache.row(&key).unwrap().tiers, [Tier::RamFile, Tier::Disk]);
    let path = row_path(shm.path(), &key);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(reach(&cache, namespace(1), &tokens[..30]), 30, "served from the disk");
    assert_eq!(cache.row(&key).unwrap().tiers, [Tier::Disk]);
    assert_eq!((cache.counters().corrupt_files, cache.counters().orphans_dropped), (1, 0));
    assert_eq!(reach(&cache, namespace(1), &tokens), 60, "and so is what builds on it");
    assert!(bad_path(&path).exists());
    std::fs::remove_file(row_path(disk.path(), &key)).unwrap();
    assert_eq!(reach(&cache, namespace(1), &tokens), 0, "the last copy is gone");
}

#[test]
fn a_parent_that_seems_older_than_its_child_still_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let (tokens, paths) = chain(folder.path());
    // As a crash leaves it: the uses of the children are written, those of the parents are not.
    for (age, path) in paths.iter().enumerate() {
        let touch = encode_touch(9 * u32::try_from(age).unwrap(), 1_000 + age as u64);
        for (offset, bytes) in touch.writes() {
            poncho_cache::StdFs.write_at(path, bytes, offset).unwrap();
        }
    }
    let sizes: u64 = paths.iter().map(|path| path.metadata().unwrap().len()).sum();
    let quota = paths[0].metadata().unwrap().len() + 1;
    let cache = Cache::open(on_disk(folder.path(), quota)).unwrap();
    assert_eq!((cache.len(), reach(&cache, namespace(1), &tokens)), (1, 20), "only what fits into the lowered quota");
    assert!(cache.counters().tier_bytes[Tier::Disk.index()] <= quota && quota < sizes);
    assert_eq!(files(folder.path()).len(), 1);
}
