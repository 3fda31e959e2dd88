//! `poncho cache`: one file per command, and what they share.
//!
//! `ls`, `stat`, `show`, `verify` and `explain` read a folder without its lock, so they work beside a running server; `gc`,
//! `clear` and `evict` open it. All of them print to the writer they are given, as JSON or as text.

pub(crate) mod args;
mod clear;
mod evict;
mod explain;
mod folder;
mod freed;
mod gc;
mod listing;
mod ls;
mod row;
pub(crate) mod shared;
mod show;
mod stat;
mod verify;

use std::io::Write;

use poncho_terminal::{Outcome, Output};

use crate::commands::cache::args::{CacheArgs, CacheCommand, GcArgs, LsArgs};
use crate::commands::cache::folder::Folders;

pub(crate) fn run(args: &CacheArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let mut output = Output { out, json: args.json };
    match &args.command {
        CacheCommand::Ls(LsArgs { shared: Some(url), limit, .. }) => return shared::ls(url, *limit, &mut output),
        CacheCommand::Gc(GcArgs { shared: Some(url), shared_quota, .. }) => {
            return shared::gc(url, *shared_quota, &mut output);
        }
        _ => {}
    }
    let folders = Folders::find(&args.folders)?;
    match &args.command {
        CacheCommand::Ls(args) => ls::run(&folders, args, &mut output),
        CacheCommand::Stat => stat::run(&folders, &mut output),
        CacheCommand::Show(args) => show::run(&folders, args, &mut output),
        CacheCommand::Verify(args) => verify::run(&folders, args, &mut output),
        CacheCommand::Gc(args) => gc::run(&folders, args, &mut output),
        CacheCommand::Clear(args) => clear::run(&folders, args, &mut output),
        CacheCommand::Evict(args) => evict::run(&folders, args, &mut output),
        CacheCommand::Explain(args) => explain::run(&folders, args, &mut output),
    }
}
