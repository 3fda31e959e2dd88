#!/bin/sh
# Counts the instructions of one tick of the engine on the stub backend, with callgrind.
#
# Two runs that differ only in their number of ticks are subtracted, so that loading and the like drop out. The count hardly
# depends on what else the machine does, so a regression of a few hundred instructions shows. docs/benchmarks.md has the figures.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
command -v valgrind >/dev/null || {
    echo 'valgrind is missing; install it (apt-get install valgrind)' >&2
    exit 1
}
bench=$(cargo bench --no-run --profile release -p poncho-engine --bench ticks 2>&1 | sed -n 's/.*(\(.*ticks-[^)]*\)).*/\1/p')
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# instructions TICKS STREAMS [FUNCTION]: of the whole run, or of one function with what it calls.
instructions() {
    out=$folder/$1-$2
    [ -f "$out" ] || PONCHO_TICKS=$1 PONCHO_STREAMS=$2 valgrind --tool=callgrind --callgrind-out-file="$out" "$bench" \
        >"$folder/log" 2>&1 || {
        cat "$folder/log" >&2
        exit 1
    }
    if [ $# -eq 2 ]; then
        sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$out" | head -n 1
    else
        callgrind_annotate --auto=no --inclusive=yes --threshold=100 "$out" 2>/dev/null | grep -F "$3" | head -n 1 | sed 's/ (.*//; s/[ ,]//g'
    fi
}

for streams in 1 4; do
    all=$((($(instructions 2200 $streams) - $(instructions 200 $streams)) / 2000))
    long=$(instructions 2200 $streams 'StubContext as poncho_engine::backend::Context>::decode')
    short=$(instructions 200 $streams 'StubContext as poncho_engine::backend::Context>::decode')
    stub=$(((${long:-0} - ${short:-0}) / 2000))
    echo "$streams streams: $all instructions a tick, $stub of them in the stub's decode"
done
