//! The end of a command: its result as an exit code, and its error as text.
//!
//! Called by the `main` functions. Exit codes: 0 success, 1 failure; clap uses 2 for wrong usage.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::printable;

/// The result of a command that ran to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is wrong.
    Good,
    /// The command worked and found a problem.
    Bad,
    /// The exit code of a program that the command ran.
    Code(u8),
}

/// Prints the error, if there is one, and returns the exit code.
///
/// `poncho cache ls | head -1` is a success: the reader has seen enough.
#[must_use]
pub fn exit_code(result: &anyhow::Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Good) => ExitCode::SUCCESS,
        Ok(Outcome::Bad) => ExitCode::FAILURE,
        Ok(Outcome::Code(code)) => ExitCode::from(*code),
        Err(error) if is_broken_pipe(error) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(error);
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<io::Error>() {
        Some(error) => error.kind() == io::ErrorKind::BrokenPipe,
        None => {
            cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind)
                == Some(io::ErrorKind::BrokenPipe)
        }
    })
}

/// Prints the message and its causes, without those that the message already contains.
pub fn print_error(error: &anyhow::Error) {
    let mut said = error.to_string();
    let mut text = format!("error: {said}\n");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !said.contains(&cause) {
            text.push_str(&format!("  caused by: {cause}\n"));
            said.push_str(&cause);
        }
    }
    // The text may quote a server or a file. If standard error is closed, there is nothing left to do.
    let _ = io::stderr().write_all(printable(&text).as_bytes());
}
