//! How the process is started: the program, its socket, its limits of time.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How the process is started, and where its crashes are written down.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables that it gets besides those of this process.
    pub variables: Vec<(OsString, OsString)>,
    /// The variable that names the socket it has to serve.
    pub socket_variable: &'static str,
    /// How long it may take to serve the socket.
    pub start_within: Duration,
    /// How long a call waits for a process that is being started again, its models included.
    pub call_wait: Duration,
    /// Crashes of one model in a minute after which it is set aside; 0 for never.
    pub crash_limit: u32,
    /// Where crashes are written down.
    pub crashes: PathBuf,
    /// Called with each line of its log, besides showing it.
    pub note: Option<fn(&str)>,
}
