//! Rule: no source file grows past 800 lines, its tests included.
//!
//! Only flat tables may (lists of flags, wire types), each named here with its reason.

use crate::tidy::{Finding, Tree};

/// Three hundred lines is the aim, five hundred a reason to talk, this is the end.
const MAX_LINES: usize = 800;

/// Path and reason of each flat table that may be longer.
const FLAT_TABLES: &[(&str, &str)] = &[];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, FLAT_TABLES)
}

fn check_with(tree: &Tree, exempt: &[(&str, &str)]) -> Vec<Finding> {
    let too_long =
        tree.sources().filter(|(path, _)| !exempt.iter().any(|(table, _)| table == path)).filter_map(|(path, text)| {
            let lines = text.lines().count();
            (lines > MAX_LINES).then(|| {
                Finding::new(
                    path,
                    MAX_LINES + 1,
                    format!("the file has {lines} lines, {MAX_LINES} is the limit"),
                    "split it by noun; a flat table may be exempted in xtask/src/tidy/rules/size.rs with a reason",
                )
            })
        });
    let stale = exempt.iter().filter(|(table, _)| !tree.has(table)).map(|(table, reason)| {
        Finding::new(
            table,
            1,
            format!("the file is exempted from the size rule ({reason}) but does not exist"),
            "take it out of the list in xtask/src/tidy/rules/size.rs",
        )
    });
    too_long.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::rules::found;

    fn lines(count: usize) -> String {
        "//! x\n".repeat(count)
    }

    #[test]
    fn the_801st_line_is_found() {
        let findings = found(check, &[("crates/a/src/lib.rs", &lines(801)), ("scripts/a.py", &lines(1000))]);
        assert_eq!(findings.len(), 2);
        assert!(findings[0].starts_with("crates/a/src/lib.rs:801: the file has 801 lines"), "{}", findings[0]);
    }

    #[test]
    fn every_kind_of_source_is_counted() {
        let long = lines(801);
        let program = format!("#!/bin/sh\n{long}");
        let files = [
            ("crates/a/src/a.cpp", long.as_str()),
            ("tests/clients/a.py", &long),
            ("tests/clients/a.test.mjs", &long),
            (".ci/run", &program),
        ];
        assert_eq!(found(check, &files).len(), files.len());
    }

    #[test]
    fn eight_hundred_lines_and_long_documents_pass() {
        let files = [("crates/a/src/lib.rs", lines(800)), ("docs/long.md", lines(2000)), ("Cargo.lock", lines(2000))];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        assert_eq!(found(check, &files), Vec::<String>::new());
    }

    #[test]
    fn an_exempted_table_passes_until_it_is_gone() {
        let exempt = [("crates/a/src/flags.rs", "one flag a line")];
        let long = lines(900);
        assert_eq!(check_with(&Tree::of(&[("crates/a/src/flags.rs", &long)]), &exempt), Vec::new());
        assert_eq!(check_with(&Tree::of(&[("crates/a/src/other.rs", "//! x\n")]), &exempt).len(), 1);
    }
}
