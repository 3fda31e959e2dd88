//! Shared by the tests of the binary: starting it, and a cache folder with the same rows and keys every time.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use poncho_cache::{
    Cache, CacheConfig, Clock, FingerprintMode, Key, Namespace, Needs, PartKind, PayloadPart, QuantType, SaveOutcome,
    SaveReason, SaveRequest,
};

pub(crate) use crate::running::{Run, run, run_with_input, without_settings};

pub(crate) const CHAT_MODEL: Namespace =
    Namespace { fingerprint: [0x11; 32], quant: QuantType::Q4_1, context_hash: [0x22; 32] };
pub(crate) const CODE_MODEL: Namespace =
    Namespace { fingerprint: [0x33; 32], quant: QuantType::Q8_0, context_hash: [0x44; 32] };

/// 2026-01-02T03:04:05Z, the creation of the first row; each later one is a minute younger.
pub(crate) const FIRST_CREATED: u64 = 1_767_323_045;

/// The binary, with none of the variables that would change what it does.
pub(crate) fn poncho() -> Command {
    without_settings(env!("CARGO_BIN_EXE_poncho"))
}

/// The same for the binary of another build.
pub(crate) fn program(path: &OsStr) -> Command {
    without_settings(path)
}

/// `poncho cache WORDS --cache-dir FOLDER`.
pub(crate) fn cache(folder: &Path, words: &[&str]) -> Run {
    run(poncho().arg("cache").args(words).arg("--cache-dir").arg(folder))
}

/// A clock that is a minute further with each reading of the wall.
#[derive(Debug)]
struct MinuteByMinute(AtomicU64);

impl Clock for MinuteByMinute {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_seconds(&self) -> u64 {
        FIRST_CREATED + 60 * self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// What the prepared folder holds.
pub(crate) struct Prepared {
    /// A conversation of three turns on the chat model: a chain of 600, 1,000 and 1,400 tokens.
    pub(crate) chain: [Key; 3],
    /// Another conversation that leaves the first after 700 tokens, 900 long.
    pub(crate) branch: Key,
    /// A row of the code model, 512 tokens, used twice.
    pub(crate) code: Key,
}

impl Prepared {
    pub(crate) fn all(&self) -> Vec<Key> {
        let mut keys = self.chain.to_vec();
        keys.extend([self.branch, self.code]);
        keys
    }
}

/// The first tokens of the conversation.
pub(crate) fn conversation(count: u32) -> Vec<u32> {
    (0..count).map(|position| 1000 + position * 7).collect()
}

/// The other conversation.
pub(crate) fn branch() -> Vec<u32> {
    let mut tokens = conversation(700);
    tokens.extend(0..200);
    tokens
}

/// Fills a folder. Everything but the host name in the files follows from this code.
pub(crate) fn prepare(folder: &Path) -> Prepared {
    let clock = Arc::new(MinuteByMinute(AtomicU64::new(0)));
    let cache = Cache::open(CacheConfig { clock, ..on_disk(folder) }).unwrap();
    let save = |namespace, tokens: &[u32], text: &str| save(&cache, namespace, tokens, text);
    let chain = [
        save(CHAT_MODEL, &conversation(600), "You are a helpful assistant."),
        save(CHAT_MODEL, &conversation(1000), "You are a helpful assistant.\nWhat is a poncho?"),
        save(CHAT_MODEL, &conversation(1400), "You are a helpful assistant.\nWhat is a poncho?\nA cloak. And a cape?"),
    ];
    let branch = save(CHAT_MODEL, &branch(), "You are a helpful assistant.\nWhat is a quilt?");
    let code_tokens: Vec<u32> = (0..512).collect();
    let code = save(CODE_MODEL, &code_tokens, "fn main() {}\u{1b}[31m");
    for _ in 0..2 {
        assert!(cache.lookup(&CODE_MODEL, &code_tokens, Needs::ATTENTION).is_some());
    }
    Prepared { chain, branch, code }
}

pub(crate) fn on_disk(folder: &Path) -> CacheConfig {
    CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(folder, u64::MAX) }
}

/// Saves a row with 20 bytes of state a token, and waits until it is published.
pub(crate) fn save(cache: &Cache, namespace: Namespace, tokens: &[u32], text: &str) -> Key {
    let base = cache.base_for(&namespace, tokens, None);
    let own = tokens.len() - base.as_ref().map_or(0, |base| base.start() as usize);
    let saved = cache
        .save(SaveRequest {
            namespace,
            mode: FingerprintMode::Safe,
            tokens,
            base: base.as_ref(),
            parts: vec![
                PayloadPart { kind: PartKind::Attention, bytes: vec![0x5a; own * 20].into() },
                PayloadPart { kind: PartKind::Logits, bytes: vec![0xa5; 64].into() },
            ],
            reason: SaveReason::Shutdown,
            flags: 0,
            context_size: 4096,
            text: text.to_owned(),
            tier: None,
            owner: None,
        })
        .unwrap();
    assert_eq!(saved.outcome, SaveOutcome::Published);
    saved.key
}

pub(crate) fn row_path(folder: &Path, key: &Key) -> PathBuf {
    poncho_cache::row_path(folder, key)
}

/// Flips one bit of a file, `before_end` bytes before its end.
pub(crate) fn damage(path: &Path, before_end: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() - before_end;
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Every file under a folder with its bytes, but for the lock.
pub(crate) fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.file_name().unwrap() != poncho_cache::LOCK_FILE_NAME {
                let bytes = std::fs::read(&path).unwrap();
                files.push((path, bytes));
            }
        }
    }
    files.sort();
    files
}
