//! Wrong flags, wrong folders, wrong keys, closed pipes: the exit code, and a message that says what to try.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::support::{cache, contents, poncho, prepare, run, run_with_input};

#[test]
fn wrong_usage_exits_2_and_help_exits_0() {
    for words in [
        &["cache", "ls", "--no-such-flag"][..],
        &["cache", "frobnicate"],
        &["cache", "evict"],
        &["cache", "evict", "lots"],
        &["cache", "evict", "-5"],
        &["cache", "evict", "1G", "--tier", "ram"],
        &["cache", "show", "xyz"],
        &["cache", "ls", "--sort", "colour"],
        &["cache", "ls", "--limit", "-1"],
        &["cache", "explain"],
        &["cache", "ls", "--cache-dir", ""],
        &["--log-level", "loud", "cache", "ls"],
        &["cache"],
        &[],
    ] {
        let refused = run(poncho().args(words));
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{words:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("help"), "{words:?}: {}", refused.stderr);
    }
    assert!(run(poncho().args(["cache", "evict", "lots"])).stderr.contains("500MiB"), "says what a size looks like");
    for command in ["ls", "stat", "show", "verify", "gc", "clear", "evict", "explain"] {
        let help = run(poncho().args(["cache", command, "--help"]));
        assert!(help.good().contains("Example:") && help.stdout.contains("--cache-dir"), "{command}: {}", help.stdout);
    }
    assert!(run(poncho().arg("--version")).good().starts_with("poncho "));
}

#[test]
fn a_folder_that_was_named_must_be_there() {
    let home = tempfile::tempdir().unwrap();
    let missing = home.path().join("no-such-folder");
    let commands =
        [&["ls"][..], &["stat"], &["show", "ab"], &["verify"], &["gc"], &["evict", "1"], &["explain", "--tokens", "-"]];
    for words in commands {
        let refused = match words {
            ["explain", ..] => {
                run_with_input(poncho().arg("cache").args(words).arg("--cache-dir").arg(&missing), "1 2")
            }
            _ => cache(&missing, words),
        };
        let message = refused.failed();
        assert!(message.contains(missing.to_str().unwrap()) && message.contains("--cache-dir"), "{words:?}: {message}");
        let by_variable = run_with_input(poncho().arg("cache").args(words).env("PONCHO_CACHE_DIR", &missing), "1 2");
        assert!(by_variable.failed().contains("PONCHO_CACHE_DIR"), "{words:?}: {}", by_variable.stderr);
    }
    assert!(!missing.exists(), "a mistyped name must not become a folder");
}

#[test]
fn a_default_folder_that_is_not_there_is_an_empty_cache() {
    let home = tempfile::tempdir().unwrap();
    let at_home = |words: &[&str]| {
        let command = &mut poncho();
        command.arg("cache").args(words).env("HOME", home.path()).env("PONCHO_CACHE_DIR", "");
        run_with_input(command, "1 2 3")
    };
    assert_eq!(at_home(&["ls", "--json"]).good(), "[]\n");
    assert!(at_home(&["ls"]).good().starts_with("no rows in "));
    assert_eq!(at_home(&["stat", "--json"]).json()["rows"], 0);
    assert_eq!(at_home(&["verify"]).good(), "0 rows checked, 0 damaged\n");
    assert!(at_home(&["gc"]).good().starts_with("freed 0 B"));
    assert!(at_home(&["explain", "--tokens", "-"]).good().starts_with("no rows in"));
    assert!(at_home(&["show", "ab"]).failed().contains("the cache is empty"));
    assert_eq!(contents(home.path()), [], "looking creates nothing");

    prepare(&home.path().join(".cache/poncho/kv"));
    assert_eq!(at_home(&["stat", "--json"]).json()["rows"], 5);
    let elsewhere = tempfile::tempdir().unwrap();
    let command = &mut poncho();
    command.args(["cache", "stat", "--json"]).env("HOME", home.path()).env("XDG_CACHE_HOME", elsewhere.path());
    assert_eq!(run(command).json()["rows"], 0);
    assert!(run(poncho().args(["cache", "ls"]).env_remove("HOME")).failed().contains("--cache-dir"));
}

#[test]
fn what_is_no_folder_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("row.kvc");
    std::fs::write(&file, b"x").unwrap();
    let looping = home.path().join("loop");
    std::os::unix::fs::symlink(&looping, &looping).unwrap();
    for words in [&["ls"][..], &["verify"], &["gc"], &["evict", "1"]] {
        let refused = cache(&file, words);
        assert!(refused.failed().contains("is a file, not a folder"), "{words:?}: {}", refused.stderr);
        let below = cache(&file.join("kv"), words);
        assert!(below.failed().contains("row.kvc/kv"), "{words:?}: {}", below.stderr);
        let refused = cache(&looping, words);
        assert!(refused.failed().contains("check the path"), "{words:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("caused by: "), "{words:?}: {}", refused.stderr);
    }
    let twice =
        run(poncho().args(["cache", "ls", "--cache-dir"]).arg(home.path()).arg("--ram-file-dir").arg(home.path()));
    assert!(twice.failed().contains("a different folder"), "{}", twice.stderr);
}

#[test]
fn unknown_and_ambiguous_keys_get_candidates() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let mut keys: Vec<String> = prepared.all().iter().map(|key| key.to_hex()).collect();
    keys.sort();
    // The first digit of one row, changed at the end so that no row has it.
    let near = format!("{}{}", &keys[0][..20], "0".repeat(44));
    let refused = cache(folder.path(), &["show", &near]);
    let message = refused.failed();
    assert!(message.contains(&format!("no row {near}")) && message.contains("poncho cache ls"), "{message}");
    let listed: Vec<&str> = message.lines().filter(|line| line.starts_with("  ")).map(str::trim).collect();
    assert_eq!((listed.len(), listed[0]), (5, keys[0].as_str()), "the nearest first");

    let empty = tempfile::tempdir().unwrap();
    assert!(cache(empty.path(), &["show", "ab"]).failed().contains("the cache is empty"));
}

#[test]
fn an_ambiguous_key_lists_those_it_may_mean() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let handle = poncho_cache::Cache::open(crate::support::on_disk(folder.path())).unwrap();
    for first in 0..20 {
        crate::support::save(&handle, crate::support::CODE_MODEL, &[first + 1000], "");
    }
    let mut keys: Vec<String> = handle.rows().iter().map(|row| row.key.to_hex()).collect();
    drop(handle);
    keys.sort();
    // 25 keys and 16 first digits: two begin alike.
    let pair = keys.windows(2).find(|pair| pair[0][..1] == pair[1][..1]).unwrap();
    let refused = cache(folder.path(), &["show", &pair[0][..1]]);
    assert!(refused.failed().contains("give more digits") && refused.stderr.contains(&pair[0]), "{}", refused.stderr);
}

#[test]
fn token_files_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let explain = |input: &str, file: &str| {
        let command = &mut poncho();
        command.args(["cache", "explain", "--tokens", file, "--cache-dir"]).arg(folder.path());
        run_with_input(command, input)
    };
    assert!(explain("", "-").failed().contains("give at least one"));
    assert!(explain("1 two 3", "-").failed().contains("word 2 is `two`"));
    assert!(explain("[1, 2", "-").failed().contains("JSON list"));
    let missing = explain("", "no-such-file.json");
    assert!(
        missing.failed().contains("no-such-file.json") && missing.stderr.contains("caused by"),
        "{}",
        missing.stderr
    );
    std::fs::write(folder.path().join("binary"), [0xff, 0xfe]).unwrap();
    assert!(explain("", folder.path().join("binary").to_str().unwrap()).failed().contains("give a text file"));
    let row = run_with_input(
        poncho()
            .args(["cache", "explain", "--tokens", "-", "--row", "0".repeat(64).as_str(), "--cache-dir"])
            .arg(folder.path()),
        "1",
    );
    assert!(row.failed().contains("no row 000"), "{}", row.stderr);
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let handle = poncho_cache::Cache::open(crate::support::on_disk(folder.path())).unwrap();
    // More output than a pipe holds, so that the writer is still at it when the reader leaves.
    let text = "x".repeat(200);
    for first in 0..400 {
        crate::support::save(&handle, crate::support::CHAT_MODEL, &[first, 1, 2], &text);
    }
    drop(handle);
    for words in [&["ls", "--json"][..], &["ls"], &["stat"]] {
        let command = &mut poncho();
        command.arg("cache").args(words).arg("--cache-dir").arg(folder.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::with_capacity(1, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        assert_eq!((child.wait().unwrap().code(), message.as_str()), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let command = &mut poncho();
    command.args(["cache", "ls", "--cache-dir"]).arg(folder.path());
    let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("No space left"));
}

#[test]
fn a_wrong_log_level_in_the_environment_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let command = &mut poncho();
    command.args(["cache", "ls", "--cache-dir"]).arg(folder.path());
    assert!(run(command.env("PONCHO_LOG", "loud")).failed().contains("PONCHO_LOG is `loud`"));
    run(command.env("PONCHO_LOG", "error")).good();
}
