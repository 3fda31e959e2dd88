//! docs/benchmarks.md: the comparison with another server is run as it is written, in a small round.
//!
//! A script called `llama-server` takes the other server's flags and starts a Poncho with them. Its port is a free one in
//! the place of 8081, and each comparison is made small by flags behind it. A process that adopts orphans runs the whole: servers
//! that the guide's own restart script starts are ended with the test.

use std::os::unix::fs::PermissionsExt as _;

use super::place::{Place, lines};
use super::{Way, blocks_of};
use crate::support::run;

const PEER_PORT_IN_DOCUMENT: &str = "8081";

/// Shows that all works and measures nothing; everything else is as written.
const SMALL: &str = "--quick --prompt-tokens 128 --streams 1,4";

const STAND_IN: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    -m) model=$2 ;;
    --host) host=$2 ;;
    --port) port=$2 ;;
    -c) room=$2 ;;
    -np) slots=$2 ;;
    -t | -tb) ;;
    *) echo "llama-server has no $1 here" >&2 && exit 2 ;;
    esac
    shift 2
done
exec poncho serve --model "$model" --host "$host" --port "$port" --ctx-size $((room / slots)) --parallel "$slots" \
    --threads 1 --cache-dir "$(mktemp -d "$PWD/peer-XXXXXX")"
"#;

/// Adopts the orphans of the commands that it runs, buries them, and ends those that are left.
const FOSTER: &str = r#"
import ctypes, os, signal, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
first = os.posix_spawn("/bin/sh", ["sh", "-c", sys.argv[1]], os.environ)
code = None
while code is None:
    pid, status = os.wait()
    if pid == first:
        code = os.waitstatus_to_exitcode(status)
for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split():
    os.kill(int(pid), signal.SIGKILL)
    os.waitpid(int(pid), 0)
sys.exit(code)
"#;

fn executable(path: &std::path::Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Which comparisons of the guide.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    /// Peers with a server that the guide's script starts and restarts.
    Restarted,
    /// Those that start it once.
    StartedOnce,
}

fn run_comparisons(with: Peer) {
    let place = Place::new();
    executable(&place.write("bin/llama-server", STAND_IN));
    for trace in blocks_of(Way::Trace) {
        place.write("traces/shown.json", &trace.body);
    }
    // The other server is started again on the same port, so it cannot be given 0.
    let port = poncho_testkit::unused_address().port().to_string();
    let mut blocks = blocks_of(Way::Comparison);
    for block in &mut blocks {
        block.body = block.body.replace(PEER_PORT_IN_DOCUMENT, &port).replace("--threads 2", "--threads 1");
    }
    let (scripts, comparisons): (Vec<_>, Vec<_>) = blocks.iter().partition(|block| block.opens().starts_with("#!"));
    let [script] = scripts[..] else { panic!("one script that restarts: {scripts:?}") };
    executable(&place.write("restart.sh", &script.body));
    let answers = format!("until curl -sf http://127.0.0.1:{port}/health/ready >/dev/null; do sleep 0.05; done");
    let mut compared = 0;
    for block in comparisons {
        let [peer, compare] = &lines(&block.body)[..] else { panic!("{}: a server and a command", block.place()) };
        assert!(peer.starts_with("llama-server ") && compare.starts_with("poncho bench compare "), "{}", block.place());
        let (kind, start) = match script.body.contains(peer) {
            true => (Peer::Restarted, "./restart.sh".to_owned()),
            false => (Peer::StartedOnce, format!("{{ {peer} >peer.log 2>&1 & }}")),
        };
        if kind != with {
            continue;
        }
        let whole = format!("PATH=$PWD/bin:$PATH; export PATH; {start}; {answers}; {compare} {SMALL}");
        let mut command = place.shell("exec python3 -c \"$FOSTER\" \"$LINES_OF_THE_GUIDE\"");
        let ran = run(command.env("FOSTER", FOSTER).env("LINES_OF_THE_GUIDE", &whole));
        assert_eq!(ran.code, Some(0), "{}\n{whole}\n{}{}", block.place(), ran.stdout, ran.stderr);
        let has_targets = ["at least", "at most"].iter().any(|target| ran.stdout.contains(target));
        assert!(has_targets, "the targets are printed: {}", ran.stdout);
        assert_eq!(place.path().join("compare.json").is_file(), compare.contains("--json compare.json"));
        compared += 1;
    }
    assert!(compared > 0, "the guide has a comparison of this kind");
}

#[test]
fn the_comparison_runs_as_it_is_written() {
    run_comparisons(Peer::Restarted);
}

#[test]
fn the_comparison_without_restarts_runs_as_it_is_written() {
    run_comparisons(Peer::StartedOnce);
}
