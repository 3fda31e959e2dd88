#!/bin/sh
# Runs one step of a make target: prints a heading, runs the command with the settings that
# scripts/bootstrap.sh found, and prints how long it took.
#
# usage: scripts/step.sh HEADING COMMAND [ARGUMENT...]
#
# Every cargo call of the Makefile goes through here, so that all of them see one environment;
# a variable that differs between two calls may compile llama.cpp again.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
heading=$1
shift

# shellcheck source=/dev/null
. "$root/.tools/env.sh"
# llama.cpp's own makefiles must not inherit the flags of ours.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
# A proxy that leads to the registries must not be asked for the servers that tests start on this machine.
direct=${no_proxy:-${NO_PROXY:-}}
case ,$direct, in
*,\*,*) ;;
*) export no_proxy="${direct:+$direct,}127.0.0.1,localhost" NO_PROXY="${direct:+$direct,}127.0.0.1,localhost" ;;
esac

printf '\n==> %s\n' "$heading"
start=$(date +%s)
code=0
"$@" || code=$?
seconds=$(($(date +%s) - start))
if [ "$code" -eq 0 ]; then
    printf '    ok: %s (%s s)\n' "$heading" "$seconds"
else
    printf '    FAILED: %s (%s s, exit code %s)\n' "$heading" "$seconds" "$code" >&2
fi
exit "$code"
