//! docs/configuration.md, made from the table and from the flags themselves.
//!
//! Printed by `poncho config --reference`; a test compares it with the file. It must hold nothing of the machine that it
//! is printed on.

use std::fmt::Write as _;

use clap::Arg;

use super::{Group, Kind, SETTINGS, Setting, command, flag_of};

const HEAD: &str = "\
# Configuration

<!-- Printed by `poncho config --reference`; a test compares. Change the code, then write this file anew. -->

Every setting of `poncho serve` can be given in four places. The first that says something wins, also for lists:

1. a flag: `--port 9000`
2. an environment variable: `PONCHO_PORT=9000`; an empty one counts as unset; several values stand with commas between
3. a line of the settings file: `port = 9000`
4. the default

`poncho config` prints what holds and where each value comes from; it takes the flags of `serve` too, so that a command
line can be tried before it is used. `--json` is for scripts. Keys are masked in both.

## The settings file

The file is TOML. It is `--config FILE`, or `PONCHO_CONFIG`, or else `$XDG_CONFIG_HOME/poncho/poncho.toml`, or else
`~/.config/poncho/poncho.toml`. A file that you name must exist, the default one may be missing. The working folder is not
looked into: a repository that you cloned must not decide where your server listens. To use a file there, name it:
`--config poncho.toml`.

```toml
host = \"127.0.0.1\"
port = 9000
cache_dir = \"~/kv\"
cache_size = \"50GiB\"
ctx_size = 32768
api_key = [\"first-key\", \"second-key\"]
```

`~/` at the start of a path means the home folder. Other relative paths count from the working folder, as on the command
line. An unknown key is an error that names the nearest one, and so is a wrong value; both say the file and the line. A file
with keys should be readable by its owner only.

`poncho cache` follows `cache_dir` too. `poncho doctor` checks whether the settings that hold can work on this machine.

## All settings
";

/// The whole document.
pub(super) fn text() -> String {
    let command = command();
    let mut text = HEAD.to_owned();
    for group in Group::ALL {
        let mut rows = SETTINGS.iter().filter(|setting| setting.group == group).peekable();
        if rows.peek().is_none() {
            continue;
        }
        let _ = write!(
            text,
            "\n### {}\n\n| Flag | Variable | Key | Value | Default | What it is |\n| --- | --- | --- | --- | --- | --- |\n",
            group.title()
        );
        for setting in rows {
            let Some(flag) = flag_of(&command, setting) else { continue };
            let _ = writeln!(text, "{}", row(setting, flag));
        }
    }
    text
}

fn row(setting: &Setting, flag: &Arg) -> String {
    let default = match said_default(flag) {
        Some(said) => said,
        None if setting.kind == Kind::Switch => "off".to_owned(),
        None => "none".to_owned(),
    };
    let cells = [
        format!("`--{}`", flag.get_long().unwrap_or_default()),
        format!("`{}`", setting.variable()),
        format!("`{}`", setting.name),
        value(setting.kind, flag),
        default,
        plain_help(flag),
    ];
    format!("| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

fn value(kind: Kind, flag: &Arg) -> String {
    let values = flag.get_possible_values();
    let shown = values.iter().filter(|value| !value.is_hide_set());
    let names: Vec<String> = shown.map(|value| format!("`{}`", value.get_name())).collect();
    match kind {
        Kind::Switch => "`true`, `false`".to_owned(),
        Kind::Text if !names.is_empty() => names.join(", "),
        Kind::Text => "text".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Number | Kind::Decimal => "number".to_owned(),
        Kind::Quantity => "number, or text with a unit".to_owned(),
        Kind::List => "text or list".to_owned(),
        Kind::Paths => "path or list".to_owned(),
        Kind::Pairs => "table, or list of `NAME=VALUE`".to_owned(),
    }
}

/// The default that the flag has, or that its help tells.
pub(super) fn said_default(flag: &Arg) -> Option<String> {
    // A flag without a value has `false` as its default in clap's books.
    if !flag.get_action().takes_values() {
        return None;
    }
    let own: Vec<String> =
        flag.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    if !own.is_empty() {
        return Some(own.join(", ").trim_matches('`').to_owned()).map(|text| format!("`{text}`"));
    }
    let help = flag.get_help()?.to_string();
    let (_, rest) = help.split_once("[default: ")?;
    Some(rest.split(']').next()?.to_owned())
}

/// The help without what other columns say.
fn plain_help(flag: &Arg) -> String {
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let end = [" [env:", " [default:"].iter().filter_map(|mark| help.find(mark)).min().unwrap_or(help.len());
    help.get(..end).unwrap_or(&help).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_reference_is_the_one_of_this_code() {
        let committed = include_str!("../../../../docs/configuration.md");
        assert!(
            committed == text(),
            "docs/configuration.md is not what the code says; write it anew: \
             cargo run --release -p poncho -- config --reference > docs/configuration.md"
        );
    }

    #[test]
    fn defaults_come_from_the_flags() {
        let command = command();
        let default = |name: &str| {
            let setting = SETTINGS.iter().find(|setting| setting.name == name).unwrap();
            said_default(flag_of(&command, setting).unwrap())
        };
        assert_eq!(default("port").as_deref(), Some("`8080`"));
        assert_eq!(default("threads").as_deref(), Some("the physical cores"));
        assert_eq!(default("open"), None);
    }
}
