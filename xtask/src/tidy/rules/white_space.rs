//! Rule: lines end with LF, no line ends with white space, every file ends with one line end.

use crate::tidy::{Finding, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        for (index, line) in text.split('\n').enumerate() {
            if let Some(line) = line.strip_suffix('\r') {
                findings.push(Finding::new(path, index + 1, "the line ends with CR LF", "save the file with LF"));
                if line.ends_with(char::is_whitespace) {
                    findings.push(trailing(path, index + 1));
                }
            } else if line.ends_with(char::is_whitespace) {
                findings.push(trailing(path, index + 1));
            }
        }
        let lines = text.split('\n').count();
        if !text.is_empty() && !text.ends_with('\n') {
            findings.push(Finding::new(path, lines, "the last line has no line end", "add one"));
        } else if text.ends_with("\n\n") {
            findings.push(Finding::new(path, lines - 1, "the file ends with empty lines", "take them out"));
        }
    }
    findings
}

fn trailing(path: &str, line: usize) -> Finding {
    Finding::new(path, line, "white space at the end of the line", "take it out")
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::rules::found;

    #[test]
    fn each_kind_of_stray_white_space_is_found() {
        let findings = found(
            check,
            &[
                ("a.md", "one \ntwo\n"),
                ("b.rs", "one\r\ntwo\n"),
                ("c.txt", "one\ntwo"),
                ("d.toml", "one\n\n"),
                ("e", "\t\n"),
            ],
        );
        let expected = [
            "a.md:1: white space at the end of the line",
            "b.rs:1: the line ends with CR LF",
            "c.txt:2: the last line has no line end",
            "d.toml:2: the file ends with empty lines",
            "e:1: white space at the end of the line",
        ];
        assert_eq!(findings.len(), expected.len(), "{findings:#?}");
        for (finding, start) in findings.iter().zip(expected) {
            assert!(finding.starts_with(start), "{finding}");
        }
    }

    #[test]
    fn clean_and_empty_files_pass() {
        assert_eq!(found(check, &[("a.md", "one\n\n  two\n"), ("empty", "")]), Vec::<String>::new());
    }
}
