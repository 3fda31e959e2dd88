//! Rule: a test that a document names exists, and is a test.
//!
//! In a table with a column headed "Test" (or "Tests"), every code span of that column is the
//! name of a test function, with or without its module path, or the name of a test script.
//! Anywhere else a code span of five words and more is taken for such a name.

use std::collections::BTreeSet;

use crate::tidy::document::{code_spans, prose, table_cells};
use crate::tidy::rust_source::code_only;
use crate::tidy::{Finding, Tree};

/// A name of this many words reads like that of a test; metrics, which begin alike, do not.
const WORDS_OF_A_TEST: usize = 5;
const METRIC: &str = "poncho_";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let known = known_names(tree);
    let mut findings = Vec::new();
    for (document, text) in tree.with_extension(&["md"]) {
        // The column of the table that the current line belongs to, once its header is read.
        let mut table: Option<Option<usize>> = None;
        for (line, prose) in prose(text) {
            let mut cell = "";
            match (table_cells(prose), table) {
                (None, _) => table = None,
                (Some(cells), None) => table = Some(test_column(&cells)),
                (Some(cells), Some(column)) => {
                    cell = column.and_then(|column| cells.get(column)).copied().unwrap_or_default();
                }
            }
            let promised = code_spans(cell).into_iter().filter_map(test_name);
            let mentioned = code_spans(prose).into_iter().filter_map(test_name).filter(|name| reads_like_a_test(name));
            let named: BTreeSet<&str> = promised.chain(mentioned).collect();
            for name in named.into_iter().filter(|name| !known.contains(*name)) {
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

fn test_column(header: &[&str]) -> Option<usize> {
    header.iter().position(|cell| ["test", "tests"].contains(&cell.to_lowercase().as_str()))
}

fn reads_like_a_test(name: &str) -> bool {
    name.split('_').filter(|word| !word.is_empty()).count() >= WORDS_OF_A_TEST && !name.starts_with(METRIC)
}

/// Whether the code before a `fn` ends with the attributes of a test: `#[test]`, `#[tokio::test(..)]`.
/// A function in a `proptest!` block has them too, else nothing runs it.
fn ends_with_test_attribute(before: &str) -> bool {
    let own = before.rsplit(['{', '}', ';']).next().unwrap_or(before);
    own.split("#[").skip(1).any(|attribute| {
        let path = attribute.split([']', '(', ' ', '\n']).next().unwrap_or_default();
        path.rsplit("::").next() == Some("test")
    })
}

/// Every test function of the Rust files, and every script by the stem of its name.
fn known_names(tree: &Tree) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, text) in tree.with_extension(&["rs"]) {
        let code = code_only(text);
        for (at, word) in code.match_indices("fn ") {
            let (before, rest) = (code.get(..at).unwrap_or_default(), code.get(at + word.len()..).unwrap_or_default());
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            if !name.is_empty() && ends_with_test_attribute(before) {
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
    use crate::tidy::rules::found;

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
    fn a_function_that_is_no_test_is_found() {
        let code = "//! x\nfn helper() {}\n#[cfg(test)]\nfn only_in_tests() {}\n#[test]\nfn real() { fn inner() {} }\n\
            #[expect(clippy::test, reason = \"x\")]\nfn expected() {}\n";
        let table =
            "| Promise | Test |\n| --- | --- |\n| a | `helper`, `only_in_tests`, `inner`, `expected`, `real` |\n";
        let findings = found(check, &[("crates/a/src/lib.rs", code), ("docs/publish.md", table)]);
        assert_eq!(findings.len(), 4, "{findings:#?}");
    }

    #[test]
    fn tests_of_every_kind_are_known() {
        let code = "//! x\n#[test]\n#[cfg(unix)]\nfn plain() {}\n#[cfg(unix)]\n#[test] // Slow.\npub(crate) fn shown() {}\n\
            #[tokio::test(flavor = \"multi_thread\", worker_threads = 2)]\nasync fn asynchronous() {}\n\
            proptest! {\n    #![proptest_config(Config { cases: 4, ..Config::default() })]\n    #[test]\n    \
            fn property(x in 0..4) { f(x); }\n\n    /// Said.\n    #[test]\n    fn second(x in any::<u8>()) {}\n}\n";
        let table =
            "| Promise | Test |\n| --- | --- |\n| a | `plain`, `shown`, `asynchronous`, `property`, `second` |\n";
        let files = [("crates/a/src/lib.rs", code), ("docs/publish.md", table)];
        assert_eq!(found(check, &files), Vec::<String>::new());
    }

    #[test]
    fn a_name_in_a_sentence_that_reads_like_a_test_is_looked_up() {
        let text = "Shown by `torn_rows_are_dropped`, `a_row_that_is_gone_stays_gone` and\n`main::a_second_one_that_is_gone()`.\n\n\
            `first_token_median_ms` is a field, `poncho_cache_tier_off_disk_total` a metric, `A_B_C_D_E_F` a constant.\n\
            ```\n`a_row_that_is_in_a_block`\n```\n";
        let findings = found(check, &[CODE, ("docs/a.md", text)]);
        assert_eq!(findings.len(), 2, "{findings:#?}");
        assert!(
            findings[0].starts_with("docs/a.md:1: there is no test `a_row_that_is_gone_stays_gone`"),
            "{}",
            findings[0]
        );
        assert!(findings[1].starts_with("docs/a.md:2: "), "{}", findings[1]);
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
