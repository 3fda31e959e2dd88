//! `poncho pull MODEL`: fetches a model, with a bar on a terminal, plain lines elsewhere, JSON lines for scripts.

use std::io::Write;

use poncho_models::{Progress, PullOptions};
use serde_json::json;

use crate::Outcome;
use crate::commands::models::args::PullArgs;
use crate::commands::models::folder;
use crate::commands::models::model_json::ModelJson;
use crate::commands::models::progress::{JsonLines, Reporter};
use crate::terminal::bytes::show_bytes;

pub(crate) fn run(args: &PullArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let registry = folder::open(&args.registry)?;
    let mut options = PullOptions::from_env();
    options.name = args.name.clone();
    options.sha256 = args.sha256;
    if args.json {
        let mut lines = JsonLines::new(out);
        let pulled = registry.pull(&args.reference, &options, &mut |step: Progress| lines.hear(&step))?;
        lines.print(&json!({"status": "success", "model": ModelJson::from(&pulled)}))?;
        return Ok(Outcome::Good);
    }
    let mut reporter = Reporter::for_people(args.reference.to_string());
    let pulled = registry.pull(&args.reference, &options, &mut |step: Progress| reporter.hear(&step));
    reporter.finish();
    let pulled = pulled?;
    writeln!(out, "{} is here ({})", pulled.name, show_bytes(pulled.manifest.bytes()))?;
    Ok(Outcome::Good)
}
