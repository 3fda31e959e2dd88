#!/bin/sh
# Stands before rustc when run.sh builds: compiles our own crates with the counters that libFuzzer reads.
#
# usage: counters.sh RUSTC ARGUMENT...   (cargo's RUSTC_WORKSPACE_WRAPPER)
#
# Cargo calls it for the crates of this workspace alone and keeps their artifacts apart, as it does for clippy. Everything
# else, llama.cpp first of all, is shared with the ordinary build. Build scripts have no libFuzzer to link to.
set -eu
case " $* " in
*' --crate-name build_script_'*) exec "$@" ;;
esac
exec "$@" -Cdebug-assertions=on -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
