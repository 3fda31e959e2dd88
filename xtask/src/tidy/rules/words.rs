//! Rule: documents, comments and messages use standard technical English.
//!
//! The list holds words and phrases that are vague, dated or not idiomatic, each with something better. There are no
//! exceptions for single lines: rewrite the sentence.

use crate::tidy::text::{Word, words};
use crate::tidy::{Finding, Tree};

/// The phrase, and what to write instead.
const AVOIDED: [(&str, &str); 20] = [
    ("anew", "write `again`"),
    ("any more", "write `no longer` or `still`"),
    ("anybody hears", "say who is notified"),
    ("for ever", "write `forever` or `indefinitely`"),
    ("found out", "write `detected`"),
    ("finds out", "write `detects`"),
    ("hears of", "write `is notified of`"),
    ("in the own", "write `in its own`"),
    ("in vain", "say what is wasted"),
    ("is told", "say who reports what"),
    ("are told", "say who reports what"),
    ("says no", "write `refuses` or `rejects`"),
    ("so many", "give the number, or write `that many`"),
    ("tells", "write `says`, `reports` or `shows`"),
    ("what holds", "name the thing: the effective settings, the invariants"),
    ("whoever", "name the caller"),
    ("whomever", "name the caller"),
    ("whose", "write `with`, `of which` or a second sentence"),
    ("is no", NOT_A),
    ("are no", NOT_A),
];

const NOT_A: &str = "write `is not a` or `are not`";

/// `is no longer` and `is no better` are English, and so is `there is no`.
const FINE_AFTER_NO: [&str; 8] = ["better", "different", "fewer", "larger", "less", "longer", "more", "worse"];

/// Paths that the rule does not cover yet, with everything below them. The aim is an empty list.
const NOT_YET: &[&str] = &["crates/engine/src/chat/delta.rs"];

/// This file has to spell them.
const OWN_FILE: &str = "xtask/src/tidy/rules/words.rs";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    check_without(tree, tree.exempt(NOT_YET))
}

fn check_without(tree: &Tree, not_yet: &[&str]) -> Vec<Finding> {
    let is_covered = |path: &str| {
        path != OWN_FILE
            && !not_yet
                .iter()
                .any(|prefix| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension(&["md"]).chain(tree.sources()).filter(|(path, _)| is_covered(path)) {
        let words = words(path, text);
        for (phrase, advice) in AVOIDED {
            for line in lines_with_phrase(&words, phrase) {
                findings.push(Finding::new(path, line, format!("`{phrase}` is not plain English"), advice));
            }
        }
    }
    findings
}

fn lines_with_phrase(words: &[Word], phrase: &str) -> Vec<usize> {
    let wanted: Vec<&str> = phrase.split(' ').collect();
    let mut lines = Vec::new();
    for (index, window) in words.windows(wanted.len()).enumerate() {
        let matches = window.iter().zip(&wanted).all(|(word, wanted)| word.text == *wanted);
        if matches && !(phrase.ends_with(" no") && is_idiomatic(words, index, wanted.len())) {
            lines.extend(window.first().map(|word| word.line));
        }
    }
    lines
}

/// Whether `is no` stands after `there`, or before a word such as `longer`.
fn is_idiomatic(words: &[Word], start: usize, length: usize) -> bool {
    let before = start.checked_sub(1).and_then(|before| words.get(before));
    let after = words.get(start + length);
    before.is_some_and(|word| word.text == "there")
        || after.is_some_and(|word| FINE_AFTER_NO.contains(&word.text.as_str()))
}

#[cfg(test)]
mod tests {
    use super::check_without;
    use crate::tidy::Tree;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check_without(&Tree::of(files), &["crates/later"]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn phrases_are_found_in_documents_comments_and_strings_even_if_they_are_wrapped() {
        let findings = found(&[
            ("README.md", "A guide tells\nmore, so\nmany times.\n"),
            ("crates/a/src/lib.rs", "//! Says NO.\nfn f() { g(\"`5x` is no pause\") }\n"),
            ("scripts/a.sh", "# Whoever calls it.\n"),
        ]);
        let places: Vec<&str> = findings.iter().filter_map(|line| line.split(": ").next()).collect();
        let expected =
            ["README.md:2", "README.md:1", "crates/a/src/lib.rs:1", "crates/a/src/lib.rs:2", "scripts/a.sh:1"];
        assert_eq!(places, expected, "{findings:#?}");
        assert_eq!(findings[1], "README.md:1: `tells` is not plain English; write `says`, `reports` or `shows`");
    }

    #[test]
    fn code_idioms_and_parts_of_words_pass() {
        let findings = found(&[
            ("README.md", "There is no file; it is no longer here. Retells `whose` story.\n```\nwhose\n```\n"),
            ("crates/a/src/lib.rs", "//! This is. No more.\nfn whose() { tells(any, more) }\n"),
            ("crates/later/src/lib.rs", "//! Whose?\n"),
            ("data.json", "\"whose\""),
        ]);
        assert_eq!(findings, Vec::<String>::new());
    }
}
