//! Rule: a commit has a short subject, and a body that gives the reason.

use crate::tidy::{Finding, Tree};

/// What `git log --oneline` shows whole on a narrow terminal.
const MAX_SUBJECT: usize = 72;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for commit in &tree.commits {
        let place = format!("commit {}", commit.hash);
        let length = commit.subject.chars().count();
        if length > MAX_SUBJECT {
            let problem = format!("the subject has {length} characters, {MAX_SUBJECT} is the limit");
            findings.push(Finding::new(&place, 1, problem, "shorten it with `git commit --amend` or `git rebase -i`"));
        }
        if commit.body.is_empty() {
            findings.push(Finding::new(&place, 1, "the commit has no body", "say why the change was made"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::Tree;
    use crate::tidy::commit::Commit;

    fn tree(subject: &str, body: &str) -> Tree {
        let commit = Commit { hash: "abc123".to_owned(), subject: subject.to_owned(), body: body.to_owned() };
        let mut tree = Tree::default();
        tree.commits.push(commit);
        tree
    }

    #[test]
    fn a_long_subject_and_a_missing_body_are_found() {
        let findings = check(&tree(&"x".repeat(73), ""));
        let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("commit abc123:1: the subject has 73 characters, 72 is the limit;"),
            "{findings:?}"
        );
        assert!(findings[1].starts_with("commit abc123:1: the commit has no body;"), "{findings:?}");
    }

    #[test]
    fn seventy_two_characters_and_a_reason_pass() {
        assert_eq!(check(&tree(&"ü".repeat(72), "Because.")), Vec::new());
        assert_eq!(check(&Tree::default()), Vec::new());
    }
}
