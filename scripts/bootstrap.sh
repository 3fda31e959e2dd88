#!/bin/sh
# Makes sure that everything the build needs can be used: cargo with rustfmt and clippy, a C++
# compiler, cmake, libclang (for bindgen) and cargo-nextest. What is there is used as it is; what
# is missing comes from apt (as root), else from the PyPI wheels, unpacked into .tools/.
#
# usage: scripts/bootstrap.sh [clients] [pip] [venv]
#
# pip and venv make sure of that module of python3 too, and clients of a Python that is new enough
# for the SDKs, so that a target that fetches a model or runs the clients fails here and not after
# a long build.
#
# The Makefile runs it first in every target that builds. It is silent and needs no network when
# nothing is missing. The settings that cargo needs go to .tools/env.sh, which is rewritten only
# when they change: a changed LIBCLANG_PATH makes cargo run llama.cpp's build script again.
#
# PONCHO_BOOTSTRAP=auto    install what is missing (the default)
# PONCHO_BOOTSTRAP=wheels  take cmake and libclang from the wheels even if the system has them
# PONCHO_BOOTSTRAP=check   install nothing, only say what is missing
#
# It must never change anything outside .tools/, apart from what apt and rustup install.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
tools=$root/.tools
log=$tools/bootstrap.log
mode=${PONCHO_BOOTSTRAP:-auto}

# Fixed versions, so that two machines build alike. cmake 3.31 is the last 3.x and libclang 18 the
# newest wheel there is. nextest needs a Rust of its own age: this one builds with 1.91 and later.
cmake_wheel=cmake==3.31.10
libclang_wheel=libclang==18.1.1
nextest_version=0.9.143

missing=''      # names of what could not be provided, for the report at the end
libclang_dir='' # set when bindgen cannot find libclang by itself
clang_args=''   # set when libclang has no compiler headers of its own
apt_updated=''  # the package lists are fetched at most once
curl_folder=''  # set when a stand-in for curl has to be used

case $mode in
auto | wheels | check) ;;
*)
    echo "bootstrap: PONCHO_BOOTSTRAP=$mode is not known; use auto, wheels or check" >&2
    exit 2
    ;;
esac

for need in "$@"; do
    case $need in
    clients | pip | venv) ;;
    *)
        echo "bootstrap: $need is not known; name clients, pip, venv or nothing" >&2
        exit 2
        ;;
    esac
done

say() {
    echo "bootstrap: $*" >&2
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# Runs a command with its output in the log; on failure shows the end of it.
logged() {
    echo "+ $*" >>"$log"
    if "$@" >>"$log" 2>&1; then
        return 0
    fi
    say "this failed: $*"
    tail -n 5 "$log" | sed 's/^/    /' >&2
    return 1
}

apt_usable() {
    [ "$mode" = auto ] && [ "$(id -u)" = 0 ] && have apt-get
}

apt_update() {
    [ -n "$apt_updated" ] && return 0
    say 'fetching the apt package lists'
    logged apt-get -o DPkg::Lock::Timeout=120 update || return 1
    apt_updated=yes
}

apt_install() {
    apt_update || return 1
    say "installing with apt: $*"
    logged env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "$@"
}

# The distribution's own choice if it names one, else the newest numbered package.
apt_libclang_package() {
    if apt-cache show libclang-dev >/dev/null 2>&1; then
        echo libclang-dev
    else
        apt-cache search --names-only '^libclang-[0-9]+-dev$' | cut -d' ' -f1 | sort -V | tail -n 1
    fi
}

# Unpacks a wheel into a folder under .tools. The folder appears whole or not at all.
wheel_install() {
    requirement=$1
    folder=$2
    [ "$mode" != check ] || return 1
    has_pip || make_python || :
    rm -rf "$folder.part"
    # -I and --only-binary: no module of the working folder and no setup.py of a package is run.
    for pip in 'python3 -I -m pip' pip3 pip 'uv pip'; do
        # Splitting the words of $pip is meant.
        # shellcheck disable=SC2086
        $pip --version >/dev/null 2>&1 || continue
        say "installing the wheel $requirement into .tools (with $pip)"
        # shellcheck disable=SC2086
        if logged $pip install --quiet --no-deps --only-binary :all: --target "$folder.part" "$requirement"; then
            rm -rf "$folder"
            mv "$folder.part" "$folder"
            return 0
        fi
    done
    rm -rf "$folder.part"
    return 1
}

# The minor number of the oldest Rust that cargo takes here.
wanted_rust() {
    sed -n 's/^rust-version = "1\.\([0-9]*\)"$/\1/p' "$root/Cargo.toml"
}

is_new_rust() {
    minor=${1#rustc 1.}
    [ "${minor%%.*}" -ge "$(wanted_rust)" ] 2>/dev/null
}

check_cargo() {
    if ! have cargo; then
        missing="$missing cargo"
        return
    fi
    # cargo would say so for each of our crates, after minutes of compiling other things.
    if ! is_new_rust "$(rustc --version 2>/dev/null)"; then
        missing="$missing rust"
        return
    fi
    for component in rustfmt clippy; do
        command=${component#rust}
        cargo "$command" --version >/dev/null 2>&1 && continue
        if [ "$mode" != check ] && have rustup; then
            say "adding the rustup component $component"
            logged rustup component add "$component" && continue
        fi
        missing="$missing $component"
    done
}

check_compiler() {
    if have c++ || have g++ || have clang++; then
        return
    fi
    if apt_usable && apt_install g++; then
        return
    fi
    missing="$missing c++"
}

has_pip() {
    python3 -I -m pip --version >/dev/null 2>&1
}

# Debian has the module venv without the ensurepip that it needs.
has_venv() {
    "${1:-python3}" -c 'import venv, ensurepip; ensurepip.version()' >/dev/null 2>&1
}

# A Python of our own with pip in it, made of another one (python3 if none is named), for machines with a Python that
# lacks pip or is too old. It comes first in PATH.
make_python() {
    [ "$mode" != check ] || return 1
    has_venv "${1:-python3}" || return 1
    say 'making a Python with pip in .tools/python'
    rm -rf "$tools/python"
    if logged "${1:-python3}" -m venv "$tools/python"; then
        # The shell remembers where python3 was found before.
        hash -r
        has_pip && return
    fi
    rm -rf "$tools/python"
    hash -r
    return 1
}

check_pip() {
    has_pip && return
    apt_usable && apt_install python3-pip && has_pip && return
    make_python && return
    missing="$missing pip"
}

check_venv() {
    has_venv && return
    apt_usable && apt_install python3-venv && has_venv && return
    missing="$missing venv"
}

is_new() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

make_new_python() {
    for python in python3.14 python3.13 python3.12 python3.11; do
        is_new "$python" && make_python "$python" && return
    done
    return 1
}

# The SDKs that tests/clients pins are not made for older ones. Ubuntu 22.04 has a newer one beside its own.
check_clients() {
    is_new python3 && return
    make_new_python && return
    apt_usable && apt_install python3.11-venv && make_new_python && return
    missing="$missing python"
}

# Only the tests run it, with the few flags that documents show. The stand-in comes last in PATH,
# so that a curl that is installed later is used.
check_curl() {
    have curl && return
    apt_usable && apt_install curl && return
    curl_folder=$root/scripts/stand_in
    say 'curl is missing: the tests run the curl lines of the documents with scripts/stand_in/curl'
}

check_cmake() {
    # An earlier wheel wins over a cmake that came later: the build stays as it was.
    if [ -x "$tools/bin/cmake" ]; then
        return
    fi
    if [ "$mode" != wheels ]; then
        have cmake && return
        apt_usable && apt_install cmake && return
    fi
    if wheel_install "$cmake_wheel" "$tools/cmake" && [ -x "$tools/cmake/cmake/data/bin/cmake" ]; then
        mkdir -p "$tools/bin"
        ln -sf ../cmake/cmake/data/bin/cmake "$tools/bin/cmake"
        return
    fi
    missing="$missing cmake"
}

holds_libclang() {
    for file in "$1"/libclang.so "$1"/libclang.so.* "$1"/libclang-*.so "$1"/libclang-*.so.* "$1"/libclang.dylib; do
        case $file in *libclang-cpp*) continue ;; esac
        [ -e "$file" ] && return 0
    done
    return 1
}

# The folders that bindgen (its crate clang-sys) searches. Fails when none holds libclang.
system_libclang() {
    if have llvm-config && holds_libclang "$(llvm-config --libdir 2>/dev/null)"; then
        return 0
    fi
    for folder in /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib64/llvm*/lib /usr/lib /usr/lib/*/* \
        /usr/local/llvm*/lib /usr/local/lib /usr/local/lib/* /Library/Developer/CommandLineTools/usr/lib \
        /usr/local/opt/llvm*/lib; do
        [ -d "$folder" ] || continue
        holds_libclang "$folder" && return 0
    done
    return 1
}

# libclang without its companion package lacks stddef.h and its like; gcc's own do as well.
system_clang_headers() {
    for file in /usr/lib/llvm-*/lib/clang/*/include/stddef.h /usr/lib*/clang/*/include/stddef.h \
        /usr/local/lib/clang/*/include/stddef.h \
        /Library/Developer/CommandLineTools/usr/lib/clang/*/include/stddef.h; do
        [ -e "$file" ] && return 0
    done
    return 1
}

use_gcc_headers() {
    for compiler in gcc cc; do
        have "$compiler" || continue
        headers=$("$compiler" -print-file-name=include)
        if [ -e "$headers/stddef.h" ]; then
            clang_args="-isystem $headers"
            return
        fi
    done
    missing="$missing compiler-headers"
}

use_libclang_wheel() {
    [ -e "$tools/libclang/clang/native/libclang.so" ] || [ -e "$tools/libclang/clang/native/libclang.dylib" ] || return 1
    libclang_dir=$tools/libclang/clang/native
    use_gcc_headers
}

use_system_libclang() {
    system_libclang || return 1
    system_clang_headers || use_gcc_headers
}

# A folder that the user named is used or refused, never replaced in silence.
check_named_libclang() {
    folder=$LIBCLANG_PATH
    [ -f "$folder" ] && folder=$(dirname -- "$folder")
    if ! holds_libclang "$folder"; then
        missing="$missing LIBCLANG_PATH"
        return
    fi
    for file in "$folder"/clang/*/include/stddef.h; do
        [ -e "$file" ] && return
    done
    use_gcc_headers
}

check_libclang() {
    if [ -n "${LIBCLANG_PATH:-}" ]; then
        check_named_libclang
        return
    fi
    use_libclang_wheel && return
    if [ "$mode" != wheels ]; then
        use_system_libclang && return
        if apt_usable && apt_update; then
            package=$(apt_libclang_package)
            [ -n "$package" ] && apt_install "$package" && use_system_libclang && return
        fi
    fi
    if wheel_install "$libclang_wheel" "$tools/libclang" && use_libclang_wheel; then
        return
    fi
    missing="$missing libclang"
}

check_nextest() {
    have cargo || return 0
    cargo nextest --version >/dev/null 2>&1 && return
    # A user who has to install something else first should not wait for this.
    [ -z "$missing" ] || return 0
    if [ "$mode" != check ]; then
        if have cargo-binstall; then
            say "installing cargo-nextest $nextest_version into .tools"
            logged cargo binstall --no-confirm --root "$tools" "cargo-nextest@$nextest_version" && return
        fi
        # No registry ships it ready-made, so it is compiled, once.
        say "compiling cargo-nextest $nextest_version into .tools; this takes some minutes, once"
        logged env CARGO_TARGET_DIR="$tools/build" \
            cargo install cargo-nextest --version "$nextest_version" --locked --no-default-features \
            --features default-no-update --root "$tools" && rm -rf "$tools/build" && return
    fi
    missing="$missing cargo-nextest"
}

advice() {
    case $1 in
    cargo) echo "cargo: install Rust from https://rustup.rs (stable, 1.$(wanted_rust) or later)" ;;
    rust) echo "Rust 1.$(wanted_rust) or later, not $(rustc --version 2>/dev/null || echo 'one that does not run'): rustup update stable" ;;
    rustfmt | clippy) echo "$1: rustup component add $1" ;;
    c++) echo 'a C++ compiler: apt-get install g++, dnf install gcc-c++, or xcode-select --install' ;;
    cmake) echo 'cmake: apt-get install cmake, dnf install cmake, brew install cmake, or pip install cmake' ;;
    libclang) echo 'libclang: apt-get install libclang-dev, dnf install clang-devel, or brew install llvm; or set LIBCLANG_PATH' ;;
    LIBCLANG_PATH) echo "LIBCLANG_PATH=$LIBCLANG_PATH holds no libclang: put it right, or unset it to have one looked for" ;;
    compiler-headers) echo 'stddef.h for libclang: apt-get install gcc (or clang)' ;;
    python) echo 'Python 3.11 or later, as python3 or under its own name with venv: the SDKs that the tests run need it' ;;
    pip) echo 'pip for python3: apt-get install python3-pip, dnf install python3-pip, or python3 -m ensurepip' ;;
    venv) echo 'venv for python3, with ensurepip: apt-get install python3-venv, or a Python from https://python.org' ;;
    cargo-nextest) echo 'cargo-nextest: cargo install cargo-nextest --locked, or https://nexte.st/docs/installation' ;;
    esac
}

write_env() {
    new=$tools/env.sh.$$
    {
        echo '# Written by scripts/bootstrap.sh: what cargo needs to build llama.cpp on this machine.'
        echo '# Values that you set yourself win.'
        if [ -d "$tools/bin" ]; then
            echo "case \":\$PATH:\" in *\":$tools/bin:\"*) ;; *) export PATH=\"$tools/bin:\$PATH\" ;; esac"
        fi
        if [ -x "$tools/python/bin/python3" ]; then
            echo "case \":\$PATH:\" in *\":$tools/python/bin:\"*) ;; *) export PATH=\"$tools/python/bin:\$PATH\" ;; esac"
        fi
        if [ -n "$curl_folder" ]; then
            echo "case \":\$PATH:\" in *\":$curl_folder:\"*) ;; *) export PATH=\"\$PATH:$curl_folder\" ;; esac"
        fi
        if [ -n "$libclang_dir" ]; then
            echo "export LIBCLANG_PATH=\"\${LIBCLANG_PATH:-$libclang_dir}\""
        fi
        if [ -n "$clang_args" ]; then
            echo "export BINDGEN_EXTRA_CLANG_ARGS=\"\${BINDGEN_EXTRA_CLANG_ARGS:-$clang_args}\""
        fi
    } >"$new"
    if cmp -s "$new" "$tools/env.sh"; then
        rm "$new"
    else
        mv "$new" "$tools/env.sh"
    fi
}

mkdir -p "$tools"
: >"$log"
# A shell that has read .tools/env.sh names our own wheel; the user did not choose it.
if [ "${LIBCLANG_PATH:-}" = "$tools/libclang/clang/native" ]; then
    unset LIBCLANG_PATH
fi
PATH=$tools/python/bin:$tools/bin:$PATH
check_cargo
check_compiler
check_curl
for need in "$@"; do
    "check_$need"
done
check_cmake
check_libclang
check_nextest

if [ -n "$missing" ]; then
    say 'cannot build yet. Missing, with what to install by hand:'
    for name in $missing; do
        echo "  - $(advice "$name")" >&2
    done
    [ -s "$log" ] && say 'what was tried is in .tools/bootstrap.log'
    exit 1
fi
write_env
