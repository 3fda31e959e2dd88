//! Shared by the tests of the binary: starting it, and a cache folder whose rows and keys are the same every time.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use poncho_cache::{
    Cache, CacheConfig, Clock, FingerprintMode, Key, Namespace, Needs, PartKind, PayloadPart, QuantType, SaveOutcome,
    SaveReason, SaveRequest,
};
use serde_json::Value;

pub(crate) const CHAT_MODEL: Namespace =
    Namespace { fingerprint: [0x11; 32], quant: QuantType::Q4_1, context_hash: [0x22; 32] };
pub(crate) const CODE_MODEL: Namespace =
    Namespace { fingerprint: [0x33; 32], quant: QuantType::Q8_0, context_hash: [0x44; 32] };

/// 2026-01-02T03:04:05Z, the creation of the first row; each later one is a minute younger.
pub(crate) const FIRST_CREATED: u64 = 1_767_323_045;

/// How a run of the binary ended.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// The output of a run that must have gone well, as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The output of a run that must have gone well.
    #[track_caller]
    pub(crate) fn good(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stderr, "");
        &self.stdout
    }

    /// The message of a run that must have failed with code 1 and printed nothing.
    #[track_caller]
    pub(crate) fn failed(&self) -> &str {
        assert_eq!((self.code, self.stdout.as_str()), (Some(1), ""), "{}", self.stderr);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        &self.stderr
    }
}

/// The binary, with none of the variables that would change what it does.
pub(crate) fn poncho() -> Command {
    program(OsStr::new(env!("CARGO_BIN_EXE_poncho")))
}

/// The same for the binary of another build.
pub(crate) fn program(path: &OsStr) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("PONCHO_") || name.starts_with("XDG_") || name.starts_with("OTEL_"))
        {
            command.env_remove(name);
        }
    }
    // The settings of whoever runs the tests must not reach them.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    // No folder of models: the user's own must not be touched.
    command.env("XDG_DATA_HOME", "/nonexistent");
    command
}

pub(crate) fn run(command: &mut Command) -> Run {
    run_with_input(command, "")
}

pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Run {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that reads nothing may have closed it already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
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

/// Turns one bit of a file round, so many bytes before its end.
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
