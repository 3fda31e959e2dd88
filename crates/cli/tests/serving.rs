//! `poncho serve`: models, signals, strange files.

pub(crate) mod bad_input;
pub(crate) mod crafted;
pub(crate) mod devices;
pub(crate) mod fit_matrix;
pub(crate) mod fitting;
pub(crate) mod named_models;
pub(crate) mod nodes;
pub(crate) mod poison;
pub(crate) mod reply_lines;
pub(crate) mod shared_rows;
pub(crate) mod stopping;
pub(crate) mod strange_files;
pub(crate) mod surviving;
pub(crate) mod turmoil;
