//! `poncho launch` without an agent: which agents are installed, and which models are good for them.

use std::io::Write;

use poncho_models::{AGENT_MODELS, agent_model_for};
use poncho_terminal::{Align, Table, show_bytes};

use super::clients::AGENTS;
use super::process;
use crate::serving::memory;

pub(crate) fn print(out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = Table::new([
        ("AGENT", Align::Left),
        ("CONTEXT", Align::Right),
        ("INSTALLED", Align::Left),
        ("INSTALL WITH", Align::Left),
    ]);
    for agent in &AGENTS {
        let found = process::find(agent.program).map_or_else(|| "no".to_owned(), |path| path.display().to_string());
        table.row([agent.name.to_owned(), agent.least_context.to_string(), found, agent.install.to_owned()]);
    }
    table.print(out)?;
    writeln!(out)?;
    let memory = memory::available();
    let proposed = agent_model_for(memory);
    let mut table =
        Table::new([("MODEL", Align::Left), ("MEMORY", Align::Right), ("FITS", Align::Left), ("ABOUT", Align::Left)]);
    for model in AGENT_MODELS {
        let fits = match memory {
            None => "unknown",
            Some(memory) if model.bytes > memory => "no",
            Some(_) if proposed.is_some_and(|proposed| proposed.name == model.name) => "best",
            Some(_) => "yes",
        };
        table.row([model.name.to_owned(), show_bytes(model.bytes), fits.to_owned(), model.about.to_owned()]);
    }
    table.print(out)?;
    Ok(())
}
