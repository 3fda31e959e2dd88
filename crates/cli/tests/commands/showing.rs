//! What a person sees without asking: the start report of `serve`, commands that follow the settings file, the listing
//! of the cache and the version. The session is compared with `nets/snapshots/session.txt`; figures that depend on the
//! machine are masked. `SNAPSHOTS=overwrite` rewrites the file.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use poncho_testkit::{ModelKind, model_path, unused_address};
use serde_json::json;
use snapbox::{assert_data_eq, file};

use crate::served::{Served, request};
use crate::support::{poncho, run};
use crate::terminal::Terminal;

/// Longer than the gate for saved rows.
const PROMPT: &str = "Once upon a time there was a small cache that never forgot a prompt. ";

/// Writes the settings file of a home folder.
fn settings(home: &Path, text: &str) {
    let folder = home.join(".config/poncho");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("poncho.toml"), text).unwrap();
}

/// The binary with this home folder and no other settings.
fn at_home(home: &Path) -> Command {
    let mut command = poncho();
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
    command
}

/// Replaces what depends on the machine.
fn masked(screen: &str, home: &Path, port: u16) -> String {
    let screen = screen.replace(home.to_str().unwrap(), "~").replace(&port.to_string(), "PORT");
    let mut text = String::new();
    for line in screen.trim_end().lines() {
        let line = line.trim_end();
        let line = match line.split_once(": ") {
            Some(("device", _)) => "device:  DEVICE".to_owned(),
            Some((name, _)) if name.ends_with("available before loading") => format!("{name}: FREE"),
            _ => match line.split_once("disk ") {
                Some((before, _)) if before.contains("RAM ") => format!("{before}disk FREE"),
                _ => line.to_owned(),
            },
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Columns with two spaces between them. The key is a hash, and the age depends on the clock.
fn masked_rows(screen: &str) -> String {
    let mut text = String::new();
    for line in screen.trim_end().lines() {
        let mut cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        if let [key, .., age, _] = cells.as_mut_slice()
            && key.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            (*key, *age) = ("HASH", "AGE");
        }
        text.push_str(&(cells.join("  ") + "\n"));
    }
    text
}

/// Everyday use 13 to 15: a person starts a server with a settings file and looks at it with other commands.
#[test]
fn a_session_shows_the_start_the_models_the_rows_and_the_version() {
    let home = tempfile::tempdir().unwrap();
    let port = unused_address().port();
    let model = model_path(ModelKind::Attention);
    let model = model.to_str().unwrap();
    settings(
        home.path(),
        &format!(
            "model = {model:?}\nport = {port}\nparallel = 2\nctx_size = 1024\nthreads = 1\napi_key = \"sk-file\"\nsave_min_tokens = 16\ncache_ram = \"512MiB\"\ncache_size = \"20GiB\"\n"
        ),
    );
    let mut session = String::new();
    let mut serve = Terminal::open(&["serve"], home.path());
    let screen = serve.wait_for("Press Ctrl-C");
    session.push_str(&format!("$ poncho serve\n{}\n", masked(&screen, home.path(), port)));

    let ps = Terminal::open(&["ps"], home.path());
    let (code, screen) = ps.end();
    assert_eq!(code, 0, "it follows the port and the key of the file: {screen}");
    session.push_str(&format!("$ poncho ps\n{}\n", masked(&screen, home.path(), port)));

    let words = ["run", "--max-tokens", "1", "attention", PROMPT];
    let (code, screen) = Terminal::open(&words, home.path()).end();
    assert_eq!(code, 0, "{screen}");
    serve.keys("\u{3}");
    assert_eq!(serve.end().0, 0);

    let (code, screen) = Terminal::open(&["cache", "ls"], home.path()).end();
    assert_eq!(code, 0, "{screen}");
    session.push_str(&format!("$ poncho cache ls\n{}\n", masked_rows(&screen)));
    assert!(screen.contains(" attention ") && screen.contains("Once upon a time"), "{screen}");

    let (_, screen) = Terminal::open(&["-V"], home.path()).end();
    session.push_str(&format!("$ poncho -V\n{}\n\n", screen.trim_end()));
    let (_, screen) = Terminal::open(&["--version"], home.path()).end();
    session.push_str(&format!("$ poncho --version\n{}\n", screen.trim_end()));
    assert_data_eq!(session, file!["../nets/snapshots/session.txt"].raw());
}

#[test]
fn the_short_version_is_one_line_and_the_long_one_names_llama_cpp() {
    let short = run(poncho().arg("-V"));
    assert_eq!(short.good().lines().count(), 1);
    let long = run(poncho().arg("--version"));
    let lines: Vec<&str> = long.good().lines().collect();
    let [first, llama, backends] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!(*first, short.stdout.trim_end());
    assert!(llama.starts_with("llama.cpp ") && llama.contains("llama-cpp-sys-4 "), "{llama}");
    assert!(backends.starts_with("backends: ") && backends.contains("CPU"), "{backends}");
}

/// Everyday use 13: nothing is allocated, and the values in the message fit.
#[test]
fn a_context_that_does_not_fit_is_refused_before_the_model_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |words: &[&str]| {
        let mut command = poncho();
        command.args(["serve", "--cache-dir"]).arg(folder.path().join("kv"));
        // Nothing is left to choose, so nothing is printed about it.
        command.args([
            "--cache-ram",
            "64MiB",
            "--cache-size",
            "1GiB",
            "--cache-type-k",
            "f16",
            "--cache-type-v",
            "f16",
        ]);
        run(command.args(["--port", "0", "--model"]).arg(model_path(ModelKind::Attention)).args(words))
    };
    let wrong = refused(&["--parallel", "64", "--ctx-size", "4000000000"]);
    let said = wrong.failed();
    assert!(said.contains("attention needs ") && said.contains("64 x 4000000000 tokens"), "{said}");
    assert!(said.contains("use --ctx-size ") && said.contains("--memory none skips this check"), "{said}");
    assert!(!folder.path().join("kv").exists(), "the cache is not opened either");
    let mut run_alone = poncho();
    run_alone.args(["run", "--local", "--ctx-size", "4000000000", "--cache-dir"]).arg(folder.path().join("kv"));
    let wrong = run(run_alone.arg(model_path(ModelKind::Attention)).arg("Hello"));
    let said = wrong.failed();
    // One request of a tiny model may fit on a large machine.
    assert!(said.contains("needs ") && !said.contains("--cache-type-k"), "{said}");
}

#[test]
fn a_context_above_the_trained_one_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = poncho();
    command.args(["serve", "--parallel", "1", "--threads", "1", "--cache-dir"]).arg(folder.path().join("kv"));
    command.args(["--port", "0", "--ctx-size", "100000", "--model"]).arg(model_path(ModelKind::Attention));
    let served = Served::start_command(&mut command, folder.path());
    let greeting = &served.greeting;
    assert!(greeting.contains("warning: attention was trained for "), "{greeting}");
    assert!(greeting.contains("use --ctx-size "), "{greeting}");
}

/// Everyday use 15: `OLLAMA_HOST` is the address of clients too.
#[test]
fn clients_follow_the_variable_of_ollama() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path());
    let loaded = run(poncho().args(["ps", "--json"]).env("OLLAMA_HOST", served.address.to_string())).json();
    assert_eq!(loaded[0]["name"], "attention:latest");
    let other = run(poncho().args(["ps"]).env("OLLAMA_HOST", "127.0.0.1:1").env("PONCHO_PORT", "2"));
    assert!(other.failed().contains("127.0.0.1:2"), "PONCHO_PORT wins: {}", other.stderr);
    assert_eq!(request(served.address, "GET", "/health", "").0, 200);
}

#[test]
fn config_names_the_variables_of_other_programs_and_the_server_of_commands() {
    let mut command = poncho();
    command.args(["config", "--json"]).env("OLLAMA_HOST", "0.0.0.0:9000");
    command.env("LLAMA_ARG_THREADS", "3").env("LLAMA_ARG_CTX_SIZE", "4096").env("LLAMA_ARG_N_PARALLEL", "-1");
    let report = run(&mut command).json();
    let setting = |name: &str| &report["settings"][name];
    assert_eq!(*setting("host"), json!({"value": "0.0.0.0", "layer": "other_program", "origin": "OLLAMA_HOST"}));
    assert_eq!(*setting("threads"), json!({"value": 3, "layer": "other_program", "origin": "LLAMA_ARG_THREADS"}));
    assert_eq!(setting("ctx_size")["layer"], "default");
    assert_eq!(report["server"], json!({"url": "http://127.0.0.1:9000", "origin": "OLLAMA_HOST"}));
    let notes = report["notes"].to_string();
    assert!(notes.contains("LLAMA_ARG_CTX_SIZE is not read") && notes.contains("LLAMA_ARG_N_PARALLEL"), "{notes}");
    let text = run(poncho().args(["config"]).env("PONCHO_URL", "http://box.test:1"));
    assert!(text.good().contains("http://box.test:1 (from PONCHO_URL)\n"), "{}", text.stdout);
}

/// A server that records the head of one request.
fn head_of_one_request(listener: TcpListener) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
            head.push(byte[0]);
        }
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
        String::from_utf8(head).unwrap()
    })
}

/// The key of the settings file belongs to the server of that file.
#[test]
fn a_key_of_the_file_is_never_sent_to_a_server_that_is_named() {
    let home = tempfile::tempdir().unwrap();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, other) = (listen(), listen());
    let own_port = own.local_addr().unwrap().port();
    let url = format!("http://{}", other.local_addr().unwrap());
    settings(home.path(), &format!("port = {own_port}\napi_key = \"sk-file\"\n"));
    let (to_own, to_other) = (head_of_one_request(own), head_of_one_request(other));
    assert_eq!(run(at_home(home.path()).arg("ps")).code, Some(1));
    assert_eq!(run(at_home(home.path()).args(["ps", "--url", &url])).code, Some(1));
    assert!(to_own.join().unwrap().contains("sk-file"));
    let sent = to_other.join().unwrap();
    assert!(!sent.contains("sk-file"), "{sent}");
}
