//! The prober with children that are shell scripts: what is made of their ends, and what is remembered.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use poncho_cache::{Cache, CacheConfig};

use super::*;
use crate::backend::MemoryKind;
use crate::backend::stub::StubBackend;
use crate::{FingerprintSource, Model, ModelConfig};

/// A prober with this script as its child; the settings and the files are its arguments.
fn script(text: &str) -> Prober {
    Prober { args: vec!["-c".into(), text.into()], ..Prober::new("/bin/sh") }
}

fn config(file: &Path, prober: Prober) -> ModelConfig {
    let fingerprint = FingerprintSource::FastUnsafe([7; 32]);
    ModelConfig { fingerprint, prober: Some(prober), ..ModelConfig::new("m", file) }
}

/// Loads the stand-in model after the trial.
fn load(file: &Path, prober: Prober) -> Result<Model, EngineError> {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap());
    Model::load(config(file, prober), Arc::new(StubBackend::new(MemoryKind::Attention)), cache)
}

fn refusal(file: &Path, prober: Prober) -> String {
    match load(file, prober).unwrap_err() {
        EngineError::Load { path, reason } if path == file => reason,
        other => panic!("{other}"),
    }
}

fn model_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"a model").unwrap();
    file
}

/// Hardening 3: what would have ended this process is the reason of a failed load.
#[test]
fn a_child_that_dies_is_an_error_with_its_signal_and_last_words() {
    let file = model_file();
    let many = "for i in 1 2 3 4 5 6 7 8 9; do echo line $i >&2; done";
    let said = refusal(file.path(), script(&format!("{many}; printf 'ASSERT\\033[31m failed\\n' >&2; kill -ABRT $$")));
    assert!(said.contains("signal 6"), "{said}");
    assert!(said.contains("line 9; ASSERT [31m failed"), "{said}");
    assert!(!said.contains("line 1;") && !said.contains('\u{1b}'), "bounded and printable: {said}");
    let said = refusal(file.path(), script("exit 3"));
    assert!(said.contains("exit code 3") && said.contains("saying: nothing"), "{said}");
}

#[test]
fn a_child_that_refuses_is_quoted() {
    let file = model_file();
    let said = refusal(file.path(), script("echo 'llama.block_count is 0; download it again'; exit 1"));
    assert_eq!(said, "llama.block_count is 0; download it again");
}

#[test]
fn a_child_that_never_ends_is_killed_at_its_deadline() {
    let file = model_file();
    let pid_file = tempfile::NamedTempFile::new().unwrap();
    let endless = format!("echo $$ > {}; echo busy >&2; while :; do sleep 0.1; done", pid_file.path().display());
    // Long enough for the script to write its number, also on a busy machine.
    let prober = Prober { deadline: Some(Duration::from_secs(3)), ..script(&endless) };
    let said = refusal(file.path(), prober);
    assert!(said.contains("after 3 s") && said.contains("--probe-models off"), "{said}");
    let pid: i32 = std::fs::read_to_string(pid_file.path()).unwrap().trim().parse().unwrap();
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} lives");
}

#[test]
fn a_program_that_is_not_there_fails_the_load() {
    let file = model_file();
    let said = refusal(file.path(), Prober::new("/nonexistent/program"));
    assert!(said.contains("/nonexistent/program") && said.contains("could not be started"), "{said}");
}

/// How often the child ran.
fn runs(count: &Path) -> usize {
    std::fs::read_to_string(count).unwrap_or_default().lines().count()
}

/// Hardening 3: a familiar model is loaded at once; a changed one is not familiar.
#[test]
fn a_model_that_passed_is_not_tried_again_until_something_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (count, memo) = (folder.path().join("count"), folder.path().join("deep/kv.probed"));
    let file = folder.path().join("model.gguf");
    std::fs::write(&file, b"a model").unwrap();
    let counting = script(&format!("echo run >> {}", count.display()));
    let prober = Prober { memo: Some(memo.clone()), ..counting.clone() };
    for _ in 0..3 {
        load(&file, prober.clone()).unwrap();
    }
    assert_eq!(runs(&count), 1);
    assert_eq!(std::fs::metadata(&memo).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(memo.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);

    load(&file, Prober { when: ProbeWhen::Always, ..prober.clone() }).unwrap();
    assert_eq!(runs(&count), 2, "always means always");

    // The same bytes in another file under the same name.
    std::fs::write(folder.path().join("new"), b"a model").unwrap();
    std::fs::rename(folder.path().join("new"), &file).unwrap();
    load(&file, prober.clone()).unwrap();
    assert_eq!(runs(&count), 3, "another inode");

    let mut other = config(&file, prober.clone());
    other.context.swa_full = true;
    try_model(&prober, &other).unwrap();
    assert_eq!(runs(&count), 4, "other settings");
    let mut longer = config(&file, prober.clone());
    longer.context.n_ctx = 32_768;
    try_model(&prober, &longer).unwrap();
    assert_eq!(runs(&count), 4, "a longer context is tried with the same small one");

    load(&file, counting).unwrap();
    assert_eq!(runs(&count), 5, "nothing is remembered without a place for it");
}

#[test]
fn a_model_that_failed_is_not_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let (count, memo) = (folder.path().join("count"), folder.path().join("kv.probed"));
    let file = model_file();
    let prober = Prober { memo: Some(memo.clone()), ..script(&format!("echo run >> {}; exit 9", count.display())) };
    for _ in 0..2 {
        refusal(file.path(), prober.clone());
    }
    assert_eq!(runs(&count), 2);
    assert!(!memo.exists());
}

/// Hardening 16: something else under the name of the memo neither hangs nor fails a load.
#[test]
fn a_memo_that_is_no_regular_file_is_as_good_as_none() {
    let folder = tempfile::tempdir().unwrap();
    let memo = folder.path().join("kv.probed");
    rustix::fs::mknodat(rustix::fs::CWD, &memo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let file = model_file();
    load(file.path(), Prober { memo: Some(memo), ..script("exit 0") }).unwrap();
}

#[test]
fn the_memo_keeps_a_bounded_number_of_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memo");
    let line = |number: u32| format!("{number:064}");
    for number in 0..1100 {
        memo::add(Some(&path), Some(&line(number)));
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1000);
    assert!(memo::contains(Some(&path), Some(&line(1099))) && !memo::contains(Some(&path), Some(&line(3))));
}

#[test]
fn settings_survive_the_way_to_the_child() {
    let mut config = ModelConfig::new("m", "/models/a b.gguf");
    config.model.tensor_split = vec![0.5, 0.25];
    config.model.mlock = true;
    config.context.type_k = crate::backend::KvType::Q8_0;
    config.context.rope_freq_base = Some(1e6);
    let trial = Trial::of(&config);
    let there = Trial::parse(&trial.settings_text(), trial.files.clone()).unwrap();
    assert_eq!(there.settings_text(), trial.settings_text());
    assert!(trial.settings_text().contains("\"mlock\":false"), "two processes cannot lock the same memory");
    assert!(Trial::parse("{}", Vec::new()).is_err());
}

/// Hardening 3: a child does not outlive its parent.
#[test]
fn a_child_ends_when_nobody_holds_its_input_any_more() {
    const CHILD: &str = "PONCHO_TEST_PROBE_CHILD";
    if std::env::var_os(CHILD).is_some() {
        end_with_parent();
        loop {
            std::thread::park();
        }
    }
    let name = "files::probe::tests::a_child_ends_when_nobody_holds_its_input_any_more";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let held = child.stdin.take();
    assert!(child.try_wait().unwrap().is_none(), "it runs while the input is held");
    drop(held);
    assert_eq!(child.wait().unwrap().code(), Some(255));
}
