//! Rule: no committed file names a place of one machine.
//!
//! A path under somebody's home folder exists for its author only.

use crate::tidy::{Finding, Tree};

/// Absolute folders of particular machines.
const MACHINE_FOLDERS: [&str; 4] = ["/home/", "/root/", "/Users/", "/mnt/"];

/// This file has to spell them.
const OWN_FILE: &str = "xtask/src/tidy/rules/machine_paths.rs";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| *path != OWN_FILE) {
        for (index, line) in text.lines().enumerate() {
            if let Some(name) = machine_path(line) {
                findings.push(Finding::new(
                    path,
                    index + 1,
                    format!("`{name}` is a path of one machine"),
                    "use a path inside the repository, or a placeholder such as `DIR`",
                ));
            }
        }
    }
    findings
}

fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_FOLDERS.into_iter().find(|folder| {
        // After a letter, a dot or a tilde it is the middle of another path or of an address.
        let begins_a_path = |at: usize| {
            let before = line.get(..at).and_then(|text| text.chars().next_back());
            !before.is_some_and(|c| c.is_alphanumeric() || "._-~/*}>".contains(c))
        };
        line.match_indices(folder).any(|(at, _)| begins_a_path(at))
    })
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::rules::found;

    #[test]
    fn machine_paths_are_found_wherever_they_stand() {
        for text in ["see /home/ann/model.gguf", "\"/root/.cargo\"", "cd /mnt/disk", "path=/home/x", "`/Users/bob/a`"] {
            let findings = found(check, &[("docs/a.md", &format!("fine\n{text}\n"))]);
            assert_eq!(findings.len(), 1, "{text}");
            assert!(findings[0].starts_with("docs/a.md:2: "), "{}", findings[0]);
        }
    }

    #[test]
    fn other_paths_and_addresses_pass() {
        let text = "https://example.org/home/page\n~/home/models\ncrates/mnt/src\n/var/lib/poncho\n";
        assert_eq!(found(check, &[("docs/a.md", text)]), Vec::<String>::new());
    }
}
