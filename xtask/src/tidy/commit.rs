//! The commits that tidy looks at: subject and body of each one after a fixed commit.
//!
//! Read by `tree.rs`. A repository without git, without history (a shallow clone) or without that commit has none, and
//! that is not an error: an archive of the source must be able to run tidy.

use std::path::Path;
use std::process::Command;

/// Earlier commits were written before there was a rule.
const BASE: &str = "d829ae152666d2f5029036af443ea5027c78b466";

/// One commit that is not a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Abbreviated hash.
    pub(crate) hash: String,
    pub(crate) subject: String,
    pub(crate) body: String,
}

/// The descendants of [`BASE`] up to `HEAD`, newest first.
pub(super) fn recent_commits(root: &Path) -> Vec<Commit> {
    commits_after(root, BASE)
}

fn commits_after(root: &Path, base: &str) -> Vec<Commit> {
    let range = format!("{base}..HEAD");
    let arguments = ["log", "-z", "--no-merges", "--ancestry-path", "--format=%h%n%s%n%b", range.as_str(), "--"];
    let output = Command::new("git").args(arguments).current_dir(root).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout).split('\0').filter_map(parse).collect()
}

fn parse(entry: &str) -> Option<Commit> {
    let (hash, rest) = entry.split_once('\n')?;
    let (subject, body) = rest.split_once('\n').unwrap_or((rest, ""));
    Some(Commit { hash: hash.to_owned(), subject: subject.to_owned(), body: body.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_subject_and_body_are_told_apart() {
        let commit = parse("abc123\nSplit the store\n\nIt knew too much.\n").unwrap();
        assert_eq!((commit.hash.as_str(), commit.subject.as_str()), ("abc123", "Split the store"));
        assert_eq!(commit.body, "It knew too much.");
        assert_eq!(parse("abc123\nSplit the store\n").unwrap().body, "");
        assert_eq!(parse(""), None);
    }

    #[test]
    fn only_descendants_of_the_base_that_are_not_merges_are_listed() {
        let root = std::env::temp_dir().join(format!("poncho-xtask-commits-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"];
            let output = Command::new("git").args(identity).args(arguments).current_dir(&root).output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let commit = |subject: &str| git(&["commit", "--quiet", "--allow-empty", "-m", subject]);
        git(&["init", "--quiet", "--initial-branch", "main"]);
        commit("Before");
        git(&["branch", "side"]);
        commit("Base");
        let base = git(&["rev-parse", "HEAD"]);
        commit("After");
        git(&["checkout", "--quiet", "side"]);
        commit("Beside the base");
        git(&["checkout", "--quiet", "main"]);
        git(&["merge", "--quiet", "--no-ff", "-m", "Merge", "side"]);
        let found = commits_after(&root, &base);
        let unknown = commits_after(&root, "0123456789abcdef0123456789abcdef01234567");
        std::fs::remove_dir_all(&root).unwrap();

        assert_eq!(found.iter().map(|commit| commit.subject.as_str()).collect::<Vec<_>>(), ["After"]);
        assert_eq!(unknown, Vec::new());
        assert_eq!(commits_after(Path::new("/"), &base), Vec::new(), "outside a checkout there are none");
    }
}
