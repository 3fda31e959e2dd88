//! Rule: every source file opens by saying what it holds.
//!
//! Rust files start with `//!`, C++ with `//`, scripts with a comment after the `#!` line. What the header says
//! is for reviewers; that there is one is for this rule.

use crate::tidy::tree::extension;
use crate::tidy::{Finding, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources()
        .filter_map(|(path, text)| {
            let marks = header_marks(path);
            let line = if text.starts_with("#!") && !text.starts_with("#![") { 2 } else { 1 };
            let opening = text.lines().nth(line - 1).unwrap_or_default();
            let says_something = marks
                .iter()
                .filter_map(|mark| opening.strip_prefix(mark))
                .any(|rest| rest.contains(|c: char| c.is_alphanumeric()));
            let wanted = marks.first().copied().unwrap_or_default();
            (!says_something).then(|| {
                Finding::new(
                    path,
                    line,
                    "the file has no header",
                    format!("open it with `{wanted}` lines: what it holds, who calls it, what it must never do"),
                )
            })
        })
        .collect()
}

fn header_marks(path: &str) -> &'static [&'static str] {
    match extension(path) {
        Some("rs") => &["//!"],
        Some("py") => &["#", "\"\"\""],
        Some("sh") | None => &["#"],
        Some("cpp") => &["//"],
        _ => &["//", "/*"],
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::rules::found;

    #[test]
    fn a_file_without_header_is_found() {
        let findings = found(
            check,
            &[
                ("crates/a/src/lib.rs", "use std::fs;\n"),
                ("crates/a/tests/main.rs", "// A plain comment.\n"),
                ("crates/a/benches/b.rs", "//!\n//! The first line says nothing.\n"),
                ("scripts/a.sh", "#!/bin/sh\nset -eu\n"),
                ("scripts/b.py", "import os\n"),
                ("crates/a/tests/c.js", "'use strict';\n"),
                ("xtask/src/empty.rs", ""),
                ("xtask/src/attribute.rs", "#![no_std]\n//! Too late.\n"),
                ("tests/clients/a.py", "import os\n"),
                ("tests/clients/a.test.mjs", "import assert from \"node:assert\";\n"),
                (".ci/run", "#!/bin/sh\nexec make test\n"),
                ("scripts/tool", "#!/usr/bin/env python3\nimport os\n"),
                ("crates/a/src/a.cpp", "/* Another form. */\n"),
                ("crates/a/src/b.cpp", "#include <vector>\n// Too late.\n"),
            ],
        );
        assert_eq!(findings.len(), 14, "{findings:#?}");
        assert!(findings.iter().any(|line| line.starts_with("scripts/a.sh:2: the file has no header")));
        assert!(findings.iter().any(|line| line.starts_with("xtask/src/attribute.rs:1:")));
    }

    #[test]
    fn headers_of_every_kind_are_accepted() {
        let files = [
            ("crates/a/src/lib.rs", "//! Holds the store.\nuse std::fs;\n"),
            ("scripts/a.sh", "#!/bin/sh\n# Installs things.\n"),
            ("scripts/b.py", "\"\"\"Compares things.\"\"\"\n"),
            ("crates/a/tests/c.js", "// Talks to the server.\n"),
            ("examples/outside.rs", "fn main() {}\n"),
            ("tests/clients/a.test.mjs", "// Talks to the server.\n"),
            (".ci/run", "#!/bin/sh\n# What CI runs.\n"),
            (".ci/notes", "no program\n"),
            ("fuzz/seeds/seed-root", "KVC1\n"),
            ("crates/a/src/a.cpp", "// Holds states.\n#include <vector>\n"),
        ];
        assert_eq!(found(check, &files), Vec::<String>::new());
    }
}
