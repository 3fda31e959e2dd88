//! How many files and connections this process may hold open.
//!
//! `serve` raises the limit to what the system allows; most systems start a process with 1,024, which a busy server
//! passes. `doctor` looks at what it may be raised to.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections, cache files and the model's own; more would never be used.
const ENOUGH: u64 = 65_536;

/// The most that this process may hold open; `None` for no limit.
pub(crate) fn most_open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// Raises the limit of this process as far as it goes and is useful. Failing changes nothing, and nothing is said: the
/// server works with less.
pub(crate) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}
