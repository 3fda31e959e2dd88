//! `pull`, `list`, `show`, `rm`, `cp` and `create`: what they print, how they exit, what they leave in the folder.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use poncho_testkit::{ModelKind, adapter_path, model_path};
use serde_json::Value;

use crate::support::{Run, poncho, run, run_with_input};

/// The binary with a home of its own, in the folder that the test works in.
pub(crate) fn at_home(folder: &Path) -> Command {
    let mut command = poncho();
    for name in ["PONCHO_MODELS_DIR", "XDG_DATA_HOME", "HF_TOKEN", "HF_ENDPOINT"] {
        command.env_remove(name);
    }
    command.env("HOME", folder.join("home")).current_dir(folder);
    command
}

fn models(folder: &Path, words: &[&str]) -> Run {
    run(at_home(folder).args(words).arg("--models-dir").arg("models"))
}

/// A folder with a tiny model and an adapter for it.
pub(crate) fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(model_path(ModelKind::Attention), folder.path().join("tiny.gguf")).unwrap();
    fs::copy(adapter_path(), folder.path().join("lora.gguf")).unwrap();
    folder
}

#[test]
fn a_model_lives_through_all_commands() {
    let place = place();
    let folder = place.path();
    let pulled = models(folder, &["pull", "./tiny.gguf", "--name", "Tiny:1"]);
    assert_eq!(pulled.code, Some(0), "{}", pulled.stderr);
    assert!(pulled.stdout.starts_with("installed tiny:1 ("), "{}", pulled.stdout);
    assert!(pulled.stderr.contains("checking ./tiny.gguf"), "plain lines without a terminal: {}", pulled.stderr);
    assert!(!pulled.stderr.contains('\u{1b}'), "{:?}", pulled.stderr);
    assert!(models(folder, &["cp", "tiny:1", "gpt-4o"]).good().contains("gpt-4o:latest"));
    let listed = models(folder, &["list", "--json"]).json();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["gpt-4o:latest", "tiny:1"]);
    let table = models(folder, &["list"]);
    assert!(table.good().starts_with("NAME") && table.stdout.contains("tiny:1"), "{}", table.stdout);
    let shown = models(folder, &["show", "tiny:1", "--json"]).json();
    let path = folder.join(shown["path"].as_str().unwrap());
    assert_eq!(fs::read(&path).unwrap(), fs::read(folder.join("tiny.gguf")).unwrap());
    assert_eq!(shown["manifest"]["facts"]["architecture"], "llama");
    assert_eq!(shown["bytes"].as_u64().unwrap(), fs::metadata(&path).unwrap().len());
    assert!(models(folder, &["rm", "tiny:1"]).good().contains("still uses"));
    assert!(path.exists());
    assert!(models(folder, &["rm", "gpt-4o"]).good().contains("freed"));
    assert!(!path.exists() && folder.join("tiny.gguf").exists());
    assert_eq!(models(folder, &["list", "--json"]).json(), Value::Array(Vec::new()));
}

#[test]
fn a_modelfile_makes_a_model_and_comes_back_out() {
    let place = place();
    let folder = place.path();
    fs::create_dir(folder.join("sub")).unwrap();
    fs::rename(folder.join("tiny.gguf"), folder.join("sub/tiny.gguf")).unwrap();
    fs::rename(folder.join("lora.gguf"), folder.join("sub/lora.gguf")).unwrap();
    let text = "FROM ./tiny.gguf\nADAPTER ./lora.gguf\nPARAMETER temperature 0.2\nPARAMETER stop END\nSYSTEM \"\"\"Be\nbrief.\"\"\"\n";
    fs::write(folder.join("sub/Modelfile"), text).unwrap();
    let created = models(folder, &["create", "brief", "-f", "sub/Modelfile"]);
    assert_eq!((created.code, created.stdout.as_str()), (Some(0), "created brief:latest\n"), "{}", created.stderr);
    let shown = models(folder, &["show", "brief", "--json"]).json();
    assert_eq!(shown["manifest"]["system"], "Be\nbrief.");
    assert_eq!(shown["manifest"]["parameters"], serde_json::json!({"stop": ["END"], "temperature": 0.2}));
    assert_eq!(shown["adapter_paths"].as_array().unwrap().len(), 1);
    let printed = models(folder, &["show", "brief", "--modelfile"]);
    let again =
        run_with_input(at_home(folder).args(["create", "again", "-f", "-", "--models-dir", "models"]), printed.good());
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    let (one, two) = (shown, models(folder, &["show", "again", "--json"]).json());
    for field in ["system", "parameters", "model", "adapters"] {
        assert_eq!(one["manifest"][field], two["manifest"][field], "{field}");
    }
    fs::write(folder.join("sub/Modelfile"), "FROM brief\n\nPARAMETER heat 3\n").unwrap();
    let refused = models(folder, &["create", "x", "-f", "sub/Modelfile"]);
    assert!(refused.failed().contains("line 3"), "{}", refused.stderr);
    assert!(models(folder, &["create", "x"]).failed().contains("-f FILE"));
}

/// Everyday use 9: a template that cannot be used was replaced by the model's own, and parameters without effect stored.
#[test]
fn a_modelfile_that_cannot_be_used_is_refused_when_it_is_created() {
    let place = place();
    let folder = place.path();
    let create = |lines: &str| {
        fs::write(folder.join("Modelfile"), format!("FROM ./tiny.gguf\n{lines}\n")).unwrap();
        models(folder, &["create", "made", "-f", "Modelfile"])
    };
    for (lines, expected) in [
        (
            "TEMPLATE {% for m in messages %}{{ m.content }}",
            "llama.cpp cannot parse it and prints why on standard error; correct it",
        ),
        ("TEMPLATE {% if true %}hello{% endif %}", "it does not write the messages"),
        ("TEMPLATE {{ range .Messages }}x{{ end }}", "{{ range .Messages }} is not understood"),
        ("TEMPLATE Answer:", "write {{ .Prompt }}"),
        ("PARAMETER low_vram 1", "`low_vram` has no effect"),
        ("PARAMETER use_mmap often", "must be true or false"),
        ("PARAMETER temprature 1", "did you mean `temperature`"),
    ] {
        let refused = create(lines);
        // llama.cpp prints its own lines before the error.
        assert!(refused.code == Some(1) && refused.stderr.contains(expected), "{lines}: {}", refused.stderr);
    }
    assert_eq!(models(folder, &["list", "--json"]).json(), Value::Array(Vec::new()), "nothing was installed");
    let made = create("TEMPLATE {% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!(made.stdout, "created made:latest\n", "{}", made.stderr);
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let place = place();
    let folder = place.path();
    models(folder, &["pull", "./tiny.gguf", "--name", "tiny:1"]);
    fs::write(folder.join("page.gguf"), "<!DOCTYPE html>").unwrap();
    for (words, expected) in [
        (&["show", "tyni:1"][..], "did you mean `tiny:1`"),
        (&["rm", "tiny"], "did you mean `tiny:1`"),
        (&["cp", "none", "x"], "poncho list"),
        (&["show", "smollm2:135m"], "poncho pull smollm2:135m"),
        (&["pull", "smolm2:135m"], "did you mean `smollm2:135m`"),
        (&["pull", "./page.gguf"], "an HTML page"),
        (&["pull", "./none.gguf"], "none.gguf"),
        (&["pull", "./lora.gguf"], "ADAPTER"),
    ] {
        let refused = models(folder, words);
        assert!(
            refused.stderr.contains("error: ") && refused.stderr.contains(expected),
            "{words:?}: {}",
            refused.stderr
        );
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{words:?}");
    }
    for words in [
        &["pull"][..],
        &["pull", ""],
        &["pull", "hf:owner"],
        &["pull", "tiny", "--sha256", "abc"],
        &["show", "../../etc/passwd"],
        &["rm"],
        &["rm", "a b"],
        &["cp", "one"],
        &["list", "--colour"],
    ] {
        let refused = models(folder, words);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{words:?}: {}", refused.stderr);
    }
}

#[test]
fn the_folder_is_the_flag_the_variable_or_the_home() {
    let place = place();
    let folder = place.path();
    let pull = |command: &mut Command| assert_eq!(run(command.args(["pull", "./tiny.gguf"])).code, Some(0));
    assert!(run(at_home(folder).args(["list", "--json"])).good().contains("[]"));
    assert!(!folder.join("home").exists(), "looking makes no folder");
    pull(&mut at_home(folder));
    assert!(folder.join("home/.local/share/poncho/models/blobs").is_dir());
    pull(at_home(folder).env("XDG_DATA_HOME", folder.join("data")));
    assert!(folder.join("data/poncho/models/blobs").is_dir());
    pull(at_home(folder).env("PONCHO_MODELS_DIR", folder.join("own")));
    assert!(folder.join("own/blobs").is_dir());
}

#[test]
fn a_download_is_told_as_json_lines() {
    let place = place();
    let bytes = fs::read(place.path().join("tiny.gguf")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/Tiny-F16.gguf", listener.local_addr().unwrap());
    let total = bytes.len();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.extend(byte);
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", bytes.len());
        stream.write_all(&[head.as_bytes(), &bytes].concat()).unwrap();
    });
    let pulled = models(place.path(), &["pull", &url, "--json"]);
    server.join().unwrap();
    let lines: Vec<Value> = pulled.good().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |status: &str| lines.iter().filter(|line| line["status"] == status).collect::<Vec<_>>();
    let last = of("downloading").pop().unwrap();
    assert_eq!((last["completed"].as_u64(), last["total"].as_u64()), (Some(total as u64), Some(total as u64)));
    assert!(!of("verifying").is_empty() && !of("installing").is_empty());
    assert_eq!(lines.last().unwrap()["model"]["name"], "tiny:f16");
}

#[test]
fn damage_is_found_on_request() {
    let place = place();
    let folder = place.path();
    models(folder, &["pull", "./tiny.gguf", "--name", "tiny"]);
    assert_eq!(models(folder, &["show", "tiny", "--verify"]).code, Some(0));
    let shown = models(folder, &["show", "tiny", "--json"]).json();
    let path = folder.join(shown["path"].as_str().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    let refused = models(folder, &["show", "tiny", "--verify"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("is damaged"), "{}", refused.stderr);
}

#[test]
fn the_catalogue_is_listed_with_the_default_first() {
    let folder = tempfile::tempdir().unwrap();
    let entries = models(folder.path(), &["list", "--catalogue", "--json"]).json();
    assert_eq!(entries[0]["name"], "smollm2:135m");
    assert!(models(folder.path(), &["list", "--catalogue"]).good().contains("qwen3:0.6b"));
}
