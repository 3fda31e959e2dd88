//! Merges the layers: flags over our variables over the file over variables of other programs over defaults.
//!
//! Called by `main` in place of clap's own parsing, and by commands that follow the settings of `serve`. Values of lower
//! layers are validated by the parser of their flag and then passed to clap as if they had been typed, so that commands
//! see one struct and no layers. A layer replaces the lower ones, for lists too. Values never reach the argument list of
//! the process, where other users could read them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches as _};

use super::args::ServeArgs;
use super::environment::Environment;
use super::file::{self, Entry, SettingsFile};
use super::foreign;
use super::{
    ADDRESS_VARIABLE, COMMANDS, FILE_FLAG, FILE_VARIABLE, Kind, MODELS_ARGUMENT, Origin, SETTINGS, Setting, find,
    flag_of, flags, nearest, short_flags,
};
use crate::variants;

/// A setting with its effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effective {
    pub(crate) setting: &'static Setting,
    /// As they would be typed; empty if it is unset and has no default.
    pub(crate) values: Vec<OsString>,
    pub(crate) origin: Origin,
}

/// All settings of a command.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) settings: Vec<Effective>,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// The command's arguments with all layers in them.
    pub(crate) matches: ArgMatches,
    /// Notes about variables that are not settings, or that are not used.
    pub(crate) strange: Vec<String>,
    /// The settings of models that have a section in the file, by name.
    pub(crate) models: Vec<(String, ServeArgs)>,
}

/// Why no command can run.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Wrong usage, or a request for help.
    Usage(clap::Error),
    /// A variable or the file is not valid.
    Settings(anyhow::Error),
}

/// A command below another one has flags of its own.
fn has_settings((name, matches): &(&str, &ArgMatches)) -> bool {
    COMMANDS.contains(name) && matches.subcommand().is_none()
}

/// The arguments of a command line, and the settings of the command if it has them.
pub(crate) fn parse(
    command: &Command,
    words: Vec<OsString>,
    environment: &Environment,
) -> Result<(ArgMatches, Option<Resolved>), Refused> {
    let words = short_flags::spelled_out(words, &COMMANDS);
    let typed = command.clone().try_get_matches_from(&words).map_err(Refused::Usage)?;
    let Some((name, sub)) = typed.subcommand().filter(has_settings) else {
        return Ok((typed, None));
    };
    let flags = flags();
    let named = sub.get_one::<PathBuf>(FILE_FLAG).map(PathBuf::as_path);
    let layers = Layers::read(&flags, named, environment).map_err(Refused::Settings)?;
    let is_typed = |id: &str| sub.value_source(id) == Some(ValueSource::CommandLine);
    let untyped = |setting: &Setting| !(is_typed(setting.name) || setting.name == "model" && is_typed(MODELS_ARGUMENT));
    let lower: Vec<&Entry> = layers.entries.iter().filter(|entry| untyped(entry.setting)).collect();
    let all = with_flags(&words, lower.iter().flat_map(|entry| as_flags(&flags, entry)));
    let merged = command.clone().try_get_matches_from(all).map_err(Refused::Usage)?;
    let Some(matches) = merged.subcommand_matches(name).cloned() else { return Ok((merged, None)) };
    let settings = SETTINGS.iter().map(|setting| {
        let values = matches.get_raw(setting.name).map(|values| values.map(OsStr::to_owned).collect());
        let origin = match lower.iter().find(|entry| entry.setting == setting) {
            Some(entry) => entry.origin.clone(),
            None if matches.value_source(setting.name) == Some(ValueSource::CommandLine) => {
                Origin::Flag(format!("--{}", long_of(&flags, setting)))
            }
            None => Origin::Default,
        };
        let values: Vec<OsString> = match setting.kind {
            Kind::Switch => vec![if matches.get_flag(setting.name) { "true".into() } else { "false".into() }],
            _ => values.unwrap_or_default(),
        };
        Effective { setting, values, origin }
    });
    let settings = settings.collect();
    let mut models = Vec::new();
    for (model, section) in &layers.models {
        let over: Vec<&Entry> = section.iter().filter(|entry| untyped(entry.setting)).collect();
        let of_model = layers.with_section(&over).filter(|entry| untyped(entry.setting));
        let all = with_flags(&words, of_model.flat_map(|entry| as_flags(&flags, entry)));
        let all = command.clone().try_get_matches_from(all).map_err(Refused::Usage)?;
        let args = all.subcommand_matches(name).map(ServeArgs::from_arg_matches);
        models.extend(args.transpose().map_err(Refused::Usage)?.map(|args| (model.clone(), args)));
    }
    let resolved = Resolved { settings, file: layers.file, matches, strange: layers.strange, models };
    Ok((merged, Some(resolved)))
}

/// The value of one setting in the layers below the flags, for commands without a flag for it; the first one of a list.
///
/// # Errors
/// If the file cannot be read or is not valid.
pub(crate) fn configured(name: &str) -> anyhow::Result<Option<(OsString, Origin)>> {
    configured_in(name, &Environment::of_process())
}

/// The settings of `poncho serve` without flags, for commands that start a server of their own.
///
/// # Errors
/// If a variable or the file is not valid.
pub(crate) fn of_serve() -> anyhow::Result<(ServeArgs, Vec<(String, ServeArgs)>)> {
    let environment = Environment::of_process();
    let layers = Layers::read(&flags(), None, &environment)?;
    let mut models = Vec::new();
    for (model, section) in &layers.models {
        let over: Vec<&Entry> = section.iter().collect();
        models.push((model.clone(), ServeArgs::from_arg_matches(&matches_of(layers.with_section(&over))?)?));
    }
    Ok((ServeArgs::from_arg_matches(&serve_matches(&environment)?)?, models))
}

fn configured_in(name: &str, environment: &Environment) -> anyhow::Result<Option<(OsString, Origin)>> {
    let setting = find(name).with_context(|| format!("unknown setting {name}"))?;
    let flags = flags();
    // Only this one is validated: a bad port of the server must not stop the listing of a folder.
    let entry = match of_variable(setting, environment)? {
        Some(entry) => Some(entry),
        None => file::load(None, environment)?.entries.into_iter().find(|entry| entry.setting == setting),
    };
    let Some(entry) = entry else {
        let other = of_other_program(&flags, setting, environment).and_then(Result::ok);
        return Ok(other.and_then(|Entry { values, origin, .. }| Some((values.into_iter().next()?, origin))));
    };
    for value in &entry.values {
        check(&flags, &entry, value)?;
    }
    let Entry { values, origin, .. } = entry;
    Ok(values.into_iter().next().map(|value| (value, origin)))
}

/// The arguments of `poncho serve` without flags, for a command that starts a server of its own.
fn serve_matches(environment: &Environment) -> anyhow::Result<ArgMatches> {
    let layers = Layers::read(&flags(), None, environment)?;
    matches_of(layers.entries.iter())
}

fn matches_of<'a>(entries: impl Iterator<Item = &'a Entry>) -> anyhow::Result<ArgMatches> {
    let flags = flags();
    let words: Vec<OsString> = entries.flat_map(|entry| as_flags(&flags, entry)).collect();
    flags.no_binary_name(true).try_get_matches_from(words).context("the settings contradict each other")
}

/// The layers between flags and defaults: the highest one of each setting, all values validated.
struct Layers {
    entries: Vec<Entry>,
    file: Option<PathBuf>,
    strange: Vec<String>,
    /// Sections of the file for single models.
    models: Vec<(String, Vec<Entry>)>,
}

impl Layers {
    /// The entries for a model with this section: variables win over it, and it wins over the rest of the file.
    fn with_section<'a>(&'a self, section: &'a [&'a Entry]) -> impl Iterator<Item = &'a Entry> {
        let is_variable = |entry: &Entry| matches!(entry.origin, Origin::Variable(_));
        let has = move |setting: &Setting| section.iter().any(|entry| entry.setting == setting);
        let by_variable =
            move |setting: &Setting| self.entries.iter().any(|entry| entry.setting == setting && is_variable(entry));
        let general = self.entries.iter().filter(move |entry| is_variable(entry) || !has(entry.setting));
        general.chain(section.iter().copied().filter(move |entry| !by_variable(entry.setting)))
    }

    fn read(flags: &Command, named: Option<&Path>, environment: &Environment) -> anyhow::Result<Self> {
        let SettingsFile { path, entries: of_file, models } = file::load(named, environment)?;
        for entry in models.iter().flat_map(|(_, section)| section) {
            for value in &entry.values {
                check(flags, entry, value)?;
            }
        }
        let mut entries = Vec::new();
        let mut strange = strange(environment);
        for setting in SETTINGS {
            match of_other_program(flags, setting, environment) {
                Some(Ok(entry)) => entries.push(entry),
                Some(Err(note)) if !strange.contains(&note) => strange.push(note),
                Some(Err(_)) | None => {}
            }
            let of_file = of_file.iter().find(|entry| entry.setting == setting);
            // A bad line is an error even if a variable hides it today.
            for entry in of_file.into_iter().chain(of_variable(setting, environment)?.as_ref()) {
                for value in &entry.values {
                    check(flags, entry, value)?;
                }
                entries.retain(|lower: &Entry| lower.setting != setting);
                entries.push(entry.clone());
            }
        }
        Ok(Self { entries, file: path, strange, models })
    }
}

/// The value of another program's variable; `Err` is a note about one that is not used.
fn of_other_program(
    flags: &Command,
    setting: &'static Setting,
    environment: &Environment,
) -> Option<Result<Entry, String>> {
    let (value, origin) = match foreign::value_of(setting, environment)? {
        Ok(found) => found,
        Err(note) => return Some(Err(note)),
    };
    let entry = Entry { setting, values: vec![value.into()], origin };
    let accepted = entry.values.iter().all(|value| check(flags, &entry, value).is_ok());
    Some(match accepted {
        true => Ok(entry),
        false => {
            let variable = entry.origin.to_string();
            let value = environment.get(&variable).unwrap_or_default();
            Err(foreign::ignored(&variable, &value.to_string_lossy()))
        }
    })
}

fn of_variable(setting: &'static Setting, environment: &Environment) -> anyhow::Result<Option<Entry>> {
    let name = setting.variable();
    let Some(value) = environment.get(&name) else { return Ok(None) };
    let values = match (setting.kind, value.to_str()) {
        (Kind::Switch, text) => vec![switch(&name, text.unwrap_or_default())?.into()],
        (_, Some(text)) if setting.is_many() => {
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Into::into).collect()
        }
        _ => vec![value],
    };
    Ok(Some(Entry { setting, values, origin: Origin::Variable(name) }))
}

fn switch(name: &str, text: &str) -> anyhow::Result<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok("true"),
        "0" | "false" | "no" | "off" => Ok("false"),
        _ => Err(anyhow!("{name} is `{text}`; set it to true or false")),
    }
}

/// Notes about variables that are not read: with our prefix they are usually typing errors.
fn strange(environment: &Environment) -> Vec<String> {
    let others = [FILE_VARIABLE, ADDRESS_VARIABLE, variants::VARIABLE].map(str::to_owned);
    let known: Vec<String> = SETTINGS.iter().map(Setting::variable).chain(others).collect();
    let unknown = environment.starting_with("PONCHO_").filter(|name| !known.iter().any(|known| known == name));
    let near = |name: &str| nearest(name, known.iter().map(String::as_str));
    let unknown = unknown.map(|name| match near(name) {
        Some(near) => format!("{name} is not a setting; did you mean {near}?"),
        None => format!("{name} is not a setting"),
    });
    unknown.chain(foreign::unread(environment)).collect()
}

fn long_of<'a>(flags: &'a Command, setting: &Setting) -> &'a str {
    flag_of(flags, setting).and_then(Arg::get_long).unwrap_or_default()
}

/// The words of a command line with more flags: before `--`, because every word after it is a model.
fn with_flags(words: &[OsString], flags: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (before, after) = words.split_at_checked(end).unwrap_or((words, &[]));
    before.iter().cloned().chain(flags).chain(after.iter().cloned()).collect()
}

/// An entry as the words that would have been typed for it.
fn as_flags(flags: &Command, entry: &Entry) -> Vec<OsString> {
    let long = long_of(flags, entry.setting);
    let flag = |value: &OsString| {
        let mut word = OsString::from(format!("--{long}="));
        word.push(value);
        word
    };
    match entry.setting.kind {
        Kind::Switch if entry.values.iter().any(|value| value == "true") => vec![format!("--{long}").into()],
        Kind::Switch => Vec::new(),
        _ => entry.values.iter().map(flag).collect(),
    }
}

/// Validates a value with the parser of its flag. The error names the origin of the value.
fn check(flags: &Command, entry: &Entry, value: &OsStr) -> anyhow::Result<()> {
    let flag = flag_of(flags, entry.setting).context("a setting without a flag")?.clone().global(false);
    let one = Entry { values: vec![value.to_owned()], ..entry.clone() };
    let words = as_flags(flags, &one);
    let alone = Command::new("poncho").no_binary_name(true).arg(flag.clone());
    let Err(error) = alone.try_get_matches_from(words) else { return Ok(()) };
    let reason = match std::error::Error::source(&error) {
        Some(reason) => reason.to_string(),
        None => possible_values(&flag).unwrap_or_else(|| "it is empty".to_owned()),
    };
    let Entry { setting, origin, .. } = entry;
    let shown = if setting.secret { "***".into() } else { value.to_string_lossy() };
    let subject = match origin {
        Origin::Variable(name) => format!("{name} is `{shown}`"),
        _ => format!("{origin}: {} is `{shown}`", setting.name),
    };
    Err(anyhow!("{subject}: {reason}; correct it, or remove it"))
}

fn possible_values(flag: &Arg) -> Option<String> {
    let values = flag.get_possible_values();
    let shown = values.iter().filter(|value| !value.is_hide_set());
    let names: Vec<String> = shown.map(|value| value.get_name().to_owned()).collect();
    (!names.is_empty()).then(|| format!("use one of {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::super::with_settings;
    use super::*;

    /// A command line with the commands that have settings, and one that has none.
    fn command() -> Command {
        let serve = ServeArgs::augment_args(Command::new("serve"));
        with_settings(
            Command::new("poncho")
                .subcommands([serve])
                .subcommands(["node", "route"].map(|name| ServeArgs::augment_args(Command::new(name))))
                .subcommands(["config", "doctor", "fit"].map(Command::new)),
        )
        .subcommand(Command::new("ps"))
    }

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    fn resolved(line: &str, variables: &[(&str, &str)]) -> Result<Resolved, String> {
        match parse(&command(), words(line), &Environment::of(variables)) {
            Ok((_, resolved)) => Ok(resolved.unwrap()),
            Err(Refused::Usage(error)) => Err(error.to_string()),
            Err(Refused::Settings(error)) => Err(error.to_string()),
        }
    }

    fn holds(resolved: &Resolved, name: &str) -> (Vec<String>, String) {
        let found = resolved.settings.iter().find(|effective| effective.setting.name == name).unwrap();
        let values = found.values.iter().map(|value| value.to_string_lossy().into_owned()).collect();
        (values, found.origin.to_string())
    }

    /// Hardening 8: a setting of an older release is refused with the reason, wherever it stands.
    #[test]
    fn the_memory_of_gpus_as_a_pressure_source_is_refused_with_the_reason() {
        for refused in [
            resolved("poncho serve --model m --pressure nvidia-smi", &[]),
            resolved("poncho serve --model m", &[("PONCHO_PRESSURE", "nvidia-smi")]),
        ] {
            let said = refused.unwrap_err();
            assert!(said.contains("frees none of it") && said.contains("`system`"), "{said}");
        }
        let other = resolved("poncho serve --model m", &[("PONCHO_PRESSURE", "gpu")]).unwrap_err();
        assert!(other.contains("use one of off, system;"), "{other}");
        let good = resolved("poncho serve --model m --pressure system", &[]).unwrap();
        assert_eq!(holds(&good, "pressure").0, ["system"]);
    }

    #[test]
    fn a_plain_model_wins_over_the_models_of_the_settings() {
        let models = |line: &str, variables: &[(&str, &str)]| {
            let found = resolved(line, variables)?;
            ServeArgs::from_arg_matches(&found.matches)
                .map(|args| args.models().to_vec())
                .map_err(|error| error.to_string())
        };
        let set = [("PONCHO_MODEL", "b,c")];
        assert_eq!(models("poncho serve a", &set).unwrap(), ["a"]);
        assert_eq!(models("poncho serve -m a", &set).unwrap(), ["a"]);
        assert_eq!(models("poncho serve", &set).unwrap(), ["b", "c"]);
        assert_eq!(models("poncho serve a b --port 1", &[]).unwrap(), ["a", "b"]);
        assert!(models("poncho serve a --model b", &[]).unwrap_err().contains("cannot be used with"));
    }

    #[test]
    fn settings_are_not_taken_for_models_after_two_dashes() {
        let found = resolved("poncho serve --threads 3 -- a b", &[("PONCHO_PORT", "9000")]).unwrap();
        assert_eq!(holds(&found, "port"), (vec!["9000".to_owned()], "PONCHO_PORT".to_owned()));
        assert_eq!(ServeArgs::from_arg_matches(&found.matches).unwrap().models(), ["a", "b"]);
    }

    #[test]
    fn a_section_of_the_file_is_for_one_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, "parallel = 2\nctx_size = 100\n[models.a]\nctx_size = 200\nthreads = 3\n").unwrap();
        let with = |line: &str, more: &[(&str, &str)]| {
            let variables: Vec<_> = [("PONCHO_CONFIG", path.to_str().unwrap())].iter().chain(more).copied().collect();
            let found = resolved(line, &variables).unwrap();
            let (name, args) = found.models.into_iter().next().unwrap();
            assert_eq!((name.as_str(), args.parallel), ("a", Some(2)), "the rest of the file holds for it too");
            (holds(&resolved(line, &variables).unwrap(), "ctx_size").0, args.ctx_size, args.threads)
        };
        let all = |text: &str| vec![text.to_owned()];
        assert_eq!(with("poncho serve a", &[]), (all("100"), Some(200), Some(3)));
        assert_eq!(with("poncho serve a -c 300", &[]), (all("300"), Some(300), Some(3)), "a flag wins");
        let variable = [("PONCHO_THREADS", "5")];
        assert_eq!(with("poncho serve a", &variable), (all("100"), Some(200), Some(5)), "so does a variable");
    }

    #[test]
    fn the_short_flags_of_llama_server_work() {
        let line = "poncho serve -m a -c 4096 -ngl 20 -np 2 -t 3 -fa on -ctk q8_0 -ctv q8_0";
        let found = resolved(line, &[]).unwrap();
        for (name, value) in [
            ("model", "a"),
            ("ctx_size", "4096"),
            ("gpu_layers", "20"),
            ("parallel", "2"),
            ("threads", "3"),
            ("flash_attn", "on"),
            ("cache_type_k", "q8_0"),
            ("cache_type_v", "q8_0"),
        ] {
            assert_eq!(holds(&found, name).0, [value], "{name}");
        }
    }

    #[test]
    fn each_layer_wins_over_those_below_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, "port = 1\nhost = \"::1\"\nparallel = 2\napi_key = [\"x\"]\nopen = true\n").unwrap();
        let file = path.to_str().unwrap();
        let variables =
            [("PONCHO_CONFIG", file), ("PONCHO_PORT", "2"), ("PONCHO_API_KEY", "a, b"), ("PONCHO_HOST", "")];
        let found = resolved("poncho config --port 3 --ctx-size 100", &variables).unwrap();
        assert_eq!(holds(&found, "port"), (vec!["3".to_owned()], "--port".to_owned()));
        assert_eq!(holds(&found, "host"), (vec!["::1".to_owned()], format!("{file}:2")), "an empty variable is unset");
        assert_eq!(holds(&found, "api_key"), (vec!["a".into(), "b".into()], "PONCHO_API_KEY".to_owned()));
        assert_eq!(holds(&found, "parallel"), (vec!["2".to_owned()], format!("{file}:3")));
        assert_eq!(holds(&found, "open"), (vec!["true".to_owned()], format!("{file}:5")));
        assert_eq!(holds(&found, "cache_size"), (Vec::<String>::new(), "default".to_owned()));
        assert_eq!(found.matches.get_one::<u16>("port"), Some(&3));
        assert_eq!(found.file.as_deref(), Some(path.as_path()));
        let off = resolved("poncho config", &[("PONCHO_CONFIG", file), ("PONCHO_OPEN", "off")]).unwrap();
        assert_eq!(holds(&off, "open"), (vec!["false".to_owned()], "PONCHO_OPEN".to_owned()));
    }

    #[test]
    fn serve_sees_one_struct_with_all_layers_in_it() {
        let variables = [("PONCHO_MODEL", "m.gguf"), ("PONCHO_CACHE_SIZE", "1MiB"), ("PONCHO_EXACT", "request")];
        let (matches, _) = parse(&command(), words("poncho serve --threads 3"), &Environment::of(&variables)).unwrap();
        let serve = ServeArgs::from_arg_matches(matches.subcommand_matches("serve").unwrap()).unwrap();
        assert_eq!((serve.cache_size, serve.threads), (Some(1 << 20), Some(3)));
        assert!(format!("{:?}", serve.model).contains("m.gguf"));
        assert!(serve.exact.is_some());
    }

    #[test]
    fn wrong_values_name_the_place_they_came_from() {
        for (variables, said) in [
            (&[("PONCHO_PORT", "http")][..], "PONCHO_PORT is `http`: "),
            (&[("PONCHO_PORT", "70000")], "70000 is not in 0..=65535"),
            (&[("PONCHO_CACHE_SIZE", "lots")], "PONCHO_CACHE_SIZE is `lots`: "),
            (&[("PONCHO_EXACT", "sometimes")], "use one of always, request"),
            (&[("PONCHO_LOG", "loud")], "PONCHO_LOG is `loud`: use one of off, error"),
            (&[("PONCHO_OPEN", "perhaps")], "PONCHO_OPEN is `perhaps`; set it to true or false"),
            (&[("PONCHO_CONFIG", "/no/such.toml")], "/no/such.toml does not exist; correct or remove PONCHO_CONFIG"),
        ] {
            let message = resolved("poncho config", variables).unwrap_err();
            assert!(message.contains(said), "{variables:?}: {message}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("poncho.toml");
        std::fs::write(&path, "\nport = 99999\n").unwrap();
        let hidden = [("PONCHO_CONFIG", path.to_str().unwrap()), ("PONCHO_PORT", "1")];
        let message = resolved("poncho config", &hidden).unwrap_err();
        assert!(message.contains("poncho.toml:2: port is `99999`: "), "{message}");
    }

    #[test]
    fn unknown_variables_with_our_prefix_are_noted() {
        let variables = [("PONCHO_PROT", "1"), ("PONCHO_PORT", "1"), ("PONCHO_URL", "http://127.0.0.1:1")];
        let found = resolved("poncho config", &variables).unwrap();
        assert_eq!(found.strange, ["PONCHO_PROT is not a setting; did you mean PONCHO_PORT?"]);
    }

    /// Everyday use 15: variables of other programs are below the file and above the defaults.
    #[test]
    fn variables_of_other_programs_are_the_lowest_layer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, "parallel = 2\n").unwrap();
        let variables = [
            ("PONCHO_CONFIG", path.to_str().unwrap()),
            ("OLLAMA_HOST", "0.0.0.0:9000"),
            ("LLAMA_ARG_PORT", "7"),
            ("LLAMA_ARG_N_PARALLEL", "8"),
            ("LLAMA_ARG_THREADS", "3"),
            ("LLAMA_ARG_KV_OFFLOAD", "off"),
            ("PONCHO_BATCH_SIZE", "64"),
            ("LLAMA_ARG_BATCH", "128"),
        ];
        let found = resolved("poncho config", &variables).unwrap();
        assert_eq!(holds(&found, "host"), (vec!["0.0.0.0".to_owned()], "OLLAMA_HOST".to_owned()));
        assert_eq!(holds(&found, "port"), (vec!["9000".to_owned()], "OLLAMA_HOST".to_owned()));
        assert_eq!(holds(&found, "parallel").0, ["2"], "the file wins");
        assert_eq!(holds(&found, "threads"), (vec!["3".to_owned()], "LLAMA_ARG_THREADS".to_owned()));
        assert_eq!(holds(&found, "no_kv_offload"), (vec!["true".to_owned()], "LLAMA_ARG_KV_OFFLOAD".to_owned()));
        assert_eq!(holds(&found, "batch_size"), (vec!["64".to_owned()], "PONCHO_BATCH_SIZE".to_owned()));
        let flag = resolved("poncho config --port 1", &variables).unwrap();
        assert_eq!(holds(&flag, "port"), (vec!["1".to_owned()], "--port".to_owned()));
        let environment = Environment::of(&variables);
        assert_eq!(configured_in("host", &environment).unwrap().unwrap().0, "0.0.0.0");
    }

    /// They were set for another program: a value that we refuse is ignored with a note.
    #[test]
    fn a_value_for_another_program_never_ends_a_command() {
        let variables = [("LLAMA_ARG_N_PARALLEL", "-1"), ("OLLAMA_HOST", "https://example.test")];
        let found = resolved("poncho config", &variables).unwrap();
        assert_eq!(holds(&found, "parallel"), (Vec::new(), "default".to_owned()));
        assert_eq!(holds(&found, "host").1, "default");
        assert_eq!(found.strange.len(), 2, "{:?}", found.strange);
        assert!(found.strange.iter().any(|note| note.starts_with("LLAMA_ARG_N_PARALLEL is `-1`, which")));
        assert_eq!(configured_in("parallel", &Environment::of(&variables)).unwrap(), None);
    }

    #[test]
    fn a_server_in_another_command_has_the_settings_of_serve() {
        let variables = [("PONCHO_CTX_SIZE", "1024"), ("LLAMA_ARG_CACHE_TYPE_K", "q8_0"), ("PONCHO_LOG", "info")];
        let matches = serve_matches(&Environment::of(&variables)).unwrap();
        let serve = ServeArgs::from_arg_matches(&matches).unwrap();
        assert_eq!((serve.ctx_size, serve.parallel), (Some(1024), None));
        assert!(serve.backend.cache_type_k.is_some());
        let wrong = serve_matches(&Environment::of(&[("PONCHO_PORT", "x")])).unwrap_err().to_string();
        assert!(wrong.contains("PONCHO_PORT is `x`"), "{wrong}");
    }

    #[test]
    fn one_setting_can_be_asked_for_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("poncho.toml");
        std::fs::write(&path, "cache_dir = \"/kv\"\n").unwrap();
        let file = ("PONCHO_CONFIG", path.to_str().unwrap());
        let asked = |variables: &[(&str, &str)]| configured_in("cache_dir", &Environment::of(variables)).unwrap();
        assert_eq!(asked(&[file, ("PONCHO_PORT", "wrong")]).unwrap().0, "/kv");
        assert_eq!(asked(&[file, ("PONCHO_CACHE_DIR", "/other")]).unwrap().0, "/other");
        assert_eq!(asked(&[]), None);
        assert!(configured_in("no_such", &Environment::default()).is_err());
    }

    #[test]
    fn a_command_without_settings_is_left_alone() {
        let environment = Environment::of(&[("PONCHO_CONFIG", "/no/such.toml")]);
        let (matches, resolved) = parse(&command(), words("poncho ps"), &environment).unwrap();
        assert!(matches.subcommand_name() == Some("ps") && resolved.is_none());
    }
}
