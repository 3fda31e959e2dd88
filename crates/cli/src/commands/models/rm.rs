//! `poncho rm NAME...`: takes names away, and the files that no other name needs.

use std::io::Write;

use crate::Outcome;
use crate::commands::models::args::RmArgs;
use crate::commands::models::folder;
use crate::terminal::bytes::show_bytes;

pub(crate) fn run(args: &RmArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let registry = folder::open(&args.registry)?;
    for name in &args.names {
        let removed = registry.remove(name)?;
        match removed.files {
            0 => writeln!(out, "removed {name}; its file is still needed by another name")?,
            _ => writeln!(out, "removed {name} and freed {}", show_bytes(removed.bytes))?,
        }
    }
    Ok(Outcome::Good)
}
