#!/bin/sh
# Builds the fuzz targets with coverage feedback and runs each for SECONDS (default 60); fails on a crash, a hang and
# a leak of memory beyond the limit.
#
# usage: fuzz/run.sh [SECONDS [TARGET...]]
#
# FUZZ_SEED   the seed of the mutations: 1 unless it is set; `random` for another one each time.
# FUZZ_RUNS   ends a target after this many inputs, if the time is not over before; not those of the file format, which
#             are quick. With a fixed seed and few enough inputs two runs try the same, as those of `make test` should.
#
# Stable Rust and a C++ compiler are enough: rustc's own LLVM puts the counters in that libFuzzer reads. The target
# folder and llama.cpp's build are those of every other cargo call (counters.sh).
set -eu
# Named from the folder of the caller, as for every other cargo call, and the folder changes here.
case ${CARGO_TARGET_DIR:-/} in
/*) ;;
*) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR && export CARGO_TARGET_DIR ;;
esac
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -gt 0 ] && shift
targets=${*:-kvc_prefix kvc_tlv bodies schema template gguf rows}
case ${FUZZ_SEED:=1} in random) FUZZ_SEED=0 ;; esac

RUSTC_WORKSPACE_WRAPPER="$PWD/counters.sh" cargo build --release -p poncho-fuzz --features libfuzzer
built=${CARGO_TARGET_DIR:-$PWD/../target}/release

mkdir -p target/artifacts
for target in $targets; do
    corpus=target/corpus/$target
    mkdir -p "$corpus" "seeds/$target"
    limit=''
    case $target in
    kvc_*) ;;
    *) [ -z "${FUZZ_RUNS:-}" ] || limit=-runs=$FUZZ_RUNS ;;
    esac
    dictionary=''
    [ -f "$target.dict" ] && dictionary=-dict=$target.dict
    echo "fuzz: $target for $seconds s"
    # shellcheck disable=SC2086
    "$built/fuzz_$target" "$corpus" "seeds/$target" $dictionary $limit \
        -max_total_time="$seconds" -seed="$FUZZ_SEED" -rss_limit_mb=3072 -max_len=8192 -timeout=10 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="target/artifacts/$target-"
done
echo "fuzz: no crash"
