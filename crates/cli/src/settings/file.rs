//! `poncho.toml`: its path, and its keys with their lines.
//!
//! Called by the layers. Only the shape of a value is checked here; its flag validates it. The working folder is never
//! searched: a cloned repository must not be able to open a port or name a model. A bad file is refused as a whole.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use poncho_cache::{Links, open_regular};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::environment::Environment;
use super::{FILE_VARIABLE, Group, Kind, Origin, SETTINGS, Setting, find, nearest};

/// More than any settings need; a model file given by mistake must not be read into memory.
const MOST_BYTES: u64 = 1 << 20;

/// The entry of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) setting: &'static Setting,
    pub(super) values: Vec<OsString>,
    pub(super) origin: Origin,
}

/// A parsed file.
#[derive(Debug, Clone, Default)]
pub(super) struct SettingsFile {
    /// `None` if no file is named and the default one does not exist.
    pub(super) path: Option<PathBuf>,
    pub(super) entries: Vec<Entry>,
    /// Entries for one model each, by its name.
    pub(super) models: Vec<(String, Vec<Entry>)>,
}

/// Why a value of the key `models` is refused.
const NOT_SECTIONS: &str =
    "`models` holds a section for each model; write [models.\"qwen3:8b\"] and its settings below";

/// The key of the tables for single models.
const MODELS: &str = "models";

/// Reads the named file, which must exist, or the default one, which may be missing.
pub(super) fn load(named: Option<&Path>, environment: &Environment) -> anyhow::Result<SettingsFile> {
    let by_variable = environment.get(FILE_VARIABLE).map(PathBuf::from);
    let (path, said_by) = match (named, by_variable, default_path(environment)) {
        (Some(path), ..) => (path.to_path_buf(), Some("--config")),
        (None, Some(path), _) => (path, Some(FILE_VARIABLE)),
        (None, None, Some(path)) => (path, None),
        (None, None, None) => return Ok(SettingsFile::default()),
    };
    // A user without a home often has /dev/null for one.
    let missing = std::fs::metadata(&path)
        .is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory));
    match said_by {
        None if missing => return Ok(SettingsFile::default()),
        Some(by) if missing => {
            bail!("the settings file {} does not exist; correct or remove {by}", path.display())
        }
        _ => {}
    }
    let text = read(&path, said_by.is_some())?;
    let (entries, models) = entries(&text, &path, environment)?;
    Ok(SettingsFile { path: Some(path), entries, models })
}

/// `$XDG_CONFIG_HOME/poncho/poncho.toml`, or `~/.config/poncho/poncho.toml`.
fn default_path(environment: &Environment) -> Option<PathBuf> {
    let xdg = environment.get("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = xdg.or_else(|| environment.get("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(base.join("poncho").join("poncho.toml"))
}

/// A named file may be a pipe of a program that prints it; the default one must be a regular file.
fn read(path: &Path, is_named: bool) -> anyhow::Result<String> {
    let cannot = || format!("cannot read the settings file {}; check the path and its permissions", path.display());
    let metadata = std::fs::metadata(path).with_context(cannot)?;
    if metadata.is_dir() {
        bail!(
            "{} is a folder; name the settings file in it, such as {}",
            path.display(),
            path.join("poncho.toml").display()
        );
    }
    if metadata.len() > MOST_BYTES {
        bail!("{} has {} bytes and is not a settings file; name a poncho.toml", path.display(), metadata.len());
    }
    let file = if is_named { File::open(path) } else { open_regular(path, Links::Follow) };
    let mut bytes = Vec::new();
    file.and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes)).with_context(cannot)?;
    if bytes.len() as u64 > MOST_BYTES {
        bail!("{} has more than {MOST_BYTES} bytes and is not a settings file; name a poncho.toml", path.display());
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("{} is not UTF-8 text; name a poncho.toml", path.display()))
}

/// Entries for one model each, by its name.
type OfModels = Vec<(String, Vec<Entry>)>;

fn entries(text: &str, path: &Path, environment: &Environment) -> anyhow::Result<(Vec<Entry>, OfModels)> {
    let place = |at: usize| Origin::File { path: path.to_path_buf(), line: line_of(text, at) };
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        anyhow!("{}: {}; write TOML, with lines such as `port = 8080`", place(at), error.message().trim())
    })?;
    let entry = |key: &str, value: &Spanned<DeValue<'_>>, origin: Origin| -> anyhow::Result<Entry> {
        let Some(setting) = find(key) else { bail!("{origin}: {}", unknown_key(key)) };
        let mut values = values(setting, value).map_err(|wrong| anyhow!("{origin}: `{key}` {wrong}"))?;
        if matches!(setting.kind, Kind::Path | Kind::Paths) {
            values = values.into_iter().map(|value| from_home(value, environment)).collect();
        }
        Ok(Entry { setting, values: values.into_iter().map(Into::into).collect(), origin })
    };
    let (mut entries, mut models) = (Vec::new(), Vec::new());
    for (key, value) in table.get_ref() {
        let origin = place(key.span().start);
        let name = key.get_ref().as_ref();
        if name != MODELS {
            entries.push(entry(name, value, origin)?);
            continue;
        }
        let DeValue::Table(of_models) = value.get_ref() else { bail!("{origin}: {NOT_SECTIONS}") };
        for (model, section) in of_models {
            let origin = place(model.span().start);
            let DeValue::Table(section) = section.get_ref() else { bail!("{origin}: {NOT_SECTIONS}") };
            let mut of_model = Vec::new();
            for (key, value) in section {
                let origin = place(key.span().start);
                let found = entry(key.get_ref().as_ref(), value, origin.clone())?;
                if found.setting.group != Group::Computing {
                    bail!(
                        "{origin}: `{}` is not a setting of one model; move it to the top of the file",
                        found.setting.name
                    );
                }
                of_model.push(found);
            }
            models.push((model.get_ref().to_string(), of_model));
        }
    }
    Ok((entries, models))
}

fn unknown_key(name: &str) -> String {
    match nearest(name, SETTINGS.iter().map(|setting| setting.name)) {
        Some(near) => format!("unknown setting `{name}`; did you mean `{near}`?"),
        None => format!("unknown setting `{name}`; `poncho config` lists all settings"),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// The values of a key as words for its flag; an error is the rest of a sentence that starts with the key.
fn values(setting: &Setting, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    let wanted = match setting.kind {
        Kind::Text | Kind::Path => "a string",
        Kind::Number => "an integer without quotes",
        Kind::Decimal => "a number without quotes, with or without a point",
        Kind::Quantity => "an integer, or a string with a unit",
        Kind::Switch => "true or false",
        Kind::List | Kind::Paths => "a string, or a list of strings",
        Kind::Pairs => "a table of strings, or a list of \"NAME=VALUE\"",
    };
    let wrong = |found: &DeValue<'_>| format!("is {} and must be {wanted}", kind_of(found));
    let text = |found: &Spanned<DeValue<'_>>| match found.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        other => Err(wrong(other)),
    };
    match (setting.kind, value.get_ref()) {
        (Kind::Decimal, DeValue::Float(number)) => Ok(vec![number.as_str().to_owned()]),
        (Kind::Number | Kind::Decimal | Kind::Quantity, DeValue::Integer(number)) => {
            let decimal = i128::from_str_radix(number.as_str(), number.radix());
            Ok(vec![decimal.map_err(|_| format!("is {} and must be {wanted}", number.as_str()))?.to_string()])
        }
        (Kind::Switch, DeValue::Boolean(on)) => Ok(vec![on.to_string()]),
        (Kind::Text | Kind::Path | Kind::Quantity | Kind::List | Kind::Paths | Kind::Pairs, DeValue::String(text)) => {
            Ok(vec![text.to_string()])
        }
        (Kind::List | Kind::Paths | Kind::Pairs, DeValue::Array(items)) => items.iter().map(text).collect(),
        (Kind::Pairs, DeValue::Table(table)) => {
            table.iter().map(|(name, value)| Ok(format!("{}={}", name.get_ref(), text(value)?))).collect()
        }
        (_, other) => Err(wrong(other)),
    }
}

const fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// No shell expands the file, so `~/` is replaced here.
fn from_home(value: String, environment: &Environment) -> String {
    match (value.strip_prefix("~/"), environment.get("HOME").and_then(|home| home.into_string().ok())) {
        (Some(rest), Some(home)) => format!("{}/{rest}", home.trim_end_matches('/')),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, values and line of an entry.
    type Read = (&'static str, Vec<String>, usize);

    fn read_text(text: &str) -> Result<Vec<Read>, String> {
        let environment = Environment::of(&[("HOME", "/h/me")]);
        let (entries, _) = entries(text, Path::new("poncho.toml"), &environment).map_err(|error| error.to_string())?;
        Ok(entries
            .into_iter()
            .map(|entry| {
                let Origin::File { line, .. } = entry.origin else { panic!("a line") };
                (
                    entry.setting.name,
                    entry.values.iter().map(|value| value.to_str().unwrap().to_owned()).collect(),
                    line,
                )
            })
            .collect())
    }

    #[test]
    fn keys_are_read_with_their_lines() {
        let text = "# my server\nport = 0x1F90\n\ncache_dir = \"~/kv\"\nopen = true\napi_key = [\"a\", \"b,c\"]\ncache_size = \"5GiB\"\n";
        let mut found = read_text(text).unwrap();
        found.sort_by_key(|(.., line)| *line);
        let expected = [
            ("port", vec!["8080"], 2),
            ("cache_dir", vec!["/h/me/kv"], 4),
            ("open", vec!["true"], 5),
            ("api_key", vec!["a", "b,c"], 6),
            ("cache_size", vec!["5GiB"], 7),
        ];
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((found.0, found.1.iter().map(String::as_str).collect::<Vec<_>>(), found.2), *expected);
        }
        assert_eq!(found.len(), expected.len());
        assert_eq!(read_text("").unwrap(), []);
    }

    #[test]
    fn a_section_has_the_settings_of_one_model() {
        let text = "port = 1\n[models.\"a:1\"]\nctx_size = 4096\ncpu_moe = true\n[models.b]\n";
        let (entries, models) = entries(text, Path::new("p"), &Environment::of(&[])).unwrap();
        assert_eq!(entries.len(), 1);
        let found: Vec<_> = models.iter().map(|(name, of)| (name.as_str(), of.len())).collect();
        assert_eq!(found, [("a:1", 2), ("b", 0)]);
    }

    #[test]
    fn errors_name_the_line_and_the_fix() {
        for (text, said) in [
            ("port = 80\nprot = 81\n", "poncho.toml:2: unknown setting `prot`; did you mean `port`?"),
            ("\n[serve]\nport = 1\n", "poncho.toml:2: unknown setting `serve`"),
            ("port = \"80\"\n", "poncho.toml:1: `port` is a string and must be an integer without quotes"),
            ("\n\nopen = \"yes\"\n", "poncho.toml:3: `open` is a string and must be true or false"),
            ("api_key = [1]\n", "`api_key` is an integer and must be a string, or a list of strings"),
            ("ctx_size = 1.5\n", "must be an integer without quotes"),
            ("host = 127.0.0.1\n", "poncho.toml:1: "),
            ("models = 1\n", "[models.\"qwen3:8b\"]"),
            ("[models]\na = 1\n", "[models.\"qwen3:8b\"]"),
            ("[models.a]\nctx_size = \"x\"\n", "poncho.toml:2: `ctx_size` is a string"),
            ("[models.a]\nport = 1\n", "poncho.toml:2: `port` is not a setting of one model"),
            ("[models.a]\nctx_sice = 1\n", "did you mean `ctx_size`"),
            ("port = 1\nport = 2\n", "poncho.toml:2: "),
        ] {
            let message = read_text(text).unwrap_err();
            assert!(message.contains(said), "{text:?}: {message}");
        }
    }

    #[test]
    fn tables_and_lists_become_pairs() {
        const ALIAS: Setting = Setting::new("alias", Kind::Pairs, Group::Models);
        let pairs = |text: &str| {
            let table = DeTable::parse(text).unwrap();
            let value = table.get_ref().iter().next().unwrap().1.clone();
            values(&ALIAS, &value)
        };
        assert_eq!(pairs("[alias]\n\"gpt-4o\" = \"small\"\n"), Ok(vec!["gpt-4o=small".to_owned()]));
        assert_eq!(pairs("alias = [\"a=b\"]\n"), Ok(vec!["a=b".to_owned()]));
        assert!(pairs("[alias]\na = 1\n").unwrap_err().contains("table of strings"));
    }

    #[test]
    fn the_default_file_follows_the_platform_and_never_the_working_folder() {
        let path = |variables: &[(&str, &str)]| default_path(&Environment::of(variables));
        assert_eq!(path(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]), Some("/x/poncho/poncho.toml".into()));
        assert_eq!(path(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/h")]), Some("/h/.config/poncho/poncho.toml".into()));
        assert_eq!(path(&[]), None);
    }
}
