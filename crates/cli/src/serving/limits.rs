//! The limit of open files and connections of this process.
//!
//! `serve` raises it as far as the system allows: most systems start a process with 1,024, which is too low for a busy
//! server. `doctor` reports the maximum.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections, cache files and model files; more is never used.
const ENOUGH: u64 = 65_536;

/// The maximum for this process; `None` if there is no limit.
pub(crate) fn most_open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Raises the limit of this process as far as it is possible and useful. Errors are ignored: the server works with less.
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}
