//! Chores of the repository that need more than a line of shell: `cargo xtask tidy`.
//!
//! Called by the Makefile and by people. This file reads the arguments and prints the outcome;
//! the rules live one noun a file under `tidy`. It must never change a file of the repository.

mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy

  tidy   check what the compiler does not: file headers and sizes, paths and tests named in
         documents, forbidden code, unsafe outside its folder, crate boundaries, white space

exit codes: 0 nothing found, 1 something found, 2 wrong usage or unreadable repository";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tidy"] => run_tidy(),
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

fn run_tidy() -> ExitCode {
    // The folder of this crate is fixed when it is compiled; the repository is one above it.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let tree = match tidy::Tree::read(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: cannot read the repository at {}: {error}", root.display());
            return ExitCode::from(2);
        }
    };
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
