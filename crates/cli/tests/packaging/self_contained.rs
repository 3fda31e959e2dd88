//! The binary is one file that runs where nothing is installed for it: it carries the C++ runtime of llama.cpp.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::process::Command;

/// What every Linux with glibc has; the loader may give some with their folders.
const SYSTEM: [&str; 8] =
    ["linux-vdso.so", "ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libutil.so"];

#[test]
fn the_binary_needs_the_c_library_and_nothing_else() {
    // With this variable the loader lists what it would load, and runs nothing.
    let listed = Command::new(env!("CARGO_BIN_EXE_poncho")).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(|path| path.rsplit('/').next().unwrap())
        .collect();
    assert!(names.iter().any(|name| name.starts_with("libc.so")), "the loader listed nothing: {text}");
    let foreign: Vec<_> = names.iter().filter(|name| !SYSTEM.iter().any(|known| name.starts_with(known))).collect();
    assert!(
        foreign.is_empty(),
        "{foreign:?} would have to be installed; if the build warned of a missing archive, install it (libstdc++-static \
         on Fedora) and build again after `cargo clean -p poncho`"
    );
}
