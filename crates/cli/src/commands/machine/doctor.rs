//! `poncho doctor`: whether this machine can serve with the effective settings, and what to do if not.
//!
//! `facts.rs` looks at the machine, `checks.rs` judges (pure, so that tests can give it bad facts), and this file prints.
//! It changes nothing: it creates no folder, and the file that measures the disk has no name. Only an object store that
//! `--shared` names is written to, and what was written is removed.

mod checks;
mod facts;

use std::io::Write;

use serde_json::{Value, json};

use poncho_terminal::{Outcome, print_json};

use self::checks::{Finding, Level};
use crate::settings::Resolved;

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON on standard output and nothing else
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DoctorArgs, resolved: &Resolved, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let facts = facts::gather(resolved)?;
    let findings = checks::check(&facts);
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (broken, warnings) = (count(Level::Broken), count(Level::Warning));
    if args.json {
        let report = json!({
            "broken": broken,
            "warnings": warnings,
            "findings": findings.iter().map(as_json).collect::<Vec<_>>(),
        });
        print_json(out, &report)?;
    } else {
        for finding in &findings {
            writeln!(out, "{:<8} {}: {}", finding.level.word(), finding.check, finding.fact)?;
            if let Some(advice) = &finding.advice {
                writeln!(out, "         {advice}")?;
            }
        }
        match (broken, warnings) {
            (0, 0) => writeln!(out, "no problems found")?,
            (0, _) => writeln!(out, "Poncho can serve; warnings: {warnings}")?,
            _ => writeln!(out, "Poncho cannot serve; broken: {broken}, warnings: {warnings}")?,
        }
    }
    Ok(if broken == 0 { Outcome::Good } else { Outcome::Bad })
}

fn as_json(finding: &Finding) -> Value {
    json!({
        "check": finding.check,
        "level": finding.level.word(),
        "fact": finding.fact,
        "advice": finding.advice,
    })
}
