//! `poncho cp FROM TO`: a second name for a model. No bytes are copied.

use std::io::Write;

use crate::Outcome;
use crate::commands::models::args::CpArgs;
use crate::commands::models::folder;

pub(crate) fn run(args: &CpArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let copied = folder::open(&args.registry)?.copy(&args.from, &args.to)?;
    writeln!(out, "{} is now also called {}", args.from, copied.name)?;
    Ok(Outcome::Good)
}
