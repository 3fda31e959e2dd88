//! `poncho doctor` on real faults: a port that is taken, a folder that cannot be written or belongs to another server.

use std::net::TcpListener;
use std::path::Path;

use poncho_cache::Cache;
use poncho_testkit::{ModelKind, model_path};
use serde_json::Value;

use crate::served::Served;
use crate::support::{contents, on_disk, poncho, run};

/// The exit code, and the finding of one check.
#[track_caller]
fn examine(folder: &Path, words: &[&str], check: &str) -> (Option<i32>, Value) {
    let mut command = poncho();
    command.args(["doctor", "--json", "--cache-dir"]).arg(folder);
    // Port 0 is always free; a later flag of the test wins.
    let words = if words.contains(&"--port") { words.to_vec() } else { [words, &["--port", "0"]].concat() };
    let ended = run(command.args(words));
    let report: Value =
        serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}{}", ended.stdout, ended.stderr));
    let findings = report["findings"].as_array().unwrap();
    let broken = findings.iter().filter(|finding| finding["level"] == "broken").count();
    assert_eq!(ended.code, Some(i32::from(broken > 0)), "{report:#}");
    let found = findings.iter().find(|finding| finding["check"] == check);
    (ended.code, found.cloned().unwrap_or_default())
}

#[test]
fn a_good_machine_is_told_so_and_nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let kv = folder.path().join("kv");
    let model = model_path(ModelKind::Attention);
    let (_, memory) = examine(&kv, &["--model", model.to_str().unwrap(), "--ctx-size", "512"], "memory");
    assert_eq!(memory["level"], "ok", "{memory}");
    assert!(memory["fact"].as_str().unwrap().contains("4 x 512.0 KiB KV"), "{memory}");
    let (_, cpu) = examine(&kv, &[], "cpu");
    assert_eq!(cpu["level"], "ok");
    assert_eq!(contents(folder.path()), [], "it changes nothing");
    assert!(!kv.exists());
    let text = run(poncho().args(["doctor", "--port", "0", "--cache-dir"]).arg(&kv));
    assert!(text.stdout.contains("cache folder: ") && text.stdout.contains("open files: "), "{}", text.stdout);
}

/// The build has AVX2; on a processor with more, a model runs slower than it could.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_build_below_the_processor_is_a_warning_where_a_model_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_path(ModelKind::Attention);
    // No library that a developer may have built.
    let words = ["--model", model.to_str().unwrap(), "--backends", folder.path().to_str().unwrap()];
    let (_, cpu) = examine(&folder.path().join("kv"), &words, "cpu");
    if std::arch::is_x86_feature_detected!("avx512f") {
        assert_eq!(cpu["level"], "warning", "{cpu}");
        assert!(cpu["fact"].as_str().unwrap().contains("does not use AVX-512"), "{cpu}");
        assert!(cpu["advice"].as_str().unwrap().contains("make cpu-builds"), "{cpu}");
    } else {
        assert_eq!(cpu["level"], "ok", "{cpu}");
    }
}

#[test]
fn a_taken_port_is_broken_and_a_poncho_on_it_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let (code, finding) = examine(&folder.path().join("kv"), &["--port", &port], "port");
    assert_eq!((code, &finding["level"]), (Some(1), &"broken".into()), "{finding}");
    assert!(finding["advice"].as_str().unwrap().contains("--port"), "{finding}");

    let served = Served::start(folder.path());
    let port = served.address.port().to_string();
    let (_, finding) = examine(&folder.path().join("kv"), &["--port", &port], "port");
    assert_eq!(finding["level"], "warning", "{finding}");
    assert!(finding["fact"].as_str().unwrap().contains("a Poncho already answers"), "{finding}");
    let (_, lock) = examine(&folder.path().join("kv"), &["--port", &port], "cache lock");
    assert_eq!(lock["level"], "warning", "its folder is in use by the server that runs: {lock}");
}

#[test]
fn a_folder_that_cannot_be_written_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for wrong in [file.as_path(), &file.join("kv"), Path::new("/proc/poncho-kv")] {
        let (code, finding) = examine(wrong, &[], "cache folder");
        assert_eq!((code, &finding["level"]), (Some(1), &"broken".into()), "{finding}");
        assert!(finding["advice"].as_str().unwrap().contains("--cache-dir"), "{finding}");
    }
}

#[test]
fn a_folder_of_another_server_is_broken_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let owner = Cache::open(on_disk(folder.path())).unwrap();
    let (code, finding) = examine(folder.path(), &[], "cache lock");
    assert_eq!((code, &finding["level"]), (Some(1), &"broken".into()), "{finding}");
    assert!(finding["fact"].as_str().unwrap().contains(&std::process::id().to_string()), "{finding}");
    drop(owner);
    let (_, finding) = examine(folder.path(), &[], "cache lock");
    assert_eq!(finding, Value::Null, "the lock is released");
}

#[test]
fn a_model_that_is_none_or_does_not_fit_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.gguf");
    std::fs::write(&page, "<html>").unwrap();
    let (code, finding) = examine(folder.path(), &["--model", page.to_str().unwrap()], "model");
    assert_eq!(code, Some(1));
    assert!(finding["fact"].as_str().unwrap().contains("HTML page"), "{finding}");
    let model = model_path(ModelKind::Attention);
    let huge = ["--model", model.to_str().unwrap(), "--ctx-size", "4000000000", "--parallel", "64"];
    let (code, finding) = examine(folder.path(), &huge, "memory");
    assert_eq!((code, &finding["level"]), (Some(1), &"broken".into()), "{finding}");
}

/// Hardening 4: earlier releases gave a pulled file a second name instead of a copy.
#[test]
fn a_model_that_shares_its_file_is_reported_and_verifying_repairs_it() {
    let folder = tempfile::tempdir().unwrap();
    let (models, kv) = (folder.path().join("models"), folder.path().join("kv"));
    let model = model_path(ModelKind::Attention);
    let pulled = run(poncho().arg("pull").arg(&model).args(["--name", "tiny:1", "--models-dir"]).arg(&models));
    assert_eq!(pulled.code, Some(0), "{}", pulled.stderr);
    let words = ["--models-dir", models.to_str().unwrap()];
    assert!(examine(&kv, &words, "models folder").1.is_null());
    let mut blobs = std::fs::read_dir(models.join("blobs")).unwrap();
    std::fs::hard_link(blobs.next().unwrap().unwrap().path(), folder.path().join("outside.gguf")).unwrap();
    let (_, finding) = examine(&kv, &words, "models folder");
    assert_eq!(finding["level"], "warning", "{finding}");
    assert!(finding["advice"].as_str().unwrap().contains("poncho show tiny:1 --verify"), "{finding}");
    let verified = run(poncho().args(["show", "tiny:1", "--verify", "--models-dir"]).arg(&models));
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert!(examine(&kv, &words, "models folder").1.is_null(), "it has a file of its own now");
}

#[test]
fn an_object_store_is_measured_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let url = format!("file://{}", store.display());
    let (_, finding) = examine(&folder.path().join("kv"), &["--shared", &url], "shared");
    assert_eq!(finding["level"], "ok", "{finding}");
    let fact = finding["fact"].as_str().unwrap();
    for word in ["round trip", "reads", "writes", "conditional writes yes", "tokens/s"] {
        assert!(fact.contains(word), "{fact}");
    }
    let left: Vec<String> = contents(&store).into_iter().map(|(path, _)| path.display().to_string()).collect();
    assert!(left.iter().all(|name| !name.contains("doctor")), "{left:?}");
    let (code, finding) = examine(&folder.path().join("kv"), &["--shared", "ftp://host/x"], "shared");
    assert_eq!((code, &finding["level"]), (Some(1), &"broken".into()), "{finding}");
}
