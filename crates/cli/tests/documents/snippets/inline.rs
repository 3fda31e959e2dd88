//! Commands inside sentences and tables: each names a command, a flag or a target that is there.
//!
//! They are not run, because a sentence names only the part that it speaks of.

use std::collections::BTreeMap;

use super::root;
use crate::support::{poncho, run};

/// The spans between single backticks, outside of fenced blocks.
fn spans(text: &str) -> Vec<String> {
    let mut is_fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    let paragraphs = prose.split("\n\n");
    paragraphs.flat_map(|text| text.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " "))).collect()
}

/// What `poncho WORDS --help` prints; the commands are asked once each.
struct Helps(BTreeMap<Vec<String>, String>);

impl Helps {
    fn of(&mut self, words: &[&str]) -> &str {
        let key: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        self.0.entry(key).or_insert_with(|| run(poncho().args(words).arg("--help")).good().to_owned())
    }

    /// Whether a word is a command below those.
    fn has_command(&mut self, words: &[&str], name: &str) -> bool {
        let help = self.of(words);
        let commands = help.split("\nCommands:\n").nth(1).unwrap_or("").split("\n\n").next().unwrap_or("");
        commands.lines().any(|line| line.split_whitespace().next() == Some(name))
    }
}

fn is_flag(help: &str, flag: &str) -> bool {
    help.split(|letter: char| !(letter.is_alphanumeric() || letter == '-')).any(|word| word == flag)
}

#[test]
fn commands_in_sentences_name_what_is_there() {
    let mut helps = Helps(BTreeMap::new());
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut documents = vec!["README.md".into(), "CONTRIBUTING.md".into(), "ARCHITECTURE.md".into()];
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = std::path::PathBuf::from(entry.unwrap().file_name());
        if name.extension().is_some_and(|extension| extension == "md") {
            documents.push(std::path::Path::new("docs").join(name));
        }
    }
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for document in documents {
        for span in spans(&std::fs::read_to_string(root().join(&document)).unwrap()) {
            let words: Vec<&str> = span.split_whitespace().collect();
            match words.as_slice() {
                ["make", target, ..] => {
                    seen += 1;
                    if !makefile.contains(&format!("\n{target}:")) {
                        wrong.push(format!("{}: `{span}`: make has no {target}", document.display()));
                    }
                }
                ["poncho", name, ..] if name.starts_with(char::is_lowercase) => {
                    seen += 1;
                    let mut depth = 1;
                    let mut command: &[&str] = &[];
                    while let Some(next) = words.get(depth)
                        && helps.has_command(command, next.trim_end_matches(','))
                    {
                        command = &words[1..=depth];
                        depth += 1;
                    }
                    if command.is_empty() {
                        wrong.push(format!("{}: `{span}`: there is no such command", document.display()));
                        continue;
                    }
                    for flag in words[depth..].iter().filter(|word| word.starts_with("--")) {
                        let flag = flag.split(['=', ',', ']']).next().unwrap();
                        if !is_flag(helps.of(command), flag) {
                            wrong.push(format!("{}: `{span}`: it has no {flag}", document.display()));
                        }
                    }
                }
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 50, "{seen} commands were found");
}
