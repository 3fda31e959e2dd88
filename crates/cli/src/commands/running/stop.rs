//! `poncho stop`: unloads a model from a running server, which saves its states.
//!
//! The server itself keeps running; Ctrl-C in its terminal ends it.

use std::io::Write;

use poncho_client::single_thread_runtime;
use poncho_terminal::{Outcome, printable_line};
use serde_json::json;

use crate::client::args::ServerArgs;
use crate::client::named_or_default;

#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// Name of the model, as `poncho ps` lists it
    #[arg(value_name = "MODEL")]
    model: String,

    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &StopArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let client = named_or_default(&args.server)?;
    single_thread_runtime()?.block_on(client.post("/api/models/unload", &json!({"model": args.model})))?;
    writeln!(out, "unloaded {}", printable_line(&args.model))?;
    Ok(Outcome::Good)
}
