//! `poncho ps`: the models that a running server has loaded.
//!
//! Asks the named server, or the one at the default address. It never loads a model.

use std::io::Write;

use anyhow::Context;
use poncho_client::single_thread_runtime;
use poncho_terminal::{Align, Outcome, Table, now, print_json, show_bytes};

use crate::client::args::ServerArgs;
use crate::client::{Loaded, named_or_default, unknown_path};

#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// Print JSON on standard output and nothing else
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &PsArgs, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let client = named_or_default(&args.server)?;
    let answer =
        single_thread_runtime()?.block_on(client.get("/api/ps"))?.ok_or_else(|| unknown_path(&client, "/api/ps"))?;
    let loaded: Loaded = serde_json::from_value(answer)
        .context("the server sent a list of models that cannot be read; is it a Poncho of this version?")?;
    if args.json {
        print_json(out, &loaded.models)?;
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
            model.name.clone(),
            model.details.parameter_size.clone(),
            model.details.quantization_level.clone(),
            show_bytes(model.size),
            model.context_length.to_string(),
            model.until(now()),
        ]);
    }
    table.print(out)?;
    Ok(Outcome::Good)
}
