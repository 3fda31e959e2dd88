//! Rule: a test that a table names exists.
//!
//! In a table with a column headed "Test" (or "Tests"), every code span of that column is the
//! name of a test function, with or without its module path, or the name of a test script.

use std::collections::BTreeSet;

use super::document::{code_spans, prose, table_cells};
use super::rust_source::code_only;
use super::{Finding, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let known = known_names(tree);
    let mut findings = Vec::new();
    for (document, text) in tree.with_extension(&["md"]) {
        // The column of the table that the current line belongs to, once its header is read.
        let mut table: Option<Option<usize>> = None;
        for (line, prose) in prose(text) {
            let Some(cells) = table_cells(prose) else {
                table = None;
                continue;
            };
            let Some(column) = table else {
                table = Some(cells.iter().position(|cell| ["test", "tests"].contains(&cell.to_lowercase().as_str())));
                continue;
            };
            let cell = column.and_then(|column| cells.get(column)).copied().unwrap_or_default();
            for name in code_spans(cell).into_iter().filter_map(test_name).filter(|name| !known.contains(*name)) {
                findings.push(Finding::new(
                    document,
                    line,
                    format!("there is no test `{name}`"),
                    "write the test, or name the one that covers it",
                ));
            }
        }
    }
    findings
}

/// The function name at the end of a path such as `publish::a_torn_row_is_never_seen`.
fn test_name(span: &str) -> Option<&str> {
    let name = span.rsplit("::").next()?.trim_end_matches("()");
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

/// Every function of the Rust files, and every script by the stem of its name.
fn known_names(tree: &Tree) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, text) in tree.with_extension(&["rs"]) {
        for rest in code_only(text).split("fn ").skip(1) {
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let after = rest.get(name.len()..).unwrap_or_default();
            if after.starts_with('(') || after.starts_with('<') {
                names.insert(name.to_owned());
            }
        }
    }
    for path in tree.paths().filter(|path| [".py", ".sh", ".js", ".ts"].iter().any(|end| path.ends_with(end))) {
        let name = path.rsplit('/').next().unwrap_or(path);
        names.extend(name.rsplit_once('.').map(|(stem, _)| stem.to_owned()));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::found;

    const CODE: (&str, &str) =
        ("crates/a/tests/main.rs", "//! x\n#[test]\nfn torn_rows_are_dropped() {}\n// fn only_a_comment() {}\n");

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        let table = "| Promise | Test |\n| --- | --- |\n| a | `torn_rows_are_dropped` |\n| b | `gone_test`, `publish::only_a_comment` |\n";
        let findings = found(check, &[CODE, ("docs/publish.md", table)]);
        assert_eq!(findings.len(), 2, "{findings:#?}");
        assert!(findings[0].starts_with("docs/publish.md:4: there is no test `gone_test`"), "{}", findings[0]);
        assert!(findings[1].contains("`only_a_comment`"), "{}", findings[1]);
    }

    #[test]
    fn existing_tests_scripts_and_other_columns_pass() {
        let text = "| Promise | tests | Note |\n|---|---|---|\n| a | `main::torn_rows_are_dropped()` | `not_a_test` |\n\
            | b | `kill_it` and `docs/x.md` | |\n\n`not_a_test` in a sentence.\n\n\
            | Word | Meaning |\n| --- | --- |\n| `some_word` | `other_word` |\n";
        let files = [CODE, ("docs/publish.md", text), ("scripts/kill_it.py", "# x\n")];
        assert_eq!(found(check, &files), Vec::<String>::new());
    }
}
