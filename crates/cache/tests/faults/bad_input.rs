//! What is refused: the error names the path, the field and what to try.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use poncho_cache::{
    BadSave, Cache, CacheConfig, CacheError, FileTierConfig, GateError, Gates, PartKind, PayloadPart, SaveRequest,
    Tier, inspect_file, inspect_folder,
};
use poncho_cache::{FormatError, FormatField as Field, MAX_PREFIX, NewPart, PrefixDraft, RowMeta, encode_v1};

use crate::support::{conversation, namespace, on_disk, request};

/// Names the folder that `holder_process` is to hold.
const HOLD: &str = "PONCHO_HOLD_FOLDER";

#[test]
fn a_quota_smaller_than_one_row_is_refused_with_the_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), 5_000)).unwrap();
    let tokens = conversation(1, 200);
    let refused = cache.save(request(namespace(1), &tokens, None)).unwrap_err();
    let CacheError::QuotaTooSmall { tier: Tier::Disk, bytes, quota: 5_000 } = refused else { panic!("{refused}") };
    assert!(bytes > 8_000, "200 tokens of 40 bytes");
    let text = refused.to_string();
    assert!(text.contains(&bytes.to_string()) && text.contains("5000"), "{text}");
    assert!(text.contains("raise disk.quota (--cache-size)"), "{text}");
    assert_eq!((cache.len(), cache.counters().saves_dropped), (0, 1), "refused and counted");
    let cache = Cache::open(CacheConfig::in_memory(5_000)).unwrap();
    let refused = cache.save(request(namespace(1), &tokens, None)).unwrap_err().to_string();
    assert!(refused.contains("raise ram_quota"), "{refused}");
}

/// Not a test of its own: the other process that holds a folder.
#[test]
fn holder_process() {
    let Some(folder) = std::env::var_os(HOLD) else { return };
    let cache = Cache::open(on_disk(Path::new(&folder), 1 << 20)).unwrap();
    std::io::stderr().write_all(b"held\n").unwrap();
    // Until the parent closes the pipe or is gone.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    assert!(cache.is_empty());
}

#[test]
fn a_folder_of_another_process_is_refused_with_its_pid_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["faults::bad_input::holder_process", "--exact", "--nocapture"])
        .env(HOLD, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let refused = Cache::open(on_disk(folder.path(), 1 << 20)).err().unwrap();
    let pid = holder.id().to_string();
    assert!(matches!(&refused, CacheError::Locked { pid: held, .. } if *held == pid), "{refused}");
    let text = refused.to_string();
    let named = format!("cache folder {} is in use by process {pid}: ", folder.path().display());
    assert!(text.starts_with(&named) && text.contains("--cache-dir"), "{text}");
    assert_eq!(inspect_folder(folder.path()).unwrap().holder, Some(pid), "looking is allowed");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
}

#[test]
fn a_nul_in_a_path_is_refused_everywhere() {
    let path = PathBuf::from("/folder/a\0b");
    let ram_file = Some(FileTierConfig { folder: path.clone(), quota: 1 << 20 });
    let errors = [
        (Cache::open(on_disk(&path, 1 << 20)).err().unwrap(), "disk.folder"),
        (Cache::open(CacheConfig { ram_file, ..CacheConfig::default() }).err().unwrap(), "ram_file.folder"),
        (inspect_folder(&path).unwrap_err(), "the folder"),
        (inspect_file(&path).unwrap_err(), "the file"),
    ];
    for (error, asked) in errors {
        let names = |named: &Path, field: &str| named == path && field == asked;
        assert!(matches!(&error, CacheError::NulInPath { path, field } if names(path, field)), "{error}");
        let text = error.to_string();
        assert!(text.starts_with(asked) && text.contains("/folder/a") && text.contains("NUL"), "{text}");
    }
}

/// What a save comes to that contradicts itself: the text gives the facts and says what to try.
fn refused(cache: &Cache, request: SaveRequest<'_>) -> (BadSave, String) {
    let error = cache.save(request).unwrap_err();
    let text = error.to_string();
    let CacheError::BadSave(error) = error else { panic!("{text}") };
    assert!(text.ends_with(&error.to_string()) && text.contains("; "), "{text} says what to try");
    (error, text)
}

#[test]
fn a_save_that_contradicts_itself_is_refused_with_what_to_try() {
    let cache = Cache::open(CacheConfig::in_memory(1 << 20)).unwrap();
    let tokens = conversation(1, 60);
    cache.save(request(namespace(1), &tokens[..40], None)).unwrap();
    let base = || cache.base_for(&namespace(1), &tokens, None).unwrap();
    let parent = base().key();
    let plain = || request(namespace(1), &tokens, None);

    assert_eq!(refused(&cache, SaveRequest { tokens: &[], ..plain() }).0, BadSave::NoTokens);
    assert_eq!(refused(&cache, SaveRequest { parts: Vec::new(), ..plain() }).0, BadSave::NoParts);
    let logits = PayloadPart { kind: PartKind::Logits, bytes: vec![1].into() };
    let twice = SaveRequest { parts: vec![logits.clone(), logits], ..plain() };
    assert_eq!(refused(&cache, twice).0, BadSave::PartTwice { kind: PartKind::Logits });

    let long = SaveRequest { text: "a".repeat(usize::try_from(MAX_PREFIX).unwrap()), ..plain() };
    let (error, text) = refused(&cache, long);
    let limit = MAX_PREFIX;
    assert!(matches!(error, BadSave::TooManyTokens { tokens: 60, .. }) && text.contains(&limit.to_string()), "{text}");

    let held = base();
    let short = SaveRequest { tokens: &tokens[..20], base: Some(&held), ..plain() };
    let (error, text) = refused(&cache, short);
    assert_eq!(error, BadSave::EmptyRange { start: 40, end: 20 });
    assert!(text.contains("40 tokens") && text.contains("only 20") && text.contains("base_for"), "{text}");

    let foreign = SaveRequest { namespace: namespace(2), base: Some(&held), ..plain() };
    let (error, text) = refused(&cache, foreign);
    assert_eq!(error, BadSave::OtherNamespace { parent });
    assert!(text.contains("base_for"), "{text}");

    let mut other = tokens.clone();
    other[30] += 1;
    let (error, text) = refused(&cache, SaveRequest { tokens: &other, base: Some(&held), ..plain() });
    assert_eq!(error, BadSave::ParentDiffers { parent, agree: 30, start: 40 });
    assert!(text.contains("start at 30"), "{text}");
    assert_eq!(cache.len(), 1, "none of them left anything");
}

#[test]
fn a_file_in_the_place_of_the_folder_is_refused_by_name() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for path in [file.path().to_path_buf(), file.path().join("below")] {
        let refused = Cache::open(on_disk(&path, 1 << 20)).err().unwrap();
        assert!(matches!(&refused, CacheError::Folder { path: named, .. } if *named == path), "{refused}");
    }
}

#[test]
fn gates_in_the_wrong_order_are_refused_by_name() {
    let refused = |gates| {
        let error = Cache::open(CacheConfig { gates, ..CacheConfig::in_memory(1 << 20) }).err().unwrap();
        let text = error.to_string();
        let CacheError::Gates(error) = error else { panic!("{text}") };
        (error, text)
    };
    let (error, text) = refused(Gates { cold_min_tokens: 100, ..Gates::default() });
    assert_eq!(error, GateError::ColdMinBelowMin { cold_min_tokens: 100, min_tokens: 512 });
    assert!(text.contains("cold_min_tokens (100)") && text.contains("min_tokens (512)"), "{text}");
    let (error, text) = refused(Gates { cold_max_tokens: 400, ..Gates::default() });
    assert!(matches!(error, GateError::ColdMaxBelowColdMin { .. }) && text.contains("raise cold_max_tokens"), "{text}");
    let (error, _) = refused(Gates { evict_save_timeout_ms: 0, ..Gates::default() });
    assert_eq!(error, GateError::EvictSaveTimeoutZero);
}

/// A good old file; its head has no checksum, so that single fields can be made wrong.
fn old_file() -> Vec<u8> {
    let parts = [NewPart { kind: PartKind::Whole, length: 10, crc: 0 }];
    let row = PrefixDraft { text: "hello", ..PrefixDraft::new(RowMeta::new(namespace(1), 3), &[1, 2, 3], &parts) };
    let mut bytes = encode_v1(&row).unwrap();
    bytes.resize(bytes.len() + 10, 0);
    bytes
}

/// What looking at a file with these bytes comes to; the text of the error names the file.
fn inspect_bytes(bytes: &[u8]) -> FormatError {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("row.kvc");
    std::fs::write(&path, bytes).unwrap();
    let error = inspect_file(&path).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    let CacheError::BadFile { source, .. } = error else { panic!("{text}") };
    assert!(text.ends_with(&source.to_string()), "{text}");
    source
}

fn with(at: usize, value: &[u8]) -> FormatError {
    let mut bytes = old_file();
    bytes[at..at + value.len()].copy_from_slice(value);
    inspect_bytes(&bytes)
}

#[test]
fn each_wrong_field_of_a_file_is_named_with_what_was_found() {
    let good = old_file();
    assert_eq!(with(0, b"GGUF"), FormatError::WrongMagic { got: *b"GGU" });
    assert_eq!(with(3, &[77]), FormatError::UnknownVersion { version: 77 });
    assert_eq!(with(8, &[4]), FormatError::TokenCount { header: 4, start: 0, declared: 3, ids: 3 });
    assert_eq!(with(56, &[9]), FormatError::PayloadLengths { count: 10, length: 9 });
    let length = good.len() as u64;
    let longer = [&good[..], &[0; 3]].concat();
    assert_eq!(inspect_bytes(&longer), FormatError::FileLength { expected: length, got: length + 3 });
    assert_eq!(inspect_bytes(&good[..40]), FormatError::Truncated { field: Field::Header, needed: 72, got: 40 });
    assert!(matches!(with(72, &[0xff; 4]), FormatError::Overrun { field: Field::Text, .. }));
    assert!(matches!(with(81, &[0xff; 4]), FormatError::Overrun { field: Field::Records, .. }));
    assert!(matches!(with(86, &[0xff; 4]), FormatError::Overrun { field: Field::Record(0x01), .. }));
    for (error, field) in [
        (with(8, &[4]), "tokens"),
        (with(72, &[0xff; 4]), "prompt text"),
        (with(3, &[77]), "version 77"),
        (with(0, b"GGUF"), "not a KVC file"),
    ] {
        let text = error.to_string();
        assert!(text.contains(field) && text.contains("; "), "{text} says what to try");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let path = Path::new("/nowhere/at/all.kvc");
    let error = inspect_file(path).unwrap_err();
    assert!(matches!(&error, CacheError::Unreadable { path: named, .. } if named == path), "{error}");
}
