//! Rule: no unfinished code, no debug prints, no tests that are switched off or that must panic.

use crate::tidy::rust_source::{code_only, lines_with_word};
use crate::tidy::tree::is_source_folder;
use crate::tidy::{Finding, Tree};

/// What may not stand in code, and what to do instead.
const FORBIDDEN: [(&str, &str); 5] = [
    ("todo!", "finish it or leave it out"),
    ("unimplemented!", "finish it, or return an error that says so"),
    ("dbg!", "use tracing, or take it out"),
    ("#[ignore", "make the test quick and steady, or delete it"),
    ("#[should_panic", "return an error and assert on it"),
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension(&["rs"]).filter(|(path, _)| is_source_folder(path)) {
        let code = code_only(text);
        for (word, advice) in FORBIDDEN {
            for line in lines_with_word(&code, word) {
                findings.push(Finding::new(path, line, format!("`{word}` is not allowed"), advice));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::rules::found;

    #[test]
    fn each_forbidden_word_is_found() {
        let text = "//! x\nfn a() { todo!() }\nfn b() { unimplemented!(\"b\") }\nfn c() { dbg!(1); }\n#[test]\n#[ignore = \"slow\"]\nfn d() {}\n#[should_panic]\nfn e() {}\n";
        let findings = found(check, &[("crates/a/src/lib.rs", text)]);
        let lines: Vec<&str> = findings.iter().filter_map(|line| line.split(':').nth(1)).collect();
        assert_eq!(lines, ["2", "3", "4", "6", "8"]);
    }

    #[test]
    fn the_words_may_be_talked_about() {
        let text = "//! Never `todo!()`.\nfn a() -> &'static str { \"dbg!(x) #[ignore]\" } // unimplemented!()\n#[must_use]\nfn b() {}\n";
        assert_eq!(found(check, &[("crates/a/src/lib.rs", text)]), Vec::<String>::new());
    }
}
