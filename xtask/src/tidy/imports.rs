//! Which file of a crate imports from which, for the rule about import cycles.
//!
//! An import is a `use` or a path in code that leads to another file of the same crate. Re-exports are followed to the
//! file that defines the name: a file that imports `crate::Store` depends on the file of the store, not on `lib.rs`. A
//! `pub use` of something below the module is a re-export and does not count as an import. Test code is left out.

mod file;
mod resolve;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::Tree;
use file::SourceFile;
use resolve::Modules;

/// One file imports from another of the same crate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Import {
    /// Module path of the importing file, empty for the crate root.
    pub(crate) from: Vec<String>,
    /// Line of the import in that file, counted from 1.
    pub(crate) line: usize,
    /// Module path of the imported file.
    pub(crate) to: Vec<String>,
}

/// The source files of one crate by module path, and their imports of each other.
#[derive(Debug)]
pub(crate) struct CrateImports {
    /// Path in the repository by module path; test modules are left out.
    pub(crate) files: BTreeMap<Vec<String>, String>,
    /// Sorted; one entry for each line that imports.
    pub(crate) imports: BTreeSet<Import>,
}

/// The `src` folders of all crates: those with a `lib.rs` or a `main.rs`.
pub(crate) fn crate_roots(tree: &Tree) -> BTreeSet<String> {
    let root = |path: &str| {
        let folder = path.strip_suffix("/lib.rs").or_else(|| path.strip_suffix("/main.rs"))?;
        folder.ends_with("/src").then(|| folder.to_owned())
    };
    tree.paths().filter_map(root).collect()
}

/// Reads the imports of the crate with this `src` folder.
pub(crate) fn read(tree: &Tree, root: &str) -> CrateImports {
    let mut sources: BTreeMap<Vec<String>, (String, SourceFile)> = BTreeMap::new();
    for (path, text) in tree.with_extension(&["rs"]) {
        let Some(inside) = path.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')) else { continue };
        let Some(module) = module_path(inside) else { continue };
        // A crate with both a library and a program: the library is the crate root.
        if inside == "main.rs" && tree.has(&format!("{root}/lib.rs")) {
            continue;
        }
        sources.insert(module, (path.to_owned(), SourceFile::read(text)));
    }
    let tests: BTreeSet<Vec<String>> = sources.keys().filter(|module| is_test(&sources, module)).cloned().collect();
    sources.retain(|module, _| !tests.contains(module));

    let modules = Modules::new(sources.iter().map(|(module, (_, file))| (module.clone(), file)).collect());
    let mut imports = BTreeSet::new();
    for (from, (_, file)) in &sources {
        for reference in &file.references {
            let Some(to) = modules.resolve(from, &reference.path) else { continue };
            let is_reexport = reference.is_public && to.starts_with(from);
            if to != *from && !is_reexport {
                imports.insert(Import { from: from.clone(), line: reference.line, to });
            }
        }
    }
    CrateImports { files: sources.into_iter().map(|(module, (path, _))| (module, path)).collect(), imports }
}

/// `a/b.rs` and `a/b/mod.rs` hold `a::b`; the crate root has an empty path, programs of `bin/` are crates of their own.
fn module_path(inside: &str) -> Option<Vec<String>> {
    let stem = inside.strip_suffix(".rs")?;
    let mut parts: Vec<String> = stem.split('/').map(str::to_owned).collect();
    match parts.as_slice() {
        [only] if only == "lib" || only == "main" => parts.clear(),
        [first, ..] if first == "bin" => return None,
        [.., last] if last == "mod" => {
            parts.pop();
        }
        _ => {}
    }
    Some(parts)
}

/// Whether the module or one above it is declared with `#[cfg(test)]` or called `tests`.
fn is_test(sources: &BTreeMap<Vec<String>, (String, SourceFile)>, module: &[String]) -> bool {
    (0..module.len()).any(|depth| {
        let Some((above, name)) = module.get(..depth).zip(module.get(depth)) else { return false };
        name == "tests" || sources.get(above).is_some_and(|(_, file)| file.test_modules.contains(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The imports of a crate `x`, as `from:line to`; the crate root is called `crate`.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/x/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let name = |module: &[String]| if module.is_empty() { "crate".to_owned() } else { module.join("::") };
        let read = read(&Tree::of(&files), "crates/x/src");
        read.imports
            .iter()
            .map(|import| format!("{}:{} {}", name(&import.from), import.line, name(&import.to)))
            .collect()
    }

    #[test]
    fn uses_and_paths_in_code_are_imports() {
        let found = imports(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
            (
                "a.rs",
                "use crate::b::{self, One, deep::{Two as Other}};\nfn f() -> crate::c::Three { super::c::make() }\n",
            ),
            ("b.rs", "pub struct One;\npub mod deep;\n"),
            ("b/deep.rs", "pub struct Two;\nuse super::One;\n"),
            ("c.rs", "pub struct Three;\nfn f() { println!(\"{}\", crate::a::f()) }\n"),
        ]);
        assert_eq!(found, ["a:1 b", "a:1 b::deep", "a:2 c", "b::deep:2 b", "c:2 a"]);
    }

    #[test]
    fn a_reexport_is_followed_to_the_file_that_defines_the_name() {
        let found = imports(&[
            ("lib.rs", "mod a;\nmod b;\npub use b::Row;\npub(crate) use a::*;\n"),
            ("a.rs", "use crate::Row;\npub fn go() {}\n"),
            ("b.rs", "mod row;\npub use row::Row;\nuse crate::go;\n"),
            ("b/row.rs", "pub struct Row;\n"),
        ]);
        assert_eq!(found, ["a:1 b::row", "b:3 a"]);
    }

    #[test]
    fn declaring_or_reexporting_a_child_is_no_import_but_using_it_is() {
        let found = imports(&[
            ("main.rs", "mod a;\n"),
            ("a.rs", "mod x;\nmod y;\npub use x::X;\nuse y::Y;\nfn f() { x::make() }\n"),
            ("a/x.rs", "pub struct X;\nuse super::helper;\n"),
            ("a/y.rs", "pub struct Y;\n"),
        ]);
        assert_eq!(found, ["a:4 a::y", "a:5 a::x", "a::x:2 a"]);
    }

    #[test]
    fn a_reexport_of_something_elsewhere_is_an_import() {
        let found = imports(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "pub(crate) use crate::b::B;\n"),
            ("b.rs", "pub struct B;\n"),
        ]);
        assert_eq!(found, ["a:1 b"]);
    }

    #[test]
    fn tests_comments_strings_and_other_crates_are_left_out() {
        let found = imports(&[
            ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod support;\n"),
            (
                "a.rs",
                "use std::b::c;\n// crate::b::B\nfn f() { g(\"crate::b\") }\npub(in crate::b) fn g() {}\n\
                 #[cfg(test)]\nuse crate::b::B;\n#[cfg(test)]\nmod tests {\n use crate::b::B;\n fn f() { {} }\n}\n\
                 struct S {\n #[cfg(test)]\n x: crate::b::B,\n y: u32,\n}\n",
            ),
            ("b.rs", "pub struct B;\n#[cfg(all(test, unix))]\nfn t() { crate::a::f() }\n"),
            ("support.rs", "use crate::a::f;\n"),
            ("b/tests.rs", "use crate::a::f;\n"),
            ("bin/tool.rs", "use crate::a::f;\n"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn modules_inside_a_file_belong_to_the_file() {
        let found = imports(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "mod inner {\n use super::f;\n use super::super::b::B;\n}\nfn f() {}\n"),
            ("b.rs", "pub struct B;\nuse crate::a::inner::X;\n"),
        ]);
        assert_eq!(found, ["a:3 b", "b:2 a"]);
    }

    #[test]
    fn roots_are_folders_called_src_with_a_crate_root() {
        let tree = Tree::of(&[("crates/x/src/lib.rs", ""), ("xtask/src/main.rs", ""), ("crates/x/tests/main.rs", "")]);
        assert_eq!(crate_roots(&tree).into_iter().collect::<Vec<_>>(), ["crates/x/src", "xtask/src"]);
    }
}
