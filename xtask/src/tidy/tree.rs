//! The repository as the rules see it: the path and text of each file, its commits and the compiler, all in memory.
//!
//! Read once by `main.rs`, made by hand in tests. Files that git ignores are left out, so that build output never counts.
//! Nothing here writes.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::tidy::commit::{Commit, recent_commits};

/// Folders that hold generated files; the walk without git leaves them out.
pub(crate) const GENERATED: [&str; 4] = [".git", ".tools", "node_modules", "target"];

/// Where the console is built; the walk without git takes nothing from there.
const BUILT: [&str; 2] = ["crates/console/web/build", "crates/console/web/dist"];

/// Keeps a folder in git.
const KEEP: &str = ".gitkeep";

/// What the names of our sources end with.
pub(crate) const SOURCE_EXTENSIONS: [&str; 7] = ["rs", "py", "sh", "js", "mjs", "ts", "cpp"];

/// Everything that a rule may look at.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Path (from the root, with `/`) to text; `None` for a file that is not UTF-8 text.
    files: BTreeMap<String, Option<String>>,
    /// Commits that the rule about them covers; none outside a git checkout.
    pub(crate) commits: Vec<Commit>,
    /// Version of the compiler, such as `1.95.0`; `None` if it cannot be run.
    pub(crate) compiler: Option<String>,
    /// Whether rules also cover what their lists of exemptions name.
    pub(crate) is_strict: bool,
}

impl Tree {
    /// Reads the files that git tracks or would track, or every file if there is no git.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let paths = match git_files(root) {
            Some(paths) => paths,
            None => walk(root)?,
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let full = root.join(&path);
            // Git also lists files that were deleted and not yet committed, and links.
            if !full.symlink_metadata().is_ok_and(|data| data.is_file()) {
                continue;
            }
            let bytes =
                std::fs::read(&full).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
            let text = if bytes.contains(&0) { None } else { String::from_utf8(bytes).ok() };
            files.insert(path, text);
        }
        Ok(Self { files, commits: recent_commits(root), compiler: compiler(), is_strict: false })
    }

    /// A tree made in memory.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect();
        Self { files, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Path and text of every text file, sorted by path.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// Text files with a name that ends with one of the extensions (given without the dot).
    pub(crate) fn with_extension<'a>(&'a self, extensions: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts().filter(move |(path, _)| extension(path).is_some_and(|found| extensions.contains(&found)))
    }

    /// Our sources: files of the known languages in the folders that hold them, and programs
    /// without an extension.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(|(path, text)| {
            let known = match extension(path) {
                Some(extension) => SOURCE_EXTENSIONS.contains(&extension),
                None => text.starts_with("#!"),
            };
            known && is_source_folder(path)
        })
    }

    /// The exemptions of a rule that count: none if all files are to be looked at.
    pub(crate) fn exempt<'a>(&self, list: &'a [&'a str]) -> &'a [&'a str] {
        if self.is_strict { &[] } else { list }
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Every path, text or not.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Whether a file or a folder has this path (without a slash at its end).
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        let first_inside = self.files.range(folder.clone()..).next();
        self.files.contains_key(path) || first_inside.is_some_and(|(file, _)| file.starts_with(&folder))
    }
}

/// The part of a file name after its last dot.
pub(crate) fn extension(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    let (stem, extension) = name.rsplit_once('.')?;
    (!stem.is_empty() && !extension.is_empty()).then_some(extension)
}

/// Whether the path lies in one of the folders that hold our sources.
pub(crate) fn is_source_folder(path: &str) -> bool {
    [".ci/", "crates/", "fuzz/", "scripts/", "tests/", "xtask/"].iter().any(|folder| path.starts_with(folder))
}

/// `rustc 1.95.0 (59807616e 2026-04-14)`: the second word.
fn compiler() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split_whitespace().nth(1).map(str::to_owned)
}

fn git_files(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .ok()?;
    if !output.status.success() {
        return None;
    }
    let list = String::from_utf8(output.stdout).ok()?;
    Some(list.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path) -> io::Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            // A name that is not UTF-8 cannot be one of ours.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_file() {
                if name == KEEP || !BUILT.contains(&folder.as_str()) {
                    paths.push(path);
                }
            } else if kind.is_dir() && !GENERATED.contains(&name.as_str()) {
                folders.push(path);
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_files_and_folders_but_not_parts_of_names() {
        let tree = Tree::of(&[("crates/cache/src/key.rs", ""), ("docs/a.md", "")]);
        assert!(tree.has("docs/a.md"));
        assert!(tree.has("crates/cache"));
        assert!(!tree.has("crates/cach"));
        assert!(!tree.has("docs/b.md"));
    }

    #[test]
    fn a_strict_look_exempts_nothing() {
        let mut tree = Tree::default();
        assert_eq!(tree.exempt(&["crates/a"]), ["crates/a"]);
        tree.is_strict = true;
        assert!(tree.exempt(&["crates/a"]).is_empty());
    }

    #[test]
    fn extensions_are_of_names_not_of_folders() {
        assert_eq!(extension("a/b.rs"), Some("rs"));
        assert_eq!(extension("a.d/b"), None);
        assert_eq!(extension(".gitignore"), None);
    }

    #[test]
    fn sources_are_known_languages_and_programs_in_our_folders() {
        let tree = Tree::of(&[
            (".ci/run", "#!/bin/sh\n"),
            ("crates/a/b.cpp", ""),
            ("crates/a/Cargo.toml", ""),
            ("docs/a.py", ""),
            ("fuzz/seeds/seed-root", "KVC1"),
            ("tests/clients/a.mjs", ""),
        ]);
        let paths: Vec<&str> = tree.sources().map(|(path, _)| path).collect();
        assert_eq!(paths, [".ci/run", "crates/a/b.cpp", "tests/clients/a.mjs"]);
    }

    #[test]
    fn a_folder_without_git_is_walked_and_generated_folders_are_left_out() {
        let root = std::env::temp_dir().join(format!("poncho-xtask-walk-{}", std::process::id()));
        for folder in ["docs", "target", "crates/a"].into_iter().chain(BUILT) {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let kept = format!("{}/{KEEP}", BUILT[1]);
        for file in ["docs/a.md", "target/junk.rs", "crates/a/b.rs", "top.txt", kept.as_str()] {
            std::fs::write(root.join(file), "x\n").unwrap();
        }
        // As `make test` makes them before it runs tidy: a page without headers.
        for folder in BUILT {
            std::fs::write(root.join(folder).join("app.js"), "var e;").unwrap();
        }
        std::fs::write(root.join("docs/picture.bin"), [0, 159, 146, 150]).unwrap();
        let mut walked = walk(&root).unwrap();
        walked.sort();
        let tree = Tree::read(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();

        assert_eq!(walked, ["crates/a/b.rs", kept.as_str(), "docs/a.md", "docs/picture.bin", "top.txt"]);
        assert_eq!(tree.len(), 5);
        assert_eq!(tree.texts().count(), 4, "a file that is not text has no lines to check");
    }
}
