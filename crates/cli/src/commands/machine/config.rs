//! `poncho config`: the effective settings and their sources, or the reference of all settings.
//!
//! Changes nothing and starts nothing. Keys are masked in both forms: users paste the output into reports.

use std::io::Write;

use poncho_server::ShownSetting;
use poncho_terminal::{Align, Outcome, Table, print_json};
use serde_json::{Map, Value, json};

use crate::client::address::{self, Address};
use crate::client::args::ServerArgs;
use crate::settings::cache_folder::cache_folder;
use crate::settings::layers::Effective;
use crate::settings::reference::{self, said_default};
use crate::settings::{Kind, Origin, Resolved, flag_of, flags};

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Print JSON on standard output and nothing else
    #[arg(long)]
    json: bool,

    /// Print the reference of all settings instead, as in docs/configuration.md
    #[arg(long, conflicts_with = "json")]
    reference: bool,
}

/// Shown in place of a key.
const MASK: &str = "***";

pub(crate) fn run(args: &ConfigArgs, resolved: &Resolved, out: &mut impl Write) -> anyhow::Result<Outcome> {
    if args.reference {
        out.write_all(reference::text().as_bytes())?;
    } else if args.json {
        print_json(out, &as_json(resolved))?;
    } else {
        print(resolved, out)?;
    }
    Ok(Outcome::Good)
}

/// The settings as people read them; keys are masked.
pub(crate) fn shown_settings(resolved: &Resolved) -> Vec<ShownSetting> {
    let flags = flags();
    let shown = |effective: &Effective| {
        let unset = || flag_of(&flags, effective.setting).and_then(said_default).unwrap_or_else(|| "none".to_owned());
        let values = shown(effective);
        let value = if values.is_empty() { format!("({})", unset()) } else { values.join(", ") };
        ShownSetting { name: effective.setting.name.to_owned(), value, origin: effective.origin.to_string() }
    };
    resolved.settings.iter().map(shown).collect()
}

fn print(resolved: &Resolved, out: &mut impl Write) -> anyhow::Result<()> {
    let mut table = Table::new([("SETTING", Align::Left), ("VALUE", Align::Left), ("FROM", Align::Left)]);
    for ShownSetting { name, value, origin } in shown_settings(resolved) {
        table.row([name, value, origin]);
    }
    table.print(out)?;
    match &resolved.file {
        Some(path) => writeln!(out, "file: {}", path.display())?,
        None => writeln!(out, "file: none; see docs/configuration.md for where it may be")?,
    }
    match server_of_commands(resolved) {
        Ok((Address { url, .. }, source)) => {
            writeln!(out, "server for ps, run, top and others: {url} (from {source})")?
        }
        Err(reason) => writeln!(out, "server for ps, run, top and others: unknown; {reason}")?,
    }
    for strange in &resolved.strange {
        writeln!(out, "note: {strange}")?;
    }
    Ok(())
}

/// The server that commands use without `--url`, and the source of its address.
fn server_of_commands(resolved: &Resolved) -> anyhow::Result<(Address, String)> {
    let address = match address::named(&ServerArgs::default()) {
        Some(named) => named,
        None => {
            let setting = |name: &str| {
                let found = resolved.settings.iter().find(|effective| effective.setting.name == name)?;
                let value = found.values.first().filter(|_| found.origin != Origin::Default)?;
                Some((value.clone(), found.origin.clone()))
            };
            address::of(setting("host"), setting("port"))?
        }
    };
    let sources: Vec<String> = address.sources.iter().map(ToString::to_string).collect();
    let source = if sources.is_empty() { Origin::Default.to_string() } else { sources.join(" and ") };
    Ok((address, source))
}

/// The values for people and scripts. The default of the cache folder depends on the machine.
fn shown(effective: &Effective) -> Vec<String> {
    if effective.setting.name == "cache_dir" && effective.values.is_empty() {
        let folder = cache_folder(None);
        return folder.ok().into_iter().map(|folder| folder.display().to_string()).collect();
    }
    let mask = |value: &std::ffi::OsString| match effective.setting.secret {
        true => MASK.to_owned(),
        false => value.to_string_lossy().into_owned(),
    };
    effective.values.iter().map(mask).collect()
}

fn as_json(resolved: &Resolved) -> Value {
    let settings = resolved.settings.iter().map(|effective| {
        let mut values: Vec<Value> =
            shown(effective).into_iter().map(|text| typed(effective.setting.kind, text)).collect();
        let value = match effective.setting.is_many() {
            true => Value::Array(values),
            false => values.pop().unwrap_or(Value::Null),
        };
        let origin = &effective.origin;
        let entry = json!({"value": value, "layer": origin.layer(), "origin": origin.to_string()});
        (effective.setting.name.to_owned(), entry)
    });
    json!({
        "settings": settings.collect::<Map<String, Value>>(),
        "file": resolved.file.as_ref().map(|path| path.to_string_lossy()),
        "server": server_of_commands(resolved).ok().map(|(Address { url, .. }, source)| json!({"url": url, "origin": source})),
        "notes": resolved.strange,
    })
}

fn typed(kind: Kind, text: String) -> Value {
    match kind {
        Kind::Number => text.parse::<i64>().map_or(Value::String(text), Value::from),
        Kind::Decimal => text.parse::<f64>().map_or(Value::String(text), Value::from),
        Kind::Switch => Value::Bool(text == "true"),
        Kind::Text | Kind::Path | Kind::Quantity | Kind::List | Kind::Paths | Kind::Pairs => Value::String(text),
    }
}
