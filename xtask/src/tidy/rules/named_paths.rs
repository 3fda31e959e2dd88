//! Rule: a document names only files and folders that exist.
//!
//! Looked at: links, and code spans that look like a path of this repository. A path may be
//! given from the root or from the folder of the document; the bare name of a source may be that
//! of a file in any folder.

use crate::tidy::document::{code_spans, link_targets, prose};
use crate::tidy::tree::{GENERATED, SOURCE_EXTENSIONS, extension};
use crate::tidy::{Finding, Tree};

/// A code span with a slash and one of these, or the end of a source, is taken for a path.
const EXTENSIONS: [&str; 11] = ["md", "toml", "json", "yml", "yaml", "txt", "svg", "gbnf", "lock", "service", "conf"];

/// A code span that starts with one of these is taken for a path, whatever its end.
const FOLDERS: [&str; 7] = ["crates/", "docs/", "fuzz/", "packaging/", "scripts/", "tests/", "xtask/"];

/// Ends like a source and is none.
const PROJECT: &str = "llama.cpp";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (document, text) in tree.with_extension(&["md"]) {
        for (line, prose) in prose(text) {
            let spans = code_spans(prose).into_iter().filter_map(path_in_span);
            let spans = spans.filter(|named| !exists(tree, document, named) && !is_name_of_source(tree, named));
            let links = link_targets(prose).into_iter().filter_map(path_in_link);
            let links = links.filter(|named| !exists(tree, document, named));
            for named in spans.chain(links) {
                findings.push(Finding::new(
                    document,
                    line,
                    format!("`{named}` does not exist"),
                    "put the name right, or take the sentence out",
                ));
            }
        }
    }
    findings.dedup();
    findings
}

fn path_in_span(span: &str) -> Option<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/:#".contains(c);
    let path = without_place(span);
    let looks_like_one = FOLDERS.iter().any(|folder| path.starts_with(folder))
        || (path != PROJECT && ends_like(path, &SOURCE_EXTENSIONS))
        || (path.contains('/') && ends_like(path, &EXTENSIONS));
    // A span with spaces, stars or braces is a command or a pattern; one that starts with a
    // slash is an address of the server or a path of the user's machine.
    (looks_like_one
        && span.chars().all(is_plain)
        && !span.contains("://")
        && !path.starts_with('/')
        && !is_generated(path))
    .then_some(path)
}

fn ends_like(path: &str, extensions: &[&str]) -> bool {
    extension(path).is_some_and(|found| extensions.contains(&found))
}

fn path_in_link(target: &str) -> Option<&str> {
    let path = without_place(target);
    let elsewhere = target.contains("://") || target.starts_with("mailto:") || path.is_empty();
    (!elsewhere).then_some(path)
}

/// Cuts off `#section` and `:12`.
fn without_place(name: &str) -> &str {
    let name = name.split('#').next().unwrap_or(name);
    match name.rsplit_once(':') {
        Some((path, line)) if line.chars().all(|c| c.is_ascii_digit()) => path,
        _ => name,
    }
}

fn is_generated(path: &str) -> bool {
    path.split('/').next().is_some_and(|first| GENERATED.contains(&first))
}

fn exists(tree: &Tree, document: &str, named: &str) -> bool {
    let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    ["", folder].into_iter().filter_map(|base| resolve(base, named)).any(|path| path.is_empty() || tree.has(&path))
}

/// Whether this is the bare name of a source in some folder.
fn is_name_of_source(tree: &Tree, named: &str) -> bool {
    ends_like(named, &SOURCE_EXTENSIONS) && tree.paths().any(|path| path.rsplit('/').next() == Some(named))
}

/// Joins and removes `.` and `..`; `None` if that leads out of the repository.
fn resolve(base: &str, named: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in base.split('/').chain(named.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::rules::found;

    #[test]
    fn names_of_missing_files_are_found() {
        for text in [
            "`crates/cache/src/gone.rs`",
            "`crates/nothing`",
            "see `src/gone.rs:12` there",
            "[the page](docs/gone.md)",
            "[the page](gone.md#part)",
            "[label]: docs/gone.md",
            "`../outside/a.md`",
            "`gone.rs`",
            "`gone.rs:12`",
            "the script `ey.rs`",
            "`gone.mjs` and `key.rs`",
            "`gone.cpp`",
            "`tests/clients`",
            "`packaging/gone`",
            "a link leads from here: [key](key.rs)",
            "`clients/gone.mjs`",
        ] {
            let findings =
                found(check, &[("docs/a.md", &format!("Title\n\n{text}\n")), ("crates/cache/src/key.rs", "")]);
            assert_eq!(findings.len(), 1, "{text}: {findings:?}");
            assert!(findings[0].starts_with("docs/a.md:3: "), "{}", findings[0]);
        }
    }

    #[test]
    fn existing_files_and_things_that_are_no_paths_pass() {
        let text = "`crates/cache/src/key.rs:7` `crates/cache/` `crates/cache` [b](b.md#x) [c](../README.md)\n\
            [d](docs/b.md) `docs/b.md` <https://x.org/a.md> [e](https://x.org/gone.md) [f](#part)\n\
            `/v1/models.json` `make test` `crates/*/src` `target/doc/index.html` `.tools/env.sh` `and/or` `poncho.toml`\n\
            `key.rs` `key.rs:7` `llama.cpp` `llama-io.h` `opencode.json` `.rs` `*.rs` `mod.rs::name` `x.py y`\n\
            ```\ncrates/gone.rs\n```\n";
        let files = [("docs/a.md", text), ("docs/b.md", ""), ("README.md", ""), ("crates/cache/src/key.rs", "")];
        assert_eq!(found(check, &files), Vec::<String>::new());
    }
}
