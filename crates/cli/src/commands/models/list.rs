//! `poncho list`: the installed models, or the catalogue, as a table or as JSON.

use std::io::{self, Write};

use poncho_models::{CATALOGUE, Registry};
use poncho_terminal::{Align, Outcome, Table, ago, now, print_json, printable_line, show_bytes};
use serde_json::json;

use crate::commands::models::args::ListArgs;
use crate::commands::models::model_json::ModelJson;

pub(crate) fn run(args: &ListArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let registry = args.registry.open()?;
    if args.catalogue {
        return catalogue(args, out);
    }
    let installed = registry.list()?;
    report_damaged(&registry)?;
    if args.json {
        print_json(out, &installed.iter().map(ModelJson::from).collect::<Vec<_>>())?;
        return Ok(Outcome::Good);
    }
    if installed.is_empty() {
        // For people; a script gets an empty output.
        writeln!(
            io::stderr(),
            "no models in {}; install a small one with `poncho pull smollm2:135m`",
            registry.folder().display()
        )?;
        return Ok(Outcome::Good);
    }
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("SIZE", Align::Right),
        ("PARAMETERS", Align::Right),
        ("QUANT", Align::Left),
        ("CONTEXT", Align::Right),
        ("ADDED", Align::Left),
    ]);
    for model in &installed {
        let facts = &model.manifest.facts;
        table.row([
            model.name.to_string(),
            show_bytes(model.manifest.bytes()),
            show_parameters(facts.parameters),
            facts.quantization.clone().unwrap_or_else(|| "-".to_owned()),
            facts.context_length.map_or_else(|| "-".to_owned(), |length| length.to_string()),
            ago(now(), model.manifest.created),
        ]);
    }
    table.print(out)?;
    Ok(Outcome::Good)
}

fn report_damaged(registry: &Registry) -> anyhow::Result<()> {
    for damaged in registry.damaged()? {
        let warning = format!("warning: {} cannot be used: {}", damaged.path.display(), damaged.reason);
        writeln!(io::stderr(), "{}", printable_line(&warning))?;
    }
    Ok(())
}

fn catalogue(args: &ListArgs, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    if args.json {
        let entries: Vec<_> =
            CATALOGUE.iter().map(|entry| json!({"name": entry.name, "hub": entry.hub, "about": entry.about})).collect();
        print_json(out, &entries)?;
        return Ok(Outcome::Good);
    }
    let mut table = Table::new([("NAME", Align::Left), ("ABOUT", Align::Left), ("FROM", Align::Left)]);
    for entry in CATALOGUE {
        table.row([entry.name.to_owned(), entry.about.to_owned(), entry.hub.to_owned()]);
    }
    table.print(out)?;
    Ok(Outcome::Good)
}

/// `135 M`, `1.7 B`: weights, rounded.
pub(crate) fn show_parameters(count: u64) -> String {
    let tenths = |unit: u64| count.saturating_add(unit / 20) / (unit / 10);
    match count {
        0..1_000_000 => count.to_string(),
        1_000_000..999_500_000 => format!("{} M", count.saturating_add(500_000) / 1_000_000),
        _ => format!("{}.{} B", tenths(1_000_000_000) / 10, tenths(1_000_000_000) % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_weights_are_short() {
        for (count, expected) in
            [(0, "0"), (64, "64"), (134_515_008, "135 M"), (999_600_000, "1.0 B"), (1_711_376_384, "1.7 B")]
        {
            assert_eq!(show_parameters(count), expected);
        }
    }
}
