//! Chores of the repository that need more than a line of shell: `cargo xtask tidy` and `cargo xtask deny`.
//!
//! Called by the Makefile and by people. This file reads the arguments and prints the outcome;
//! the rules live in `tidy/rules`, one file each. It must never change a file of the repository.

mod deny;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy [--strict]
       cargo xtask deny [ADVISORIES]

  tidy   check what the compiler does not: file headers and sizes, entries of a folder, import
         cycles, crate boundaries, forbidden code, unsafe outside its folder, paths and tests named
         in documents, wording, line widths, white space, the Rust version, commit messages;
         --strict also covers the files that a rule exempts for now
  deny   check the dependencies: licences, sources and, if ADVISORIES is a checkout of RustSec's
         database (by default .tools/advisory-db, if it is there), known flaws

exit codes: 0 nothing found, 1 something found, 2 wrong usage or unreadable repository";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => run_tidy(false),
        ["tidy", "--strict"] => run_tidy(true),
        ["deny"] => run_deny(None),
        ["deny", advisories] => run_deny(Some(Path::new(advisories))),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The folder of this crate is fixed when it is compiled; the repository is one above it.
fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

fn run_deny(database: Option<&Path>) -> ExitCode {
    let usual = repository().join(".tools/advisory-db");
    let database = database.or_else(|| usual.is_dir().then_some(usual.as_path()));
    let looked = deny::packages(repository()).and_then(|packages| {
        let advisories = database.map(deny::Advisories::read).transpose()?;
        Ok((deny::check(&packages, advisories.as_ref()), packages.len(), advisories))
    });
    let (findings, count, advisories) = match looked {
        Ok(looked) => looked,
        Err(error) => {
            eprintln!("deny: {error}");
            return ExitCode::from(2);
        }
    };
    for finding in &findings {
        println!("{finding}");
    }
    let known = match &advisories {
        Some(advisories) => format!("{} advisories", advisories.len()),
        None => "no advisories at hand: licences and sources alone".to_owned(),
    };
    println!("deny: {count} packages, {known}, {} finding(s)", findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_tidy(is_strict: bool) -> ExitCode {
    let root = repository();
    let mut tree = match tidy::Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: cannot read the repository at {}: {error}", root.display());
            return ExitCode::from(2);
        }
    };
    tree.is_strict = is_strict;
    let findings = tidy::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files, nothing found", tree.len());
        ExitCode::SUCCESS
    } else {
        println!("tidy: {} finding(s) in {} files", findings.len(), tree.len());
        ExitCode::FAILURE
    }
}
