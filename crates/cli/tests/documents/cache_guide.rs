//! Every example of the guide to the cache commands is run against the prepared folder.
//!
//! In a block marked `console`, a line that starts with `$ poncho` is run; the lines below it must come out in that
//! order, `...` standing for anything. A block with the line `# exits 1` must exit so, any other with 0.

use std::path::Path;

use crate::documents::snippets::{Block, Way, blocks_of};
use crate::support::{Run, branch, poncho, prepare, run};

/// One command of a document and what is printed there below it.
pub(crate) struct Example<'a> {
    pub(crate) command: &'a str,
    pub(crate) expected: Vec<&'a str>,
    pub(crate) code: i32,
}

pub(crate) fn examples(blocks: &[Block]) -> Vec<Example<'_>> {
    let mut examples = Vec::new();
    for block in blocks.iter().filter(|block| block.kind == "console") {
        let code = i32::from(block.body.lines().any(|line| line.trim() == "# exits 1"));
        for line in block.body.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            match line.strip_prefix("$ ") {
                Some(command) => examples.push(Example { command, expected: Vec::new(), code }),
                None => examples.last_mut().unwrap().expected.push(line),
            }
        }
    }
    examples
}

fn execute(command: &str, folder: &Path) -> Run {
    let mut words = command.split_whitespace();
    assert_eq!(words.next(), Some("poncho"), "only poncho is run: {command}");
    run(poncho().args(words).env("PONCHO_CACHE_DIR", folder.join("kv")).current_dir(folder))
}

/// Whether the pieces between the dots stand in the line, in order, the first at its start and the last at its end.
pub(crate) fn matches(pattern: &str, line: &str) -> bool {
    let pieces: Vec<&str> = pattern.split("...").collect();
    let mut rest = line;
    for (number, piece) in pieces.iter().enumerate() {
        let last = number + 1 == pieces.len();
        let found = match number {
            0 if last => return rest == *piece,
            0 => rest.starts_with(piece).then_some(0),
            _ if last => return rest.ends_with(piece),
            _ => rest.find(piece),
        };
        let Some(at) = found else { return false };
        rest = &rest[at + piece.len()..];
    }
    true
}

#[test]
fn every_example_of_the_guide_prints_what_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    prepare(&folder.path().join("kv"));
    let mut prompt = branch();
    prompt.truncate(850);
    prompt[703] = 31_415;
    std::fs::write(folder.path().join("prompt.json"), serde_json::to_string(&prompt).unwrap()).unwrap();
    let blocks = blocks_of(Way::CacheCommands);
    let examples = examples(&blocks);
    assert!(examples.len() >= 10, "the guide shows every command");
    for word in ["ls", "stat", "show", "verify", "gc", "clear", "evict", "explain"] {
        let shown = |example: &Example<'_>| example.command.starts_with(&format!("poncho cache {word}"));
        assert!(examples.iter().any(shown), "no example of {word}");
    }
    for example in examples {
        assert_prints(&example, &execute(example.command, folder.path()));
    }
}

/// The exit code and the lines, in their order.
pub(crate) fn assert_prints(Example { command, expected, code }: &Example<'_>, run: &Run) {
    assert_eq!(run.code, Some(*code), "$ {command}\n{}{}", run.stdout, run.stderr);
    let printed = format!("{}{}", run.stdout, run.stderr);
    let mut lines = printed.lines();
    for pattern in expected.iter().filter(|line| line.trim() != "...") {
        let found = lines.any(|line| matches(pattern.trim_end(), line.trim_end()));
        assert!(found, "$ {command}\ndoes not print\n{pattern}\nbut\n{printed}");
    }
}

#[test]
fn patterns_match_as_they_say() {
    for (pattern, line, expected) in [
        ("abc", "abc", true),
        ("abc", "abcd", false),
        ("a...d", "abcd", true),
        ("a...d", "abce", false),
        ("...b...", "abc", true),
        ("a...b...c", "a-b-b-c", true),
        ("a...a", "a", false),
    ] {
        assert_eq!(matches(pattern, line), expected, "{pattern} / {line}");
    }
}
