//! `poncho cp FROM TO`: a second name for a model. No bytes are copied.

use std::io::Write;

use poncho_terminal::Outcome;

use crate::commands::models::args::CpArgs;

pub(crate) fn run(args: &CpArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let copied = args.registry.open()?.copy(&args.from, &args.to)?;
    writeln!(out, "{} now has the additional name {}", args.from, copied.name)?;
    Ok(Outcome::Good)
}
