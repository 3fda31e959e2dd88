//! Rule: folders do not import each other in a circle, and inside a folder at most three files do.
//!
//! Each import is looked at where the two files part: there, the entries of that folder (files, and folders taken as
//! one with all below them) form a graph. A circle with a folder in it is not allowed, nor one of more than three
//! files. A module file `foo.rs` counts outside as part of `foo/`, and inside `foo/` as one file more. So a file at the
//! top of a crate may be used by all its folders, as long as it does not use them itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::imports::{CrateImports, Import, crate_roots, read};
use crate::tidy::{Finding, Tree};

/// Files that know each other well are one thing in three parts at most.
const MAX_FILES: usize = 3;

/// Crates that the rule does not cover yet. The aim is an empty list.
const NOT_YET: &[&str] = &[];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    check_without(tree, tree.exempt(NOT_YET))
}

fn check_without(tree: &Tree, not_yet: &[&str]) -> Vec<Finding> {
    let roots = crate_roots(tree);
    let covered = roots.iter().filter(|root| !not_yet.iter().any(|name| root.strip_suffix("/src") == Some(*name)));
    covered.flat_map(|root| check_crate(&read(tree, root))).collect()
}

/// The imports between the entries of one folder: from, to, the imports themselves.
type Graph<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Import>>;

/// The name of a module file among the entries of its own folder.
const MODULE_FILE: &str = "";

fn check_crate(read: &CrateImports) -> Vec<Finding> {
    let mut graphs: BTreeMap<&[String], Graph<'_>> = BTreeMap::new();
    for import in &read.imports {
        let shared = import.from.iter().zip(&import.to).take_while(|(from, to)| from == to).count();
        let folder = import.from.get(..shared).unwrap_or_default();
        let from = import.from.get(shared).map_or(MODULE_FILE, String::as_str);
        let to = import.to.get(shared).map_or(MODULE_FILE, String::as_str);
        graphs.entry(folder).or_default().entry((from, to)).or_default().push(import);
    }
    let mut findings = Vec::new();
    for (folder, graph) in &graphs {
        for circle in circles(graph) {
            let is_folder = |entry: &&str| {
                let inside: Vec<String> = folder.iter().cloned().chain([(**entry).to_owned()]).collect();
                **entry != *MODULE_FILE
                    && read.files.keys().any(|file| file.len() > inside.len() && file.starts_with(&inside))
            };
            let has_folder = circle.iter().any(is_folder);
            if has_folder || circle.len() > MAX_FILES {
                findings.push(finding(read, folder, graph, &circle, has_folder));
            }
        }
    }
    findings
}

/// The sets of two and more entries that all lead to each other.
fn circles<'a>(graph: &Graph<'a>) -> Vec<BTreeSet<&'a str>> {
    let entries: BTreeSet<&str> = graph.keys().flat_map(|(from, to)| [*from, *to]).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        entries.iter().map(|entry| (*entry, reachable(graph, entry))).collect();
    let leads = |from: &str, to: &str| reached.get(from).is_some_and(|reached| reached.contains(to));
    let mut circles = Vec::new();
    let mut placed: BTreeSet<&str> = BTreeSet::new();
    for entry in &entries {
        if placed.contains(entry) {
            continue;
        }
        let circle: BTreeSet<&str> =
            entries.iter().copied().filter(|other| leads(entry, other) && leads(other, entry)).collect();
        placed.extend(&circle);
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

fn reachable<'a>(graph: &Graph<'a>, start: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start];
    while let Some(entry) = open.pop() {
        for (_, to) in graph.keys().filter(|(from, _)| *from == entry) {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

fn finding(
    read: &CrateImports,
    folder: &[String],
    graph: &Graph<'_>,
    circle: &BTreeSet<&str>,
    has_folder: bool,
) -> Finding {
    let file = |module: &Vec<String>| read.files.get(module).map_or("", String::as_str);
    let inside = graph.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
    let firsts: Vec<&Import> = inside.filter_map(|(_, imports)| imports.first().copied()).collect();
    let lines = firsts
        .iter()
        .map(|import| format!("\n    {}:{} imports {}", file(&import.from), import.line, file(&import.to)));
    let lines: String = lines.collect();
    let own_name = folder.last().map_or("the crate root", String::as_str);
    let name = |entry: &&str| if **entry == *MODULE_FILE { own_name.to_owned() } else { (**entry).to_owned() };
    let names = circle.iter().map(name).collect::<Vec<_>>().join(", ");
    let problem = if has_folder {
        format!("import cycle between folders: {names}")
    } else {
        format!("import cycle of {} files, {MAX_FILES} is the limit: {names}", circle.len())
    };
    let (path, line) = firsts.first().map_or(("", 1), |import| (file(&import.from), import.line));
    Finding::new(path, line, problem, format!("move what they share to a file that imports none of them:{lines}"))
}

#[cfg(test)]
mod tests {
    use super::check_without;
    use crate::tidy::Tree;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/x/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        check_without(&Tree::of(&files), &[]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_folders_that_import_each_other_are_found_with_the_lines() {
        let findings = found(&[
            ("lib.rs", "mod store;\nmod worker;\n"),
            ("store.rs", "mod save;\n"),
            ("store/save.rs", "\nuse crate::worker::task::Task;\n"),
            ("worker.rs", "mod task;\n"),
            ("worker/task.rs", "use crate::store::save::Save;\n"),
        ]);
        assert_eq!(
            findings,
            ["crates/x/src/store/save.rs:2: import cycle between folders: store, worker; \
              move what they share to a file that imports none of them:\
              \n    crates/x/src/store/save.rs:2 imports crates/x/src/worker/task.rs\
              \n    crates/x/src/worker/task.rs:1 imports crates/x/src/store/save.rs"]
        );
    }

    #[test]
    fn a_folder_in_a_circle_with_a_file_is_found_at_every_depth() {
        let top = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "mod x;\n"),
            ("a/x.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::a::x::X;\n"),
        ];
        assert_eq!(found(&top).len(), 1, "{:?}", found(&top));
        let deep = [
            ("lib.rs", "mod a;\n"),
            ("a.rs", "mod b;\nuse b::x::X;\npub struct A;\n"),
            ("a/b.rs", "mod x;\n"),
            ("a/b/x.rs", "use super::super::A;\n"),
        ];
        assert_eq!(found(&deep).len(), 1, "{:?}", found(&deep));
    }

    #[test]
    fn four_files_in_a_circle_are_found_and_three_are_not() {
        let mut files = vec![
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::c::C;\n"),
            ("c.rs", "use crate::a::A;\n"),
            ("d.rs", ""),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
        files[3].1 = "use crate::d::D;\n";
        files[4].1 = "use crate::a::A;\n";
        let findings = found(&files);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("import cycle of 4 files, 3 is the limit: a, b, c, d;"), "{findings:?}");
    }

    #[test]
    fn a_file_that_all_folders_use_is_no_circle() {
        let files = [
            ("lib.rs", "mod engine;\nmod error;\nmod worker;\npub use engine::Engine;\n"),
            ("engine.rs", "use crate::worker::Worker;\nuse crate::error::Error;\n"),
            ("error.rs", "pub struct Error;\n"),
            ("worker.rs", "mod tick;\npub use tick::Worker;\n"),
            ("worker/tick.rs", "use crate::error::Error;\npub struct Worker;\n"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn a_crate_on_the_list_is_left_out() {
        let files = [
            ("crates/x/src/lib.rs", "mod a;\nmod b;\n"),
            ("crates/x/src/a/y.rs", "use crate::b::B;\n"),
            ("crates/x/src/a.rs", "mod y;\n"),
            ("crates/x/src/b.rs", "use crate::a::y::Y;\n"),
        ];
        assert_eq!(check_without(&Tree::of(&files), &["crates/x"]), Vec::new());
        assert_eq!(check_without(&Tree::of(&files), &["crates/xy"]).len(), 1);
    }
}
