//! What is refused: the error names the path, the field and what to try.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use poncho_cache::format::{self, Field, FormatError, NewPart, NewRow};
use poncho_cache::{
    Cache, CacheConfig, CacheError, FingerprintMode, GateError, Gates, PartKind, SaveReason, Tier, inspect_file,
    inspect_folder,
};

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
    assert!(text.contains(&bytes.to_string()) && text.contains("5000") && text.contains("raise the quota"), "{text}");
    assert_eq!(cache.len(), 0);
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
    assert!(
        text.contains(&pid) && text.contains(folder.path().to_str().unwrap()) && text.contains("--cache-dir"),
        "{text}"
    );
    assert_eq!(inspect_folder(folder.path()).unwrap().holder, Some(pid), "looking is allowed");
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    Cache::open(on_disk(folder.path(), 1 << 20)).unwrap();
}

#[test]
fn a_nul_in_a_path_is_refused_everywhere() {
    let path = PathBuf::from("/folder/a\0b");
    let errors = [
        Cache::open(on_disk(&path, 1 << 20)).err().unwrap(),
        inspect_folder(&path).unwrap_err(),
        inspect_file(&path).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(&error, CacheError::NulInPath { path: named } if *named == path), "{error}");
        assert!(error.to_string().contains("NUL"), "{error}");
    }
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
    let row = NewRow {
        reason: SaveReason::Finish,
        flags: 0,
        hits: 0,
        context_size: 4096,
        created: 1,
        last_used: 1,
        namespace: namespace(1),
        fingerprint_mode: FingerprintMode::Safe,
        parent: None,
        start: 0,
        tokens: &[1, 2, 3],
        parts: &parts,
        text: "hello",
        host: None,
        writer: None,
        reason_detail: None,
    };
    let mut bytes = format::encode_v1(&row).unwrap();
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
