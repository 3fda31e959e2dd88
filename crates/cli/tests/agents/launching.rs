//! `poncho launch`: what it would do, what an agent gets, and what it leaves alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use snapbox::{assert_data_eq, file};

use crate::fake_server::{End, FakeServer, Script};
use crate::support::{contents, poncho, run};

const AGENTS: [&str; 8] = ["claude", "codex", "opencode", "aider", "pi", "continue", "goose", "qwen"];

fn server() -> FakeServer {
    FakeServer::start(Script { pieces: vec!["Hi"], end: End::Whole })
}

/// `poncho launch WORDS` in a home folder.
fn launch(home: &Path, url: &str, words: &[&str]) -> Command {
    let mut command = poncho();
    let at = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    command.arg("launch").args(&words[..at]).args(["--url", url]).args(&words[at..]);
    command.env("HOME", home).env_remove("XDG_STATE_HOME").env_remove("ANTHROPIC_API_KEY");
    command
}

#[test]
fn what_each_agent_would_get_equals_its_snapshot() {
    let (server, home) = (server(), tempfile::tempdir().unwrap());
    let mut pages = Vec::new();
    for agent in AGENTS {
        let printed = run(&mut launch(home.path(), &server.url, &[agent, "--print", "--", "do it", "-x"]));
        pages.push(format!("$ poncho launch {agent} --print -- 'do it' -x\n{}", printed.good()));
    }
    let page = pages.join("\n").replace(&server.url, "http://127.0.0.1:PORT");
    assert_data_eq!(page, file!["snapshots/launch.txt"].raw());
    let with_key = run(launch(home.path(), &server.url, &["claude", "--print"]).env("PONCHO_API_KEY", "very-secret"));
    assert!(with_key.good().contains("'<key>'") && !with_key.stdout.contains("very-secret"), "{}", with_key.stdout);
}

/// A program on PATH that writes its arguments, its variables and the files it is pointed at into a folder.
fn fake_agent(folder: &Path, name: &str) -> PathBuf {
    let programs = folder.join("programs");
    fs::create_dir_all(&programs).unwrap();
    let script = "#!/bin/sh\n\
        for word in \"$@\"; do printf '%s\\n' \"$word\"; done > \"$SEEN/arguments\"\n\
        env > \"$SEEN/variables\"\n\
        for word in \"$@\" \"$AIDER_MODEL_METADATA_FILE\" \"$PI_CODING_AGENT_DIR/models.json\"; do\n\
        if [ -f \"$word\" ]; then cat \"$word\" > \"$SEEN/file\"; ls -ld \"$(dirname \"$word\")\" > \"$SEEN/folder\"; fi; done\n\
        exit 7\n";
    let program = programs.join(name);
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    programs
}

/// Settings of the user that must neither be used nor changed.
fn settings_of_a_user(home: &Path) {
    for (path, text) in [
        (".claude/settings.json", r#"{"env": {"ANTHROPIC_BASE_URL": "http://elsewhere"}}"#),
        (".codex/config.toml", "model = \"elsewhere\"\n"),
        (".config/opencode/opencode.json", "{}"),
        (".aider.conf.yml", "model: elsewhere\n"),
        (".pi/agent/models.json", "{}"),
        (".pi/agent/settings.json", "{}"),
        (".continue/config.yaml", "name: mine\n"),
    ] {
        let path = home.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

#[test]
fn an_agent_gets_its_server_and_the_files_of_the_user_stay_as_they_are() {
    let server = server();
    for (agent, program) in [
        ("claude", "claude"),
        ("codex", "codex"),
        ("opencode", "opencode"),
        ("aider", "aider"),
        ("pi", "pi"),
        ("continue", "cn"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (home, seen) = (folder.path().join("home"), folder.path().join("seen"));
        fs::create_dir_all(&seen).unwrap();
        settings_of_a_user(&home);
        let before = contents(&home);
        let programs = fake_agent(folder.path(), program);
        let path = std::env::join_paths(
            std::iter::once(programs).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
        );
        let mut command = launch(&home, &server.url, &[agent, "--", "--own", "a word"]);
        let ended = run(command.env("PATH", path.unwrap()).env("SEEN", &seen).env("ANTHROPIC_API_KEY", "leave-me"));
        assert_eq!(ended.code, Some(7), "{agent}: the exit code is the agent's: {}{}", ended.stdout, ended.stderr);
        assert_eq!(contents(&home), before, "{agent}: a file of the user changed");
        let text = |name: &str| fs::read_to_string(seen.join(name)).unwrap_or_default();
        let everything = text("arguments") + &text("variables") + &text("file");
        for part in [server.url.as_str(), "fake", "32768"] {
            assert!(everything.contains(part), "{agent}: no {part} in {everything}");
        }
        assert!(text("arguments").ends_with("--own\na word\n"), "{agent}: {}", text("arguments"));
        if agent == "claude" {
            assert!(!text("variables").contains("ANTHROPIC_API_KEY="), "it would win over the token");
            let settings: Value = serde_json::from_str(&text("file")).unwrap();
            assert_eq!(settings["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], "32768");
        }
        if agent != "codex" && agent != "opencode" {
            assert!(text("folder").starts_with("drwx------"), "{agent}: others may read it: {}", text("folder"));
        }
        let left = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        let mine = left.filter(|entry| text("arguments").contains(&*entry.path().to_string_lossy()));
        assert_eq!(mine.count(), 0, "{agent}: the temporary folder is still there");
    }
}

#[test]
fn without_an_agent_all_of_them_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let programs = fake_agent(folder.path(), "codex");
    let listed = run(poncho().arg("launch").env("PATH", &programs).env("HOME", folder.path()));
    let text = listed.good();
    for agent in AGENTS {
        assert!(text.lines().any(|line| line.starts_with(agent)), "{agent}: {text}");
    }
    let line = text.lines().find(|line| line.starts_with("codex")).unwrap();
    assert!(line.contains(&*programs.to_string_lossy()), "{line}");
    assert!(text.contains("qwen3:8b"), "{text}");
}

#[test]
fn what_cannot_be_launched_is_explained() {
    let (server, home) = (server(), tempfile::tempdir().unwrap());
    let unknown = run(&mut launch(home.path(), &server.url, &["cladue"]));
    assert!(unknown.failed().contains("did you mean `claude`"), "{}", unknown.stderr);
    let missing = run(launch(home.path(), &server.url, &["claude"]).env("PATH", home.path()));
    assert!(missing.failed().contains("npm install -g @anthropic-ai/claude-code"), "{}", missing.stderr);
    let mut nothing = poncho();
    nothing.args(["launch", "claude", "--print", "--local"]).env("HOME", home.path()).env_remove("XDG_STATE_HOME");
    nothing.env("XDG_DATA_HOME", home.path().join("data"));
    let nothing = run(&mut nothing);
    assert!(nothing.failed().contains("--model"), "a model is proposed: {}", nothing.stderr);
    let mut own = poncho();
    own.args(["launch", "claude", "--print", "--local", "--model", "/models/m.gguf"]).env("HOME", home.path());
    let own = run(&mut own);
    assert!(own.good().contains("starts one in this process with /models/m.gguf"), "{}", own.stdout);
    assert!(own.stdout.contains("export CLAUDE_CODE_MAX_CONTEXT_TOKENS=32768"), "{}", own.stdout);
}
