//! Known security advisories, read from a folder in RustSec's layout.
//!
//! An advisory is a Markdown file that begins with a TOML block. One that cannot be read is an error: a database that is
//! silently skipped would look like a clean one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use semver::{Version, VersionReq};
use toml::Table;

use super::Package;

/// Advisories that were looked at and do not concern us, with the reason.
const ACCEPTED: [(&str, &str); 0] = [];

/// All advisories about crates, by the crate's name.
#[derive(Debug, Default)]
pub(crate) struct Advisories {
    by_package: BTreeMap<String, Vec<Advisory>>,
}

#[derive(Debug)]
struct Advisory {
    id: String,
    title: String,
    /// Versions without the flaw: patched ones and those that never had it.
    unaffected: Vec<VersionReq>,
    /// Unmaintained and the like: worth knowing, not a flaw.
    is_informational: bool,
}

impl Advisories {
    /// Reads the folder `crates` of a database.
    pub(crate) fn read(database: &Path) -> Result<Self, String> {
        let mut all = Self::default();
        let unreadable = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| format!("cannot read {path}: {error}")
        };
        let crates = database.join("crates");
        for folder in fs::read_dir(&crates).map_err(unreadable(&crates))? {
            let folder = folder.map_err(unreadable(&crates))?.path();
            for file in fs::read_dir(&folder).map_err(unreadable(&folder))? {
                let path = file.map_err(unreadable(&folder))?.path();
                if path.extension().is_some_and(|extension| extension == "md") {
                    let text = fs::read_to_string(&path).map_err(unreadable(&path))?;
                    all.add(&text).map_err(|reason| format!("{}: {reason}", path.display()))?;
                }
            }
        }
        Ok(all)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_package.values().map(Vec::len).sum()
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        let block = text.split_once("```toml").and_then(|(_, rest)| rest.split_once("```"));
        let (block, prose) = block.ok_or("it does not begin with a TOML block")?;
        let table: Table = block.parse().map_err(|error| format!("its TOML cannot be read: {error}"))?;
        let about = table.get("advisory").and_then(|value| value.as_table()).ok_or("it has no [advisory]")?;
        let field = |name: &str| about.get(name).and_then(|value| value.as_str()).map(str::to_owned);
        let package = field("package").ok_or("it names no package")?;
        if about.contains_key("withdrawn") {
            return Ok(());
        }
        let versions = table.get("versions").and_then(|value| value.as_table());
        let mut unaffected = Vec::new();
        for list in ["patched", "unaffected"] {
            let listed = versions.and_then(|versions| versions.get(list)).and_then(|value| value.as_array());
            for requirement in listed.into_iter().flatten() {
                let requirement =
                    requirement.as_str().ok_or_else(|| format!("{list} has a value that is not a text"))?;
                unaffected.push(VersionReq::parse(requirement).map_err(|error| format!("{requirement}: {error}"))?);
            }
        }
        let title = prose.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default();
        let advisory = Advisory {
            id: field("id").ok_or("it has no id")?,
            title: title.to_owned(),
            unaffected,
            is_informational: about.contains_key("informational"),
        };
        self.by_package.entry(package).or_default().push(advisory);
        Ok(())
    }

    /// The flaws of this version of a package. Advice about upkeep counts as one: we choose crates that are kept.
    pub(super) fn about(&self, package: &Package) -> Vec<String> {
        let Some(advisories) = self.by_package.get(&package.name) else { return Vec::new() };
        let Ok(version) = Version::parse(&package.version) else {
            return vec!["its version cannot be compared with advisories".to_owned()];
        };
        let concerns = |advisory: &&Advisory| {
            let accepted = ACCEPTED.iter().any(|(id, _)| *id == advisory.id);
            !accepted && !advisory.unaffected.iter().any(|requirement| requirement.matches(&version))
        };
        let told = |advisory: &Advisory| {
            let sort = if advisory.is_informational { "advice" } else { "flaw" };
            format!("{sort} {}: {}", advisory.id, advisory.title)
        };
        advisories.iter().filter(concerns).map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAW: &str = "```toml\n[advisory]\nid = \"RUSTSEC-2020-0001\"\npackage = \"leaky\"\n\n[versions]\npatched = [\">= 1.2.0\"]\nunaffected = [\"< 1.0.0\"]\n```\n\n# Leaks memory\n\nText.\n";

    fn package(version: &str) -> Package {
        Package { name: "leaky".to_owned(), version: version.to_owned(), licence: None, source: None }
    }

    #[test]
    fn only_versions_between_the_unaffected_and_the_patched_ones_are_found() {
        let mut advisories = Advisories::default();
        advisories.add(FLAW).unwrap();
        assert_eq!(advisories.len(), 1);
        assert_eq!(advisories.about(&package("1.1.9")), ["flaw RUSTSEC-2020-0001: Leaks memory"]);
        assert_eq!(advisories.about(&package("1.2.0")), Vec::<String>::new());
        assert_eq!(advisories.about(&package("0.9.0")), Vec::<String>::new());
    }

    #[test]
    fn a_withdrawn_one_is_left_out_and_a_broken_one_is_an_error() {
        let mut advisories = Advisories::default();
        advisories.add(&FLAW.replace("package", "withdrawn = \"2021-01-01\"\npackage")).unwrap();
        assert_eq!(advisories.about(&package("1.1.9")), Vec::<String>::new());
        assert!(advisories.add("# No block").is_err());
    }
}
