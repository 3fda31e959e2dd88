//! `poncho rm NAME...`: removes names, and the files that no other name uses.

use std::io::Write;

use poncho_terminal::{Outcome, show_bytes};

use crate::commands::models::args::RmArgs;

pub(crate) fn run(args: &RmArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let registry = args.registry.open()?;
    for name in &args.names {
        let removed = registry.remove(name)?;
        match removed.files {
            0 => writeln!(out, "removed {name}; another name still uses its file")?,
            _ => writeln!(out, "removed {name} and freed {}", show_bytes(removed.bytes))?,
        }
    }
    Ok(Outcome::Good)
}
