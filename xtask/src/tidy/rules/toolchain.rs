//! Rule: the Rust version that the workspace states is the one that compiles it, and the one that the guide names.
//!
//! A machine has one toolchain, so an older version that is merely stated would never be compiled. Cargo refuses a
//! compiler that is older than `rust-version`; this rule keeps the document in step with it.

use crate::tidy::{Finding, Tree};

const MANIFEST: &str = "Cargo.toml";
const GUIDE: &str = "CONTRIBUTING.md";

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some((line, stated)) = tree.text(MANIFEST).and_then(stated_version) else { return findings };
    if let Some(used) = &tree.compiler
        && numbers(used) < numbers(stated)
    {
        findings.push(Finding::new(
            MANIFEST,
            line,
            format!("the workspace asks for Rust {stated}, and this is Rust {used}"),
            "install that version with `rustup update stable`",
        ));
    }
    let named = format!("Rust {stated}");
    if tree.text(GUIDE).is_some_and(|guide| !guide.contains(&named)) {
        findings.push(Finding::new(
            GUIDE,
            1,
            format!("the guide does not name `{named}`, the version in {MANIFEST}"),
            "name the version that CI compiles with",
        ));
    }
    findings
}

fn stated_version(manifest: &str) -> Option<(usize, &str)> {
    manifest.lines().enumerate().find_map(|(index, line)| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "rust-version").then(|| (index + 1, value.trim().trim_matches('"')))
    })
}

/// Major and minor number; what is not a number counts as 0.
fn numbers(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or_default());
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::Tree;

    fn found(stated: &str, used: Option<&str>, guide: &str) -> Vec<String> {
        let manifest = format!("[workspace.package]\nrust-version = \"{stated}\"\n");
        let mut tree = Tree::of(&[("Cargo.toml", &manifest), ("CONTRIBUTING.md", guide)]);
        tree.compiler = used.map(str::to_owned);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_older_compiler_and_a_guide_with_another_version_are_found() {
        let findings = found("1.95", Some("1.94.1"), "CI compiles with Rust 1.89.\n");
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("Cargo.toml:2: the workspace asks for Rust 1.95, and this is Rust 1.94.1;"));
        assert!(findings[1].starts_with("CONTRIBUTING.md:1: the guide does not name `Rust 1.95`"));
    }

    #[test]
    fn the_same_or_a_newer_compiler_passes_and_so_does_none() {
        for used in [Some("1.95.0"), Some("1.100.0-nightly"), Some("2.0.0"), None] {
            assert_eq!(found("1.95", used, "CI compiles with Rust 1.95.\n"), Vec::<String>::new(), "{used:?}");
        }
        assert_eq!(check(&Tree::of(&[("README.md", "")])), Vec::new());
    }
}
