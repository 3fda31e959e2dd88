//! Builds for newer CPUs beside the program: the best one that works takes over, and a broken one costs a line.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Run, run, without_settings};

/// Passes its trial and prints its arguments.
const WORKS: &str = "#!/bin/sh\n[ \"$1\" = try-cpu ] && exit 0\necho \"taken over by $0: $*\"\n";
/// As on a virtual machine that announces what it does not allow.
const DIES: &str = "#!/bin/sh\nkill -ILL $$\n";

/// The program in a folder of its own.
fn installed(folder: &Path) -> PathBuf {
    let path = folder.join("poncho");
    if std::fs::hard_link(env!("CARGO_BIN_EXE_poncho"), &path).is_err() {
        std::fs::copy(env!("CARGO_BIN_EXE_poncho"), &path).unwrap();
    }
    path
}

fn add_builds(folder: &Path, script: &str) {
    let builds = folder.join("poncho-cpu");
    std::fs::create_dir_all(&builds).unwrap();
    for name in ["avx512", "avxvnni"] {
        let path = builds.join(format!("poncho-{name}"));
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn asked(program: &Path, build: &str) -> Run {
    let mut command: Command = without_settings(program);
    run(command.args(["serve", "--help"]).env("PONCHO_CPU_BUILD", build))
}

/// Whether one of the builds is for this CPU.
fn has_a_build() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected;
        let wide = is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("avx512bf16");
        wide || is_x86_feature_detected!("avxvnni")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[test]
fn a_build_for_this_cpu_takes_over_and_gets_the_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let program = installed(folder.path());
    add_builds(folder.path(), WORKS);
    let ran = asked(&program, "auto");
    if has_a_build() {
        assert!(ran.stdout.starts_with("taken over by ") && ran.stdout.ends_with(": serve --help\n"), "{}", ran.stdout);
        assert!(ran.stdout.contains("/poncho-cpu/poncho-avx"), "{}", ran.stdout);
    } else {
        assert!(ran.stdout.contains("--port"), "{}", ran.stdout);
    }
    let base = asked(&program, "base");
    assert!(base.stdout.contains("--port"), "{}", base.stdout);
}

#[test]
fn a_build_that_dies_costs_a_line_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let program = installed(folder.path());
    add_builds(folder.path(), DIES);
    let ran = asked(&program, "auto");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("--port"), "{}", ran.stdout);
    assert_eq!(ran.stderr.contains("SIGILL"), has_a_build(), "{}", ran.stderr);
}

#[test]
fn a_build_that_is_not_known_is_named_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let ran = asked(&installed(folder.path()), "avx1024");
    assert!(ran.stderr.contains("`avx1024`") && ran.stderr.contains("avx512"), "{}", ran.stderr);
    assert_eq!(ran.code, Some(0));
}

#[test]
fn the_program_can_try_its_own_instructions() {
    let ran = run(without_settings(env!("CARGO_BIN_EXE_poncho")).arg("try-cpu"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}
