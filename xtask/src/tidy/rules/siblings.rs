//! Rule: no folder of sources has more than fifteen entries, so that one look shows what is there.
//!
//! An entry is a source file or a folder with sources below it; `foo.rs` and `foo/` are one.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::{Finding, Tree};

const MAX_SIBLINGS: usize = 15;

/// Folders that the rule does not cover yet, with everything below them. The aim is an empty list.
const NOT_YET: &[&str] = &[];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    check_without(tree, tree.exempt(NOT_YET))
}

fn check_without(tree: &Tree, not_yet: &[&str]) -> Vec<Finding> {
    let mut folders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, _) in tree.sources() {
        let mut path = path;
        while let Some((folder, name)) = path.rsplit_once('/') {
            let stem = name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or(name);
            folders.entry(folder).or_default().insert(stem);
            path = folder;
        }
    }
    let is_covered = |folder: &str| !not_yet.iter().any(|prefix| is_below(folder, prefix));
    let too_many = folders.iter().filter(|(folder, entries)| is_covered(folder) && entries.len() > MAX_SIBLINGS);
    too_many
        .map(|(folder, entries)| {
            Finding::new(
                folder,
                1,
                format!("the folder has {} entries, {MAX_SIBLINGS} is the limit", entries.len()),
                "group files that belong to one concept into a folder named after it",
            )
        })
        .collect()
}

/// Whether a path is the folder or lies in it.
fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::check_without;
    use crate::tidy::{Finding, Tree};

    fn found(count: usize, more: &[&str], not_yet: &[&str]) -> Vec<Finding> {
        let names: Vec<String> = (0..count).map(|index| format!("crates/a/src/f{index}.rs")).collect();
        let files: Vec<(&str, &str)> =
            names.iter().map(|name| (name.as_str(), "")).chain(more.iter().map(|name| (*name, ""))).collect();
        check_without(&Tree::of(&files), not_yet)
    }

    #[test]
    fn the_sixteenth_entry_is_found_be_it_a_file_or_a_folder() {
        let findings = found(15, &["crates/a/src/more/x.rs"], &[]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].to_string().starts_with("crates/a/src:1: the folder has 16 entries, 15 is the limit;"));
        assert_eq!(found(16, &[], &[]).len(), 1);
    }

    #[test]
    fn a_file_and_its_folder_count_once_and_other_files_do_not_count() {
        let more =
            ["crates/a/src/f0/x.rs", "crates/a/src/f0/y.rs", "crates/a/src/data.json", "crates/a/src/seeds/s.bin"];
        assert_eq!(found(15, &more, &[]), Vec::new());
    }

    #[test]
    fn a_crate_on_the_list_is_left_out_but_not_one_with_a_longer_name() {
        assert_eq!(found(16, &[], &["crates/a"]), Vec::new());
        assert_eq!(found(16, &[], &["crates/"]).len(), 1);
        assert_eq!(found(16, &[], &["crat"]).len(), 1);
    }
}
