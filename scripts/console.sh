#!/bin/sh
# Builds the page of the console with npm, checks it, tests it in a real browser, or measures it there.
#
# usage: scripts/console.sh build | check | browser [FOLDER] | frames [ROUNDS] | streams MODEL.gguf [ROUNDS] [--apart]
#        | open-webui URL MODEL MODEL
#
# `build` never fails for want of node or npm's packages: the server is built without the console then. `check` also
# runs the type checker and the linter, and `browser` the tests in crates/console/web/test, which need the example
# `console_server` of poncho-server; with a folder they write screenshots there. `frames` measures the page with many rows
# and requests, `streams` what an open page costs a server, and `open-webui` uses another front end as a user does. Packages
# come from npm's registry by the pins of the lock files.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
web=$root/crates/console/web
step=${1:-build}

# Installs the packages of a folder when its pins changed.
install() {
    pins=$(cksum <"$1/package-lock.json")
    mark=$1/node_modules/.pins
    if [ -f "$mark" ] && [ "$(cat "$mark")" = "$pins" ]; then
        return 0
    fi
    # Not `npm ci`: it refuses a lock file without the optional packages of every other platform. Under NODE_ENV=production
    # npm would leave out what builds and tests.
    (cd "$1" && npm install --include=dev --no-save --no-audit --no-fund --loglevel=error) && printf '%s' "$pins" >"$mark"
}

# What vite runs on. Prints the version that is too old, or what is missing.
unusable_node() {
    command -v node >/dev/null && command -v npm >/dev/null || {
        echo 'node and npm are not installed'
        return
    }
    node -e 'const [major, minor] = process.versions.node.split(".").map(Number);
        if (major < 20 || major === 21 || (major === 20 && minor < 19) || (major === 22 && minor < 12))
            console.log(`node ${process.versions.node} is too old`)'
}

problem=$(unusable_node)
if [ -n "$problem" ]; then
    if [ "$step" = build ]; then
        echo "console: $problem; the server is built without the console, or with an older one"
        exit 0
    fi
    echo "console: $problem; \`make test\` and measurements in a browser need node 20.19, 22.12 or newer; install it" >&2
    exit 1
fi

case $step in
build)
    if ! install "$web" || ! (cd "$web" && npm run --silent build); then
        echo 'console: the page could not be built; the server is built without it or with an older one' >&2
    fi
    ;;
check)
    install "$web"
    (cd "$web" && npm run --silent check && npm run --silent build)
    ;;
browser | frames | streams | open-webui)
    install "$web/test"
    shift
    if [ "$step" = browser ]; then
        step=run
    fi
    exec node "$web/test/$(echo "$step" | tr - _).mjs" "$@"
    ;;
*)
    echo "console: $step is not a step; use build, check, browser, frames, streams or open-webui" >&2
    exit 2
    ;;
esac
