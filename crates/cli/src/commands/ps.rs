//! `poncho ps`: the models that a running server has loaded.
//!
//! Asks `/api/ps` of the server that was named or of the one at the default address. It never loads anything.

use std::io::Write;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::client::args::ServerArgs;
use crate::client::{named_or_default, unknown_path};
use crate::terminal::bytes::show_bytes;
use crate::terminal::printable::printable_line;
use crate::terminal::table::{Align, Table};

/// A model that is to go at a later year than this stays.
const FOREVER: &str = "2200";

#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// Print JSON on standard output, and nothing else there
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// What the server answers; what it does not say is left out.
#[derive(Debug, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) models: Vec<LoadedModel>,
}

/// One model of it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct LoadedModel {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) context_length: u64,
    #[serde(default)]
    expires_at: String,
    #[serde(default)]
    details: Details,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
struct Details {
    #[serde(default)]
    parameter_size: String,
    #[serde(default)]
    quantization_level: String,
}

impl LoadedModel {
    /// Until when it stays loaded.
    pub(crate) fn until(&self) -> String {
        match self.expires_at.get(..4) {
            Some(year) if year < FOREVER => printable_line(&self.expires_at),
            _ => "forever".to_owned(),
        }
    }
}

pub(crate) fn run(args: &PsArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let client = named_or_default(&args.server)?;
    let answer = runtime.block_on(client.get("/api/ps"))?.ok_or_else(|| unknown_path(&client, "/api/ps"))?;
    let loaded: Loaded = serde_json::from_value(answer).context("the server's list of models has another shape")?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &loaded.models)?;
        writeln!(out)?;
        return Ok(Outcome::Good);
    }
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("PARAMETERS", Align::Right),
        ("QUANT", Align::Left),
        ("SIZE", Align::Right),
        ("CONTEXT", Align::Right),
        ("UNTIL", Align::Left),
    ]);
    for model in &loaded.models {
        table.row([
            printable_line(&model.name),
            printable_line(&model.details.parameter_size),
            printable_line(&model.details.quantization_level),
            show_bytes(model.size),
            model.context_length.to_string(),
            model.until(),
        ]);
    }
    table.print(out)?;
    Ok(Outcome::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_beyond_all_plans_is_forever() {
        let model = |expires_at: &str| -> LoadedModel {
            serde_json::from_value(serde_json::json!({"name": "m", "expires_at": expires_at})).unwrap()
        };
        assert_eq!(model("2318-01-01T00:00:00Z").until(), "forever");
        assert_eq!(model("").until(), "forever");
        assert_eq!(model("2026-01-01T00:00:00Z").until(), "2026-01-01T00:00:00Z");
    }
}
