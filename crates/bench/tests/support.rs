//! Shared by the tests: the binary, and the `poncho` that it starts.

use std::path::Path;
use std::process::Command;

use crate::running::without_settings;
pub(crate) use crate::running::{Run, run};

/// `poncho-bench` with none of the variables that would change what it does.
pub(crate) fn bench() -> Command {
    without_settings(env!("CARGO_BIN_EXE_poncho-bench"))
}

/// The `poncho` beside it. Cargo builds it for the tests of the whole workspace, not for those of this crate alone.
pub(crate) fn poncho() -> Command {
    let path = Path::new(env!("CARGO_BIN_EXE_poncho-bench")).with_file_name("poncho");
    assert!(path.is_file(), "{} is missing; build it: cargo build --release -p poncho", path.display());
    without_settings(path.to_str().unwrap())
}
