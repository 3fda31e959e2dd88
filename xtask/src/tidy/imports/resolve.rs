//! From a path in the code to the file that defines what it names.
//!
//! Used by `imports.rs`. It follows modules, `use` lines and globs; a name that none of them explains belongs to the
//! last module on the way.

use std::collections::BTreeMap;

use super::file::SourceFile;

/// How many re-exports one name may pass through; a longer way is a circle.
const MOST_REEXPORTS: usize = 16;

/// The files of a crate by module path.
pub(super) struct Modules<'a> {
    files: BTreeMap<Vec<String>, &'a SourceFile>,
}

impl<'a> Modules<'a> {
    pub(super) fn new(files: BTreeMap<Vec<String>, &'a SourceFile>) -> Self {
        Self { files }
    }

    /// The module path of the file that a path leads to, seen from a module; `None` if it leaves the crate.
    pub(super) fn resolve(&self, from: &[String], path: &[String]) -> Option<Vec<String>> {
        self.follow(from, path, MOST_REEXPORTS)
    }

    fn follow(&self, from: &[String], path: &[String], budget: usize) -> Option<Vec<String>> {
        let first = path.first()?;
        let begins_here = ["crate", "self", "super"].contains(&first.as_str())
            || self.files.contains_key(&joined(from, first))
            || self.files.get(from).is_some_and(|file| brings_in(file, first));
        if !begins_here {
            return None;
        }
        let mut at = from.to_vec();
        for (index, segment) in path.iter().enumerate() {
            match segment.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => {
                    at.pop()?;
                }
                name => {
                    let below = joined(&at, name);
                    if self.files.contains_key(&below) {
                        at = below;
                        continue;
                    }
                    let rest = path.get(index + 1..).unwrap_or_default();
                    return self.definition(&at, name, rest, budget);
                }
            }
        }
        self.files.contains_key(&at).then_some(at)
    }

    /// The file that defines a name of a module, through its `use` lines if it is not the module's own.
    fn definition(&self, module: &[String], name: &str, rest: &[String], budget: usize) -> Option<Vec<String>> {
        let file = self.files.get(module)?;
        if file.items.contains(name) || budget == 0 {
            return Some(module.to_vec());
        }
        let named = file.names.iter().find(|imported| imported.name.as_deref() == Some(name));
        if let Some(imported) = named {
            let path: Vec<String> = imported.path.iter().chain(rest).cloned().collect();
            return Some(self.follow(module, &path, budget - 1).unwrap_or_else(|| module.to_vec()));
        }
        for glob in file.names.iter().filter(|imported| imported.name.is_none()) {
            let Some(target) = self.follow(module, &glob.path, budget - 1) else { continue };
            let has_it = self.files.get(&target).is_some_and(|file| file.items.contains(name) || brings_in(file, name));
            if target != module && has_it {
                return self.definition(&target, name, rest, budget - 1);
            }
        }
        Some(module.to_vec())
    }
}

fn joined(module: &[String], name: &str) -> Vec<String> {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn brings_in(file: &SourceFile, name: &str) -> bool {
    file.names.iter().any(|imported| imported.name.as_deref() == Some(name))
}
