//! Files as writers make them, files as accidents leave them, and bytes of all kinds.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

/// A file with these metadata and two F16 tensors of 64 weights each.
fn sample() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let entry = |key: &str, kind: u32, value: Vec<u8>| [text(key), kind.to_le_bytes().to_vec(), value].concat();
    let words = |count: u64| [&8_u32.to_le_bytes()[..], &count.to_le_bytes(), &text("hello"), &text("you")].concat();
    let entries = [
        entry("general.architecture", 8, text("llama")),
        entry("general.name", 8, text("Tiny")),
        entry("general.file_type", 4, 15_u32.to_le_bytes().to_vec()),
        entry("llama.context_length", 4, 2048_u32.to_le_bytes().to_vec()),
        entry("llama.block_count", 10, 2_u64.to_le_bytes().to_vec()),
        entry("llama.rope.freq_base", 6, 1e4_f32.to_le_bytes().to_vec()),
        entry("tokenizer.ggml.tokens", 9, words(2)),
        entry("tokenizer.chat_template", 8, text(&"x".repeat(9000))),
    ];
    let tensor = |name: &str, offset: u64| {
        let parts = [2_u32.to_le_bytes().to_vec(), [8_u64, 8].iter().flat_map(|d| d.to_le_bytes()).collect()];
        [text(name), parts.concat(), 1_u32.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat()
    };
    let mut file = [&b"GGUF"[..], &3_u32.to_le_bytes(), &2_u64.to_le_bytes(), &8_u64.to_le_bytes()].concat();
    file.extend(entries.concat());
    file.extend([tensor("a", 0), tensor("b", 128)].concat());
    file.resize(file.len().next_multiple_of(32) + 256, 0);
    file
}

fn facts(bytes: &[u8]) -> Result<Facts, GgufError> {
    read(Cursor::new(bytes), bytes.len() as u64)
}

#[test]
fn facts_are_those_of_the_header() {
    let facts = facts(&sample()).unwrap();
    assert_eq!(facts.architecture.as_deref(), Some("llama"));
    assert_eq!((facts.name.as_deref(), facts.quantization.as_deref()), (Some("Tiny"), Some("Q4_K_M")));
    assert_eq!((facts.parameters, facts.tensors, facts.context_length), (128, 2, Some(2048)));
    assert_eq!((facts.block_count, facts.chat_template, facts.is_adapter()), (Some(2), true, false));
}

#[test]
fn a_file_that_ends_anywhere_too_early_is_refused() {
    let whole = sample();
    for length in 0..whole.len() {
        let refused = facts(&whole[..length]).unwrap_err();
        match length {
            0..4 => assert!(matches!(refused, GgufError::NotGguf(_)), "{length}: {refused}"),
            _ => assert!(matches!(refused, GgufError::CutShort { .. }), "{length}: {refused}"),
        }
    }
    assert!(facts(&[whole, vec![0; 99]].concat()).is_ok(), "bytes after the tensors do no harm");
}

#[test]
fn claims_beyond_the_file_are_refused_at_once() {
    for at in [8, 16, 24] {
        let mut file = sample();
        file[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let refused = facts(&file).unwrap_err();
        assert!(matches!(refused, GgufError::CutShort { .. } | GgufError::Damaged { .. }), "{at}: {refused}");
    }
    let mut file = sample();
    file[4..8].copy_from_slice(&3_u32.to_be_bytes());
    assert!(matches!(facts(&file), Err(GgufError::BigEndian)));
    file[4..8].copy_from_slice(&9_u32.to_le_bytes());
    assert!(facts(&file).unwrap_err().to_string().contains("version 9"));
}

#[test]
fn what_is_no_model_is_called_by_its_name() {
    let safetensors = [&200_u64.to_le_bytes()[..], b"{\"__metadata__\":{}}"].concat();
    for (bytes, expected) in [
        (&b""[..], "an empty file"),
        (b"\n<!DOCTYPE html><html>", "an HTML page"),
        (b"<html lang=en>", "an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a Git LFS pointer"),
        (&safetensors, "a safetensors file"),
        (b"tjgg\x01\0\0\0", "before GGUF"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x1f\x8b\x08", "a gzip file"),
        (b"\x80\x02}q", "a Python pickle"),
        (b"{\"error\":\"Repository not found\"}", "an error message"),
        (b"Invalid username or password.\n", "begins `Invalid username or password.`"),
        (&[0; 64], "zeros"),
        (b"\xfe\xed\xfa\xce\0\0", "fe ed fa ce"),
        (b"GGU", "begins `GGU`"),
    ] {
        let refused = facts(bytes).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused} / {expected}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(read_facts(folder.path()).unwrap_err().to_string().contains("a folder"));
    assert!(matches!(read_facts(&folder.path().join("none")), Err(GgufError::Io(_))));
}

proptest! {
    #[test]
    fn damaged_headers_never_panic(changes in prop::collection::vec((0_usize..400, any::<u8>()), 1..12)) {
        let mut file = sample();
        for (at, byte) in changes {
            file[at] = byte;
        }
        let _ = facts(&file);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(tail in prop::collection::vec(any::<u8>(), 0..200), known in any::<bool>()) {
        let start: &[u8] = if known { b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0" } else { b"" };
        let _ = facts(&[start, &tail].concat());
    }
}
