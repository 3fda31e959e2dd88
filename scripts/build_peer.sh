#!/bin/sh
# Builds llama.cpp's own server and its bare decoding loop, to compare with: .tools/peer/bin/llama-server and
# llama-batched-bench, from the sources that scripts/fetch/llama_cpp.py fetches, with the compiler flags of our own build.
#
# `make peer` runs it; docs/benchmarks.md says how both are used. It must never take flags that make one side faster.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
[ ! -f "$root/.tools/env.sh" ] || . "$root/.tools/env.sh"
"$root/scripts/fetch/llama_cpp.py"

# As llama-cpp-sys-4's build script compiles it for this workspace.
flags='-ffunction-sections -fdata-sections -fPIC -m64 -march=x86-64-v3 -w'
cmake -S "$root/.tools/llama.cpp" -B "$root/.tools/peer" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
    -DCMAKE_C_FLAGS_RELEASE='-O3 -DNDEBUG' -DCMAKE_CXX_FLAGS_RELEASE='-O3 -DNDEBUG' \
    -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=OFF -DGGML_AVX2=OFF -DGGML_FMA=OFF -DGGML_F16C=OFF \
    -DGGML_BMI2=OFF -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=ON -DGGML_CPU_REPACK=ON \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF >"$root/.tools/peer.log"
cmake --build "$root/.tools/peer" -j "${PEER_JOBS:-2}" --target llama-server llama-batched-bench >>"$root/.tools/peer.log"
ls "$root/.tools/peer/bin/llama-server" "$root/.tools/peer/bin/llama-batched-bench"
