//! `cargo xtask tidy`: checks of the repository that the compiler does not make.
//!
//! Called by `main.rs`. `tree` holds what the rules look at, `rules` the rules; the other files are what several rules
//! need to read Rust and Markdown. Nothing here may change a file.

mod commit;
mod document;
mod finding;
mod imports;
mod rules;
mod rust_source;
mod text;
mod tree;

pub(crate) use finding::Finding;
pub(crate) use rules::check;
pub(crate) use tree::Tree;
