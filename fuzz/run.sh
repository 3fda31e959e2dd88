#!/bin/sh
# Builds the fuzz targets with coverage feedback and runs each for SECONDS (default 60); fails on a crash.
# Stable Rust and a C++ compiler are enough: rustc's own LLVM puts the counters in that libFuzzer reads.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}

host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="-Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    RUSTFLAGS="$RUSTFLAGS -Cllvm-args=-sanitizer-coverage-$option"
done
export RUSTFLAGS="$RUSTFLAGS -Ccodegen-units=1 --cfg fuzzing"
export CARGO_TARGET_DIR="$PWD/target"

# With --target the flags reach the fuzzed code only: build scripts have no libFuzzer to link to.
cargo build --release --target "$host" --bin kvc_prefix --bin kvc_tlv

mkdir -p artifacts
for target in kvc_prefix kvc_tlv; do
    mkdir -p "corpus/$target"
    echo "fuzz: $target for $seconds s"
    "target/$host/release/$target" "corpus/$target" "seeds/$target" \
        -max_total_time="$seconds" -rss_limit_mb=2048 -max_len=4096 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target-"
done
echo "fuzz: no crash"
