//! What may be among our dependencies: their licences, where they come from, and known advisories.
//!
//! Called by `main.rs` as `cargo xtask deny`. It reads what `cargo metadata` prints about the lock file and, where a folder
//! of RustSec advisories is given, those. It must never fetch anything: a machine that reaches only a package registry has
//! to be able to run it.

mod advisories;
mod licences;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

pub(crate) use advisories::Advisories;

/// A package that we depend on.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// SPDX expression, if the package states one.
    pub(crate) licence: Option<String>,
    /// Where it came from; `None` for our own crates.
    pub(crate) source: Option<String>,
}

/// Asks cargo for every package in the lock file.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let asked = ["metadata", "--format-version", "1", "--locked"];
    let answer = Command::new("cargo").args(asked).current_dir(root).output();
    let answer = answer.map_err(|error| format!("cannot run cargo: {error}"))?;
    if !answer.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&answer.stderr)));
    }
    let metadata: Value =
        serde_json::from_slice(&answer.stdout).map_err(|error| format!("cargo metadata is not JSON: {error}"))?;
    let all = metadata.get("packages").and_then(Value::as_array).ok_or("cargo metadata lists no packages")?;
    let text = |package: &Value, field: &str| package.get(field).and_then(Value::as_str).map(str::to_owned);
    let package = |package: &Value| {
        Some(Package {
            name: text(package, "name")?,
            version: text(package, "version")?,
            licence: text(package, "license"),
            source: text(package, "source"),
        })
    };
    Ok(all.iter().filter_map(package).collect())
}

/// Everything that is wrong with these packages, sorted.
pub(crate) fn check(packages: &[Package], advisories: Option<&Advisories>) -> Vec<String> {
    let foreign: Vec<&Package> = packages.iter().filter(|package| package.source.is_some()).collect();
    let mut findings = BTreeSet::new();
    for package in &foreign {
        let about = |what: String| format!("{} {}: {what}", package.name, package.version);
        findings.extend(licences::check(package).map(about));
        let source = package.source.as_deref().unwrap_or_default();
        if !source.starts_with("registry+") {
            findings.insert(about("comes from a repository, not from the package registry".to_owned()));
        }
        if let Some(advisories) = advisories {
            findings.extend(advisories.about(package).into_iter().map(about));
        }
    }
    findings.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, licence: Option<&str>, source: Option<&str>) -> Package {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Package { name: name.to_owned(), version: "1.2.3".to_owned(), licence: owned(licence), source: owned(source) }
    }

    #[test]
    fn our_own_crates_are_not_looked_at() {
        assert_eq!(check(&[package("ours", None, None)], None), Vec::<String>::new());
    }

    #[test]
    fn a_repository_as_a_source_and_a_copyleft_licence_are_found() {
        let all = [
            package("fine", Some("MIT OR Apache-2.0"), Some("registry+somewhere")),
            package("branch", Some("MIT"), Some("git+somewhere")),
            package("viral", Some("GPL-3.0-only"), Some("registry+somewhere")),
        ];
        let found = check(&all, None);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("branch 1.2.3: comes from a repository"), "{found:?}");
        assert!(found[1].starts_with("viral 1.2.3: the licence GPL-3.0-only"), "{found:?}");
    }
}
