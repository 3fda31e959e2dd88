//! `ls`, `stat`, `show` and `explain`: what they say of a folder, beside a server and without one, changing nothing.

use poncho_cache::Cache;
use serde_json::{Value, json};

use crate::support::{
    FIRST_CREATED, branch, cache, contents, conversation, damage, on_disk, poncho, prepare, row_path, run,
    run_with_input,
};

#[test]
fn ls_json_has_every_field_of_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let rows = cache(folder.path(), &["ls", "--json", "--sort", "key"]).json();
    let rows = rows.as_array().unwrap();
    let mut keys: Vec<String> = prepared.all().iter().map(|key| key.to_hex()).collect();
    keys.sort();
    assert_eq!(rows.iter().map(|row| row["key"].as_str().unwrap()).collect::<Vec<_>>(), keys);

    let middle = rows.iter().find(|row| row["key"] == prepared.chain[1].to_hex()).unwrap();
    let bytes = row_path(folder.path(), &prepared.chain[1]).metadata().unwrap().len();
    let expected = json!({
        "key": prepared.chain[1].to_hex(), "tier": "disk", "bytes": bytes, "tokens": 1000, "start": 600,
        "parent": prepared.chain[0].to_hex(), "hits": 0, "reason": "shutdown", "version": 2,
        "created": FIRST_CREATED + 60,
        "parts": [{"kind": "attention", "bytes": 8000}, {"kind": "logits", "bytes": 64}],
        "namespace": {"fingerprint": "11".repeat(32), "quant": "q4_1", "context_hash": "22".repeat(32)},
        "text": "You are a helpful assistant.\nWhat is a poncho?",
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&middle[name], value, "{name}");
    }
    assert!(middle["last_used"].as_u64().unwrap() > FIRST_CREATED + 60, "it was built upon later");
    let code = rows.iter().find(|row| row["key"] == prepared.code.to_hex()).unwrap();
    assert_eq!((&code["hits"], &code["parent"]), (&json!(2), &Value::Null));
}

#[test]
fn ls_sorts_and_limits() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let first = |sort: &str| {
        let rows = cache(folder.path(), &["ls", "--json", "--limit", "1", "--sort", sort]).json();
        assert_eq!(rows.as_array().unwrap().len(), 1);
        rows[0]["key"].as_str().unwrap().to_owned()
    };
    assert_eq!(first("tokens"), prepared.chain[2].to_hex());
    assert_eq!(first("bytes"), prepared.chain[0].to_hex(), "it holds 600 tokens itself, more than any other");
    assert_eq!(first("hits"), prepared.code.to_hex());
    assert_eq!(first("last-used"), prepared.code.to_hex());
    assert_eq!(first("key"), prepared.all().iter().min().unwrap().to_hex());
    let text = cache(folder.path(), &["ls", "--limit", "2"]);
    assert_eq!(text.good().lines().count(), 4, "heading, two rows, sum: {}", text.stdout);
    assert!(text.stdout.contains("2 of 5 rows"), "{}", text.stdout);
    assert!(text.stdout.contains(" ago "), "{}", text.stdout);
}

/// Everyday use 14: rows have the names of their models and the first words of their prompts.
#[test]
fn ls_names_the_model_and_the_first_words_of_the_prompt() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("kv");
    prepare(&folder);
    let unnamed = cache(&folder, &["ls"]);
    assert!(unnamed.good().contains(&"11".repeat(6)), "without a name its fingerprint: {}", unnamed.stdout);
    std::fs::write(home.path().join("kv.names"), format!("{} chat:1b\nnot a line\n", "11".repeat(32))).unwrap();
    let text = cache(&folder, &["ls", "--sort", "tokens"]);
    let row = text.good().lines().nth(1).unwrap();
    assert!(
        row.contains(" chat:1b ") && row.ends_with("You are a helpful assistant. What is a poncho? A ..."),
        "{row}"
    );
    assert!(!text.stdout.contains('\u{1b}'), "a prompt must not command the terminal");
    let rows = cache(&folder, &["ls", "--json", "--sort", "tokens"]).json();
    assert_eq!(rows[0]["model"], "chat:1b");
    assert_eq!(rows.as_array().unwrap().iter().filter(|row| row["model"].is_null()).count(), 1, "the code model");
}

#[test]
fn stat_sums_up_namespaces_chains_and_leftovers() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let sub_folder = row_path(folder.path(), &prepared.code).parent().unwrap().to_path_buf();
    let hex = "ab".repeat(32);
    std::fs::write(sub_folder.join(format!("{hex}.kvc.9-9.tmp")), b"half").unwrap();
    std::fs::write(sub_folder.join(format!("{hex}.kvc.bad")), b"bad").unwrap();
    std::fs::write(
        sub_folder.join(format!("{hex}.kvc")),
        b"KVC\x07 from the future, and longer than a header has to be, 72 bytes!",
    )
    .unwrap();
    std::fs::write(sub_folder.join(format!("{}.kvc", "cd".repeat(32))), b"KV").unwrap();
    std::fs::write(sub_folder.join("notes.txt"), b"not ours").unwrap();

    let stat = cache(folder.path(), &["stat", "--json"]).json();
    assert_eq!((&stat["rows"], &stat["hits"], &stat["longest_chain"]), (&json!(5), &json!(2), &json!(3)));
    assert_eq!(stat["tokens"], 600 + 400 + 400 + 200 + 512);
    for kind in ["temporary_files", "bad_files", "damaged_files", "unknown_files"] {
        assert_eq!(stat[kind], 1, "{kind}");
    }
    assert_eq!(stat["holder"], Value::Null);
    assert!(stat["folders"][0]["free_bytes"].as_u64().is_some());
    let models = stat["namespaces"].as_array().unwrap();
    assert_eq!(models.len(), 2);
    assert_eq!(
        (&models[0]["quant"], &models[0]["rows"], &models[0]["tokens"]),
        (&json!("q4_1"), &json!(4), &json!(1600))
    );
    assert_eq!((&models[1]["quant"], &models[1]["rows"], &models[1]["hits"]), (&json!("q8_0"), &json!(1), &json!(2)));
    let bytes: u64 = prepared.all().iter().map(|key| row_path(folder.path(), key).metadata().unwrap().len()).sum();
    assert_eq!(stat["bytes"], bytes);
    let text = cache(folder.path(), &["stat"]);
    assert!(text.good().contains("1 temporary, 1 moved aside, 1 damaged, 1 unknown"), "{}", text.stdout);
}

#[test]
fn show_takes_a_prefix_and_tells_everything() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let key = prepared.chain[2].to_hex();
    let shown = cache(folder.path(), &["show", &key[..10].to_uppercase(), "--tokens", "--json"]).json();
    assert_eq!(shown["key"], key);
    assert_eq!(shown["context_size"], 4096);
    assert_eq!(shown["fingerprint_mode"], "safe");
    assert_eq!(shown["writer"], concat!("poncho ", env!("CARGO_PKG_VERSION")));
    assert_eq!(shown["path"], row_path(folder.path(), &prepared.chain[2]).to_str().unwrap());
    assert_eq!(shown["payload_bytes"], 400 * 20 + 64);
    let chain: Vec<&str> =
        shown["chain"].as_array().unwrap().iter().map(|link| link["key"].as_str().unwrap()).collect();
    assert_eq!(chain, prepared.chain.map(|key| key.to_hex()));
    assert_eq!(shown["token_ids"], json!(conversation(1400)));

    let text = cache(folder.path(), &["show", &key, "--tokens"]);
    let ids = conversation(1400).iter().map(u32::to_string).collect::<Vec<_>>();
    let printed: Vec<&str> = text.good().split("\n\n").last().unwrap().split_whitespace().collect();
    assert_eq!(printed, ids);
    assert!(text.stdout.contains("created        2026-01-02T03:06:05Z ("), "{}", text.stdout);
    assert!(!cache(folder.path(), &["show", &key]).good().contains("1000 1007 1014"));
}

#[test]
fn stored_text_cannot_command_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let text = cache(folder.path(), &["show", &prepared.code.to_hex()]);
    assert!(text.good().contains("fn main() {}\\u{1b}[31m"), "{}", text.stdout);
    assert!(!text.stdout.contains('\u{1b}'));
}

#[test]
fn show_says_where_a_chain_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    std::fs::remove_file(row_path(folder.path(), &prepared.chain[0])).unwrap();
    let key = prepared.chain[2].to_hex();
    let text = cache(folder.path(), &["show", &key, "--tokens"]);
    assert!(text.good().contains(&format!("the chain is broken: row {} is missing", prepared.chain[0])));
    assert!(text.stdout.contains("token ids are unknown"));
    assert_eq!(cache(folder.path(), &["show", &key, "--json"]).json()["chain_whole"], false);
    assert_eq!(cache(folder.path(), &["stat", "--json"]).json()["longest_chain"], 1);
}

#[test]
fn explain_finds_the_parting_and_both_windows() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let mut asked = conversation(1000);
    asked[990] = 5;
    let explain = |tokens: &[u32], more: &[&str]| {
        let words = ["explain", "--tokens", "-", "--json"];
        let command = &mut poncho();
        command.arg("cache").args(words).args(more).arg("--cache-dir").arg(folder.path());
        run_with_input(command, &serde_json::to_string(tokens).unwrap()).json()
    };
    let answer = explain(&asked, &[]);
    assert_eq!((&answer["tokens"], &answer["common"], &answer["usable"]), (&json!(1000), &json!(990), &json!(990)));
    assert_eq!(answer["usable_at_saved_row"], 600, "the last saved row before the parting");
    assert_eq!((&answer["verdict"], &answer["row"]["key"]), (&json!("parts"), &json!(prepared.chain[1].to_hex())));
    let parting = &answer["parting"];
    assert_eq!((&parting["position"], &parting["window_start"]), (&json!(990), &json!(982)));
    assert_eq!(parting["stored"], json!(conversation(1000)[982..998]));
    assert_eq!(parting["asked"], json!(asked[982..998]));

    assert_eq!(explain(&conversation(1000), &[])["verdict"], "stored");
    assert_eq!(explain(&conversation(2000), &[])["verdict"], "ends");
    assert_eq!(explain(&branch(), &[])["row"]["key"], prepared.branch.to_hex());
    assert_eq!(explain(&[7, 7, 7], &[])["verdict"], "nothing_stored");
    let code = prepared.code.to_hex();
    let other = explain(&conversation(1000), &["--row", &code[..8]]);
    assert_eq!((&other["verdict"], &other["common"]), (&json!("other_namespace"), &json!(0)));
    assert_eq!(other["namespace"]["quant"], "q8_0");
}

#[test]
fn explain_reads_words_from_a_file_and_marks_the_difference() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let words: Vec<String> = conversation(603).iter().map(u32::to_string).collect();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, words.join("\n") + " 1 2 3").unwrap();
    let text = cache(folder.path(), &["explain", "--tokens", file.to_str().unwrap()]);
    assert!(text.good().contains("agree          603 of 606 tokens"), "{}", text.stdout);
    assert!(text.stdout.contains("the first difference is at 603"));
    let lines: Vec<&str> = text.stdout.lines().filter(|line| line.contains('>')).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0].find('>'), lines[1].find('>'), "the marks stand one above the other");
    assert!(lines[0].starts_with("stored ") && lines[0].contains(" >5221 "), "{}", lines[0]);
    assert!(lines[1].starts_with("asked ") && lines[1].contains(" >   1 "), "{}", lines[1]);
}

#[test]
fn reading_works_beside_an_owner_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = prepare(folder.path());
    let cache_handle = Cache::open(on_disk(folder.path())).unwrap();
    // Damage and leftovers that an opening would deal with must stay as they are.
    damage(&row_path(folder.path(), &prepared.code), 10);
    let before = contents(folder.path());
    let key = prepared.code.to_hex();
    for words in [&["ls"][..], &["stat"], &["show", &key], &["ls", "--json"]] {
        cache(folder.path(), words).good();
    }
    assert_eq!(cache(folder.path(), &["verify"]).code, Some(1));
    for words in [&["gc", "--dry-run"][..], &["evict", "1", "--dry-run"]] {
        assert!(cache(folder.path(), words).good().contains(&format!("in use by process {}", std::process::id())));
    }
    assert!(cache(folder.path(), &["stat"]).stdout.contains(&format!("process {}", std::process::id())));
    let command = &mut poncho();
    command.args(["cache", "explain", "--tokens", "-", "--cache-dir"]).arg(folder.path());
    run_with_input(command, "1 2").good();
    assert_eq!(contents(folder.path()), before);
    drop(cache_handle);
    assert_eq!(cache(folder.path(), &["stat", "--json"]).json()["holder"], Value::Null);
}

#[test]
fn a_memory_folder_is_told_from_a_disk() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let prepared = prepare(folder.path());
    assert_eq!(cache(folder.path(), &["ls", "--json"]).json()[0]["tier"], "ram_file");
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    prepare(disk.path());
    std::fs::remove_file(row_path(folder.path(), &prepared.chain[0])).unwrap();
    let both = |words: &[&str]| {
        let command = &mut poncho();
        command.arg("cache").args(words).arg("--cache-dir").arg(disk.path()).arg("--ram-file-dir").arg(folder.path());
        run(command)
    };
    let rows = both(&["ls", "--json"]).json();
    let count = |tier: &str| rows.as_array().unwrap().iter().filter(|row| row["tier"] == tier).count();
    assert_eq!((count("disk"), count("ram_file")), (5, 4));
    assert_eq!(both(&["verify"]).code, Some(0), "the chains go on in the other folder");
    assert_eq!(both(&["stat", "--json"]).json()["folders"].as_array().unwrap().len(), 2);
}

#[test]
fn an_object_store_is_listed_and_collected_by_its_address_or_by_the_setting() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("store").display());
    let listing = cache(folder.path(), &["ls", "--json", "--shared", &url]).json();
    assert_eq!(listing, json!({"location": url, "bytes": 0, "tenants": []}));
    let text = run(poncho().args(["cache", "ls", "--shared"]).env("PONCHO_SHARED", &url));
    assert_eq!((text.code, text.stdout.trim_end()), (Some(0), format!("no rows in {url}").as_str()), "{}", text.stderr);
    let collected = cache(folder.path(), &["gc", "--json", "--shared", &url, "--shared-quota", "1GiB"]).json();
    assert_eq!((&collected["rows"], &collected["removed_rows"]), (&json!(0), &json!(0)));
    let none = run(poncho().args(["cache", "ls", "--shared"]));
    assert!(none.code != Some(0) && none.stderr.contains("--shared s3://BUCKET/PREFIX"), "{}", none.stderr);
}
