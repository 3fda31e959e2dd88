//! `poncho create NAME -f Modelfile`: a new model from an installed one or from a file.

use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::Context;
use poncho_models::{Modelfile, PathRule};
use poncho_server::check_modelfile;
use poncho_terminal::Outcome;

use crate::commands::models::args::CreateArgs;
use crate::commands::models::progress::Reporter;
use crate::serving::templates::usable_template;

pub(crate) fn run(args: &CreateArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let is_input = args.file == Path::new("-");
    let text = if is_input {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).context("cannot read the Modelfile from standard input")?;
        text
    } else {
        let file = args.file.display();
        std::fs::read_to_string(&args.file)
            .with_context(|| format!("cannot read the Modelfile {file}; name one with -f FILE"))?
    };
    let modelfile =
        Modelfile::parse(&text).with_context(|| format!("{} is not a valid Modelfile", args.file.display()))?;
    check_modelfile(&modelfile, Some(usable_template))
        .with_context(|| format!("{} cannot be used", args.file.display()))?;
    // Relative paths in a Modelfile start at its folder.
    let beside = if is_input { None } else { args.file.parent() };
    let base = beside.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut reporter = Reporter::for_people(args.name.to_string());
    let registry = args.registry.open()?;
    let made = registry.create(&args.name, &modelfile, PathRule::From(base), &mut |step| reporter.report(&step));
    reporter.finish();
    writeln!(out, "created {}", made?.name)?;
    Ok(Outcome::Good)
}
