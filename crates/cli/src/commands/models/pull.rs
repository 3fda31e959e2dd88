//! `poncho pull MODEL`: installs a model, with a bar on a terminal, plain lines elsewhere, JSON lines for scripts.

use std::io::Write;

use anyhow::anyhow;
use poncho_models::{Progress, PullError, PullOptions, Reference};
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
        let pulled = registry.pull(&args.wanted.reference, &options, &mut |step: Progress| lines.report(&step));
        let pulled = pulled.map_err(|error| with_hint(error, &args.wanted.text))?;
        lines.print(&json!({"status": "success", "model": ModelJson::from(&pulled)}))?;
        return Ok(Outcome::Good);
    }
    let mut reporter = Reporter::for_people(args.wanted.reference.to_string());
    let pulled = registry.pull(&args.wanted.reference, &options, &mut |step: Progress| reporter.report(&step));
    reporter.finish();
    let pulled = pulled.map_err(|error| with_hint(error, &args.wanted.text))?;
    writeln!(out, "installed {} ({})", pulled.name, show_bytes(pulled.manifest.bytes()))?;
    Ok(Outcome::Good)
}

/// A name that is not in the catalogue may be a repository of the hub: people copy it from there.
fn with_hint(error: PullError, text: &str) -> anyhow::Error {
    let hub = format!("hf:{text}");
    match &error {
        PullError::NotInCatalogue { .. } if Reference::parse(&hub).is_ok() => anyhow!(
            "the catalogue has no model `{text}`; to pull the repository {text} from Hugging Face, write \
             `poncho pull {hub}`"
        ),
        _ => error.into(),
    }
}
