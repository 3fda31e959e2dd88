//! A cluster of four nodes, routers and a NATS server, measured and broken: the promises of docs/cluster.md.
//!
//! A run of all tests has a small part that looks at no clock. `make cluster-figures` sets `PONCHO_CLUSTER_FIGURES`, runs
//! all of it with real models where a figure needs one, and prints the figures. `PONCHO_CLUSTER_TRACES` names a folder of
//! recorded conversations to replay; without it, a fleet is made up.

mod faults;
mod fleet;
mod measuring;
mod pulled;
mod routing;

use std::path::PathBuf;

use poncho_testkit::{ModelKind, ModelSpec, path_of};

fn is_whole() -> bool {
    std::env::var_os("PONCHO_CLUSTER_FIGURES").is_some()
}

/// A model that computes fast and takes long prompts.
fn quick_model() -> PathBuf {
    let tiny = ModelSpec::tiny(ModelKind::Attention);
    path_of(&ModelSpec { n_ctx_train: 131_072, n_layers: 2, ..tiny }).unwrap()
}

/// A text of this many letters that begins with its number.
fn text(number: usize, letters: usize) -> String {
    let sentence = format!("{number}: a poncho keeps every state warm and finds it again by its tokens. ");
    sentence.chars().cycle().take(letters).collect()
}
