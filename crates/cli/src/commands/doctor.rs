//! `poncho doctor`: whether this machine can serve with the settings that hold, and what to do if not.
//!
//! `facts.rs` looks at the machine, `checks.rs` judges (pure, so that tests can hand it bad facts), here the findings are
//! printed. It changes nothing: no folder is created, and what it writes to measure the disk has no name.

mod checks;
mod facts;
pub(crate) mod limits;
mod memory;
pub(crate) mod port;

use std::io::Write;

use serde_json::{Value, json};

pub(crate) use checks::LITTLE_SPACE;

use self::checks::{Finding, Level};
use crate::Outcome;
use crate::args::DoctorArgs;
use crate::settings::Resolved;

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
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        for finding in &findings {
            writeln!(out, "{:<8} {}: {}", finding.level.word(), finding.check, finding.fact)?;
            if let Some(advice) = &finding.advice {
                writeln!(out, "         {advice}")?;
            }
        }
        match (broken, warnings) {
            (0, 0) => writeln!(out, "all is well")?,
            (0, _) => writeln!(out, "it will work; {warnings} to look at")?,
            _ => writeln!(out, "{broken} to put right, {warnings} to look at")?,
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
