//! Runs of a binary, as the tests of `poncho` and of `poncho-bench` look at them.

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

/// How a run of the binary ended.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// The output of a run that must have gone well, as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The output of a run that must have gone well.
    #[track_caller]
    pub(crate) fn good(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stderr, "");
        &self.stdout
    }

    /// The message of a run that must have failed with code 1 and printed nothing.
    #[track_caller]
    pub(crate) fn failed(&self) -> &str {
        assert_eq!((self.code, self.stdout.as_str()), (Some(1), ""), "{}", self.stderr);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        &self.stderr
    }
}

/// A program with none of the variables that would change what it does.
pub(crate) fn without_settings(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let prefixes = ["PONCHO_", "XDG_", "OTEL_", "OLLAMA_", "LLAMA_ARG_"];
        if name.to_str().is_some_and(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(name);
        }
    }
    // The developer's own settings must not reach the tests.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    // Nor may a build for this CPU that lies beside the program.
    command.env("PONCHO_CPU_BUILD", "base");
    // No folder of models: the user's own must not be touched.
    command.env("XDG_DATA_HOME", "/nonexistent");
    command
}

pub(crate) fn run(command: &mut Command) -> Run {
    run_with_input(command, "")
}

pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Run {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that reads nothing may have closed it already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}
