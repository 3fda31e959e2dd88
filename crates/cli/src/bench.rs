//! `poncho bench`: measurements that a user can repeat.
//!
//! Called by `main`. One file per step of a replay: read a trace, start a server or reach one, send, count, report. The
//! comparison with another server has a folder of its own, the matrix a file.

pub(crate) mod args;
mod call;
mod compare;
mod known;
mod machine;
mod matrix;
mod prompts;
mod replay;
mod report;
mod stats;
mod svg;
mod trace;

use std::io::Write;

use crate::Outcome;
use crate::bench::args::{BenchArgs, BenchCommand};

pub(crate) fn run(args: &BenchArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    match &args.command {
        BenchCommand::Replay(args) => replay::run(args, out),
        BenchCommand::Compare(args) => compare::run(args, out),
        BenchCommand::Matrix(args) => matrix::run(args, out),
    }
}
