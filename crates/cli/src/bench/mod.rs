//! `poncho bench`: measurements that a user can repeat.
//!
//! Called by `main`. One file per step of a replay: read a trace, start a server or reach one, send, count, report.

pub(crate) mod args;
pub(crate) mod client;
mod known;
pub(crate) mod local;
mod replay;
mod report;
mod trace;

use std::io::Write;

use crate::Outcome;
use crate::bench::args::{BenchArgs, BenchCommand};

pub(crate) fn run(args: &BenchArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    match &args.command {
        BenchCommand::Replay(args) => replay::run(args, out),
    }
}
