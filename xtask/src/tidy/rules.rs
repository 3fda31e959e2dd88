//! The tidy rules and the order they run in.
//!
//! Each rule is a function from the [`Tree`] to findings. No rule reads the disk or runs a program, so each is tested on
//! a small tree made in memory, once firing and once quiet.

mod boundaries;
mod commits;
mod cycles;
mod forbidden;
mod header;
mod machine_paths;
mod named_paths;
mod named_tests;
mod siblings;
mod size;
mod toolchain;
mod unsafe_code;
mod white_space;
mod words;
mod wrapping;

use crate::tidy::{Finding, Tree};

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 15] = [
    header::check,
    size::check,
    siblings::check,
    cycles::check,
    boundaries::check,
    forbidden::check,
    unsafe_code::check,
    named_paths::check,
    named_tests::check,
    machine_paths::check,
    words::check,
    wrapping::check,
    white_space::check,
    toolchain::check,
    commits::check,
];

/// Runs every rule; the findings come sorted by path and line.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    findings.sort();
    findings
}

/// Runs one rule on a tree made of path and text, and returns its findings as they are printed.
#[cfg(test)]
fn found(rule: Rule, files: &[(&str, &str)]) -> Vec<String> {
    rule(&Tree::of(files)).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_of_all_rules_come_sorted() {
        let tree =
            Tree::of(&[("crates/z/src/lib.rs", "fn a() {} \n"), ("crates/a/src/lib.rs", "fn a() { todo!() }\n")]);
        let places: Vec<(String, usize)> = check(&tree).into_iter().map(|f| (f.path, f.line)).collect();
        let mut sorted = places.clone();
        sorted.sort();
        assert_eq!(places, sorted);
        assert_eq!(places.len(), 4, "header and todo in a, header and white space in z: {places:?}");
    }

    #[test]
    fn a_clean_tree_has_no_findings() {
        let tree = Tree::of(&[
            ("crates/cache/src/lib.rs", "//! Holds nothing.\n\n/// Two.\npub fn two() -> u32 {\n    2\n}\n"),
            ("README.md", "See `crates/cache/src/lib.rs`.\n"),
        ]);
        assert_eq!(check(&tree), Vec::new());
    }
}
