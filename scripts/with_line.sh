#!/bin/sh
# Runs a program in a network namespace of its own, with a loopback interface that carries RATE (as `tc` writes it).
#
# usage: scripts/with_line.sh RATE PROGRAM [ARGUMENT...]
#
# Called by `make cluster-figures`. Needs `ip`, `tc` and permission to make namespaces.
set -eu
rate=$1
shift
exec unshare --user --map-root-user --net sh -c \
    'ip link set lo up && tc qdisc add dev lo root tbf rate "$0" burst 256kb latency 200ms && exec "$@"' "$rate" "$@"
