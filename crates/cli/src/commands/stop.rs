//! `poncho stop`: unloads a model at a running server, which saves what the model holds.
//!
//! The server itself goes on; Ctrl-C in its terminal ends it.

use std::io::Write;

use anyhow::Context;
use serde_json::json;

use crate::Outcome;
use crate::client::args::ServerArgs;
use crate::client::named_or_default;
use crate::terminal::printable::printable_line;

#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// The model's name, as `poncho ps` lists it
    #[arg(value_name = "MODEL")]
    model: String,

    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &StopArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    let client = named_or_default(&args.server)?;
    runtime.block_on(client.demand("/api/models/unload", &json!({"model": args.model})))?;
    writeln!(out, "{} is unloaded", printable_line(&args.model))?;
    Ok(Outcome::Good)
}
