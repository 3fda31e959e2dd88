//! Every example of the guide to chat is run: commands in a shell beside a served model, the conversation in a terminal.
//!
//! Blocks marked `console` are as in the guide to the cache commands. In the block marked `chat`, lines after `>>>` are
//! typed, and the lines between them must show in that order.

use std::path::Path;
use std::process::Command;

use poncho_testkit::{ModelKind, model_path};

use crate::documents::cache_guide::{Example, examples, matches};
use crate::documents::snippets::{Way, blocks_of};
use crate::served::Served;
use crate::support::{Run, run};
use crate::terminal::Terminal;

/// A shell that finds the binary, the served model at the default address, and nothing of this machine's user.
fn shell(command: &str, home: &Path, port: &str) -> Run {
    let folder = Path::new(env!("CARGO_BIN_EXE_poncho")).parent().unwrap();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).env_clear().current_dir(home).env("HOME", home).env("PONCHO_PORT", port);
    run(shell.env("PATH", format!("{}:/usr/bin:/bin", folder.display())))
}

#[test]
fn every_command_of_the_guide_prints_what_it_shows() {
    let home = tempfile::tempdir().unwrap();
    let model = home.path().join("model.gguf");
    std::fs::copy(model_path(ModelKind::Attention), &model).unwrap();
    let served = Served::start_model(&model, home.path());
    let port = served.address.port().to_string();
    let blocks = blocks_of(Way::ChatCommands);
    let examples = examples(&blocks);
    for word in ["run", "ps", "embed", "tokenize", "top"] {
        let shown = |example: &Example<'_>| example.command.contains(&format!("poncho {word}"));
        assert!(examples.iter().any(shown), "no example of {word}");
    }
    for Example { command, expected, code } in examples {
        let run = shell(command, home.path(), &port);
        assert_eq!(run.code, Some(code), "$ {command}\n{}{}", run.stdout, run.stderr);
        assert!(code != 0 || !run.stdout.is_empty(), "$ {command}");
        let printed = format!("{}{}", run.stdout, run.stderr);
        let mut lines = printed.lines();
        for pattern in expected.into_iter().filter(|line| line.trim() != "...") {
            let found = lines.any(|line| matches(pattern.trim(), line.trim()));
            assert!(found, "$ {command}\ndoes not print\n{pattern}\nbut\n{printed}");
        }
    }
}

#[test]
fn the_conversation_of_the_guide_goes_as_it_is_shown() {
    let home = tempfile::tempdir().unwrap();
    std::fs::copy(model_path(ModelKind::Attention), home.path().join("model.gguf")).unwrap();
    let blocks = blocks_of(Way::Conversation);
    let [block] = &blocks[..] else { panic!("one conversation: {blocks:?}") };
    let mut lines = block.body.lines();
    let command = lines.next().unwrap().strip_prefix("$ poncho ").unwrap();
    // A server at the default address of this machine is left alone.
    let words: Vec<&str> = command.split_whitespace().chain(["--local", "--threads", "1"]).collect();
    let mut terminal = Terminal::open(&words, home.path());
    let mut shown = Vec::new();
    for line in lines.filter(|line| line.trim() != "...") {
        let Some(keys) = line.strip_prefix(">>> ") else {
            shown.push(line);
            let all_shown = |screen: &str| {
                let mut lines = screen.lines();
                shown.iter().all(|pattern| lines.any(|line| matches(pattern, line.trim_end())))
            };
            terminal.wait(line, all_shown);
            continue;
        };
        terminal.wait_for_prompt();
        terminal.keys(&format!("{keys}\r"));
    }
    assert_eq!(terminal.end().0, 0);
    assert!(home.path().join("talk.json").is_file());
}
