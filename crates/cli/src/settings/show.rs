//! `poncho config`: the settings that hold and where each comes from, or the reference of all settings.
//!
//! Changes nothing and starts nothing. Keys are masked in both forms: the output is made to be pasted into a report.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::layers::Effective;
use super::reference::{self, said_default};
use super::{Kind, Resolved, command, flag_of};
use crate::Outcome;
use crate::args::{ConfigArgs, FolderArgs};
use crate::cache::folder::chosen_folder;
use crate::table::{Align, Table};

/// What stands in place of a key.
const MASK: &str = "***";

pub(crate) fn run(args: &ConfigArgs, resolved: &Resolved, out: &mut impl Write) -> anyhow::Result<Outcome> {
    if args.reference {
        out.write_all(reference::text().as_bytes())?;
    } else if args.json {
        serde_json::to_writer_pretty(&mut *out, &as_json(resolved))?;
        writeln!(out)?;
    } else {
        print(resolved, out)?;
    }
    Ok(Outcome::Good)
}

fn print(resolved: &Resolved, out: &mut impl Write) -> anyhow::Result<()> {
    let command = command();
    let mut table = Table::new([("SETTING", Align::Left), ("VALUE", Align::Left), ("FROM", Align::Left)]);
    for effective in &resolved.settings {
        let unset = || flag_of(&command, effective.setting).and_then(said_default).unwrap_or_else(|| "none".to_owned());
        let values = shown(effective);
        let value = if values.is_empty() { format!("({})", unset()) } else { values.join(", ") };
        table.row([effective.setting.name.to_owned(), value, effective.origin.to_string()]);
    }
    table.print(out)?;
    match &resolved.file {
        Some(path) => writeln!(out, "file: {}", path.display())?,
        None => writeln!(out, "file: none; docs/configuration.md says where one is looked for")?,
    }
    for strange in &resolved.strange {
        writeln!(out, "note: {strange}")?;
    }
    Ok(())
}

/// The values for people and scripts. The cache folder depends on the machine where nobody names it.
fn shown(effective: &Effective) -> Vec<String> {
    if effective.setting.name == "cache_dir" && effective.values.is_empty() {
        let folder = chosen_folder(&FolderArgs { cache_dir: None, ram_file_dir: None });
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
