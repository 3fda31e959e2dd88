//! `poncho pull MODEL`: installs a model, with a bar on a terminal, plain lines elsewhere, JSON lines for scripts.

use std::io::Write;

use poncho_models::{Progress, PullOptions};
use poncho_terminal::{Outcome, show_bytes};
use serde_json::json;

use crate::commands::models::args::PullArgs;
use crate::commands::models::model_json::ModelJson;
use crate::commands::models::progress::{JsonLines, Reporter};

pub(crate) fn run(args: &PullArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let registry = args.registry.open()?;
    let mut options = PullOptions::from_env();
    options.name = args.name.clone();
    options.sha256 = args.sha256;
    if args.json {
        let mut lines = JsonLines::new(out);
        let pulled = registry.pull(&args.reference, &options, &mut |step: Progress| lines.report(&step))?;
        lines.print(&json!({"status": "success", "model": ModelJson::from(&pulled)}))?;
        return Ok(Outcome::Good);
    }
    let mut reporter = Reporter::for_people(args.reference.to_string());
    let pulled = registry.pull(&args.reference, &options, &mut |step: Progress| reporter.report(&step));
    reporter.finish();
    let pulled = pulled?;
    writeln!(out, "installed {} ({})", pulled.name, show_bytes(pulled.manifest.bytes()))?;
    Ok(Outcome::Good)
}
