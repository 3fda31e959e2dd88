//! The mistakes of the first ten minutes: each gets a message with the fact and what to do, and never a stack or silence.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use poncho_testkit::{ModelKind, model_path};
use serde_json::json;

use crate::served::{Served, serve_command};
use crate::support::{poncho, run};

/// The message of a server that must not start.
#[track_caller]
fn refused(command: &mut Command) -> String {
    refused_with(1, command)
}

#[track_caller]
fn refused_with(code: i32, command: &mut Command) -> String {
    let ended = run(command);
    assert_eq!(ended.code, Some(code), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked") && !ended.stderr.contains("RUST_BACKTRACE"), "{}", ended.stderr);
    ended.stderr
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no `{part}` in\n{message}");
    }
}

fn serve_model(folder: &Path, model: &Path) -> Command {
    let mut command = poncho();
    command.args(["serve", "--port", "0", "--threads", "1", "--model"]).arg(model);
    command.arg("--cache-dir").arg(folder.join("kv"));
    command
}

fn written(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_wrong_path_is_named_and_the_nearest_model_suggested() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), b"GGUF");
    let near = refused(&mut serve_model(folder.path(), &folder.path().join("modle.gguf")));
    says(&near, &["does not exist", "modle.gguf", "did you mean", "/model.gguf?"]);
    let far = refused(&mut serve_model(folder.path(), &folder.path().join("no/where.gguf")));
    says(&far, &["does not exist", "neither does the folder", "--model"]);
    let itself = refused(&mut serve_model(folder.path(), folder.path()));
    says(&itself, &["is a folder, not a model file", "model.gguf"]);
    assert!(!folder.path().join("kv").exists(), "nothing is created for a model that is not there");
}

#[test]
fn an_unknown_model_name_says_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve_model(folder.path(), Path::new("smolm2:135m"));
    says(&refused(command.current_dir(folder.path())), &["smolm2:135m"]);
}

#[test]
fn what_is_no_gguf_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 98362432\n";
    for (bytes, parts) in [
        (&b"Read me first.\n"[..], ["a text that begins `Read me first.`", ".gguf"]),
        (b"<!DOCTYPE html>\n<html>", ["HTML page", "/resolve/"]),
        (pointer, ["Git LFS pointer", "git lfs pull"]),
        (b"", ["an empty file", "fetch it again"]),
    ] {
        let message = refused(&mut serve_model(folder.path(), &written(folder.path(), bytes)));
        says(&message, &["model.gguf is not a GGUF model"]);
        says(&message, &parts);
    }
}

#[test]
fn a_download_that_broke_off_is_recognised() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(model_path(ModelKind::Attention)).unwrap();
    for part in [whole.len() - 1000, whole.len() / 2, 2000, 10] {
        let message = refused(&mut serve_model(folder.path(), &written(folder.path(), &whole[..part])));
        says(&message, &["model.gguf", "download", "again"]);
    }
}

#[test]
fn a_taken_port_is_named_with_the_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    // Nobody answers there: the question whether it is a Poncho must end by itself.
    let message = refused(serve_command(&folder.path().join("kv")).args(["--port", &port]));
    says(&message, &[&format!("127.0.0.1:{port}"), "another program listens there", "ss -ltnp", "--port"]);
    assert!(!folder.path().join("kv").exists(), "detected before anything is opened");
}

#[test]
fn a_second_server_on_the_same_port_or_folder_hears_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let first = Served::start(folder.path());
    let port = first.address.port().to_string();
    let message = refused(serve_command(&folder.path().join("other")).args(["--port", &port]));
    says(&message, &["a Poncho already listens there", "--port"]);
    let message = refused(serve_command(&folder.path().join("kv")).args(["--port", "0"]));
    says(&message, &["is in use by process", &first.pid().to_string(), "--cache-dir"]);
}

#[test]
fn addresses_that_cannot_be_used_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let command = |words: &[&str]| refused(serve_command(&folder.path().join("kv")).args(words));
    says(&command(&["--host", "0.0.0.0", "--port", "0"]), &["other machines", "PONCHO_API_KEY", "127.0.0.1", "--open"]);
    says(
        &command(&["--host", "192.0.2.1", "--port", "0", "--open"]),
        &["not an address of this machine", "--host 127.0.0.1"],
    );
}

#[test]
fn unknown_flags_and_commands_suggest_the_nearest() {
    for (words, parts) in [
        (&["serve", "--modle", "x"][..], ["--modle", "--model"]),
        (&["serve", "--ctx", "1"], ["--ctx", "--ctx-size"]),
        (&["srve"], ["srve", "serve"]),
        (&["cahce", "ls"], ["cahce", "cache"]),
        (&["cache", "lst"], ["lst", "ls"]),
        (&["serve", "--model", "x", "--port", "http"], ["invalid value 'http'", "--port"]),
        (&["serve", "--model", "x", "--ctx-size", "1"], ["invalid value '1'", "64.."]),
        (&["serve", "--model", "x", "--cache-size", "big"], ["`big` is not a size", "500MiB"]),
        (&["completions", "tcsh"], ["tcsh", "bash"]),
    ] {
        let ended = run(poncho().args(words));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{words:?}: {}", ended.stderr);
        says(&ended.stderr, &parts);
    }
}

#[test]
fn a_bad_settings_file_is_told_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("poncho.toml");
    for (text, parts) in [
        ("port = 80\nctx-size = 100\n", ["poncho.toml:2:", "did you mean `ctx_size`?"]),
        ("port = \"eighty\"\n", ["poncho.toml:1:", "must be an integer without quotes"]),
        ("\nport = 80000\n", ["poncho.toml:2: port is `80000`", "correct it, or remove it"]),
        ("host = localhost\n", ["poncho.toml:1:", "write TOML"]),
    ] {
        std::fs::write(&path, text).unwrap();
        let message = refused_with(2, serve_command(&folder.path().join("kv")).arg("--config").arg(&path));
        says(&message, &parts);
    }
    let missing = refused_with(2, serve_command(&folder.path().join("kv")).args(["--config", "no-such.toml"]));
    says(&missing, &["no-such.toml does not exist", "--config"]);
    let model = model_path(ModelKind::Attention);
    let model = refused_with(2, serve_command(&folder.path().join("kv")).arg("--config").arg(model));
    says(&model, &["name a poncho.toml"]);
}

#[test]
fn a_cache_folder_that_cannot_be_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), b"x");
    // Nobody may create anything in /proc, root included.
    for wrong in [file.join("kv"), PathBuf::from("/proc/poncho-kv")] {
        let message = refused(serve_command(&wrong).args(["--port", "0"]));
        says(&message, &[wrong.to_str().unwrap(), "writable"]);
    }
}

/// `poncho serve` where hardly anything can be written: a tiny memory file system if the test may mount one (it goes
/// with the process), else a limit on the size of files, with the signal that comes with it ignored.
fn serve_without_space(folder: &Path) -> Command {
    let kv = folder.join("kv");
    std::fs::create_dir(&kv).unwrap();
    let mount = format!("mount -t tmpfs -o size=64k poncho '{}'", kv.display());
    let may_mount =
        Command::new("unshare").args(["-m", "sh", "-c", &mount]).output().is_ok_and(|tried| tried.status.success());
    let serve = serve_command(&kv);
    let mut command = Command::new(if may_mount { "unshare" } else { "sh" });
    match may_mount {
        true => command.args(["-m", "sh", "-c", &format!("{mount} && exec \"$0\" \"$@\"")]),
        false => command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]),
    };
    command.arg(serve.get_program()).args(serve.get_args()).args(["--port", "0"]);
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn a_full_disk_costs_a_warning_and_no_reply() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start_command(&mut serve_without_space(folder.path()), folder.path());
    let long = "This prompt is long enough to be worth keeping, and there is no space to keep it. ".repeat(30);
    let answer = served.post("/v1/completions", &json!({"model": "x", "prompt": long, "max_tokens": 4}));
    assert_eq!(answer["choices"].as_array().unwrap().len(), 1, "{answer}");
    let messages = || served.messages();
    let told = || messages().contains("cache tier switched off; requests go on without it");
    let patience = std::time::Instant::now();
    while !told() && patience.elapsed().as_secs() < 60 {
        // Rows are written behind the reply, some only once the sequence is taken by another prompt.
        served.post("/v1/completions", &json!({"model": "x", "prompt": long, "max_tokens": 1}));
    }
    assert!(told(), "{}", messages());
    // The limit on the size of files leaves space on the disk, so then there is nothing to warn of.
    match messages().contains("No space left") {
        true => says(&messages(), &["little space for the cache", "--cache-dir"]),
        false => says(&messages(), &["File too large"]),
    }
    let (code, last) = served.stop();
    assert_eq!(code, Some(0), "{last}");
}

#[test]
fn the_greeting_is_true_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path());
    let greeting = served.greeting.clone();
    says(&greeting, &["serving attention on http://", "OpenAI SDK:", "Anthropic SDK:", "Ollama clients:", "Ctrl-C"]);
    let body = greeting.split("-d '").nth(1).unwrap().split("'\n").next().unwrap();
    let mut body: serde_json::Value = serde_json::from_str(body).unwrap();
    let model = body["model"].as_str().unwrap().to_owned();
    body["max_tokens"] = json!(4);
    let answer = served.post("/v1/chat/completions", &body);
    assert_eq!(answer["model"], model.as_str());
    // What an SDK does with the base URL of its line.
    let message = json!([{"role": "user", "content": "Hello"}]);
    let request = json!({"model": model, "messages": message, "max_tokens": 4});
    assert_eq!(served.post("/v1/messages", &request)["role"], "assistant");
    let ollama = json!({"model": model, "messages": message, "stream": false, "options": {"num_predict": 4}});
    assert_eq!(served.post("/api/chat", &ollama)["done"], true);
    // And the line for the shell, as it stands. Documents have lines for curl too, so the tests need it.
    let line = greeting.split("\n\n").find(|part| part.contains("curl ")).unwrap();
    let short = line.replace("\"messages\"", "\"max_tokens\":4,\"messages\"");
    let ran = Command::new("sh").args(["-c", &short]).env("no_proxy", "*").output().unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    assert!(text.contains("\"chat.completion\""), "{text}{}", String::from_utf8_lossy(&ran.stderr));
    let (code, last) = served.stop();
    assert_eq!(code, Some(0), "{last}");
    assert!(last.contains("saving the states of the models"), "{last}");
}

// The build of another architecture needs nothing of the kind.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn a_cpu_that_is_too_old_is_told_before_anything_runs() {
    let flags = include_str!("../../../../.cargo/config.toml");
    assert!(flags.contains("x86-64-v3"), "the check is for these flags; take it out when they go");
    for words in [&["--version"][..], &["serve"], &["doctor"]] {
        let ended = refused(poncho().args(words).env("PONCHO_PRETEND_CPU_WITHOUT", "F16C"));
        says(&ended, &["this CPU has no F16C,", "x86-64-v3", "-cpu host"]);
    }
}
