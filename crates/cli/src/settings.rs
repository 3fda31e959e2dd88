//! The settings of `poncho serve`: the table of all of them, their layers, and the folders that follow from them.
//!
//! One row in [`SETTINGS`] gives a flag its variable, its key in `poncho.toml`, its line in `poncho config` and its line
//! in docs/configuration.md. Help, default and validation are those of the flag. `layers.rs` merges the layers. This
//! table must never hold a default of its own: there would be two.

pub(crate) mod args;
pub(crate) mod backend_args;
pub(crate) mod cache_folder;
mod environment;
mod file;
mod foreign;
pub(crate) mod layers;
pub(crate) mod logging;
pub(crate) mod models_folder;
mod origin;
pub(crate) mod reference;
pub(crate) mod short_flags;
pub(crate) mod user_folder;

use clap::{Arg, Args, Command};

pub(crate) use environment::Environment;
pub(crate) use layers::{Refused, Resolved, configured, of_serve, parse};
pub(crate) use origin::Origin;

use self::args::{LogArgs, ServeArgs};

/// The form of a value in `poncho.toml`; the parser of the flag decides whether it is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string.
    Text,
    /// A string; `~/` at its start means the home folder.
    Path,
    /// An integer.
    Number,
    /// A number, with or without a point.
    Decimal,
    /// An integer, or a string with a unit.
    Quantity,
    /// `true` or `false`.
    Switch,
    /// A string, or a list of strings.
    List,
    /// A string, or a list of strings; `~/` at the start of one means the home folder.
    Paths,
    /// A table of strings, or a list of `"NAME=VALUE"`.
    Pairs,
}

/// The sections of the reference, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Models,
    Network,
    Nodes,
    Cache,
    Computing,
    Logs,
}

impl Group {
    const ALL: [Self; 6] = [Self::Models, Self::Network, Self::Nodes, Self::Cache, Self::Computing, Self::Logs];

    const fn title(self) -> &'static str {
        match self {
            Self::Models => "Models",
            Self::Network => "Network and keys",
            Self::Nodes => "Nodes on other machines",
            Self::Cache => "Cache",
            Self::Computing => "Computing",
            Self::Logs => "Logs and traces",
        }
    }
}

/// One setting. Its name is the flag's field in the arguments and the key in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) group: Group,
    /// Instead of `PONCHO_` and the name.
    variable: Option<&'static str>,
    /// Whether its values are masked when they are shown.
    pub(crate) secret: bool,
}

impl Setting {
    const fn new(name: &'static str, kind: Kind, group: Group) -> Self {
        Self { name, kind, group, variable: None, secret: false }
    }

    /// Sets a variable other than `PONCHO_` and the name.
    const fn variable_named(self, variable: &'static str) -> Self {
        Self { variable: Some(variable), ..self }
    }

    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// The environment variable.
    pub(crate) fn variable(&self) -> String {
        self.variable.map_or_else(|| format!("PONCHO_{}", self.name.to_ascii_uppercase()), str::to_owned)
    }

    /// Whether a variable or a key of the file may hold several values.
    pub(crate) const fn is_many(&self) -> bool {
        matches!(self.kind, Kind::List | Kind::Paths | Kind::Pairs)
    }
}

/// Every setting, in the order of the reference. A new flag of `serve` is a row here, then
/// `poncho config --reference > docs/configuration.md`.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting::new("model", Kind::Paths, Group::Models),
    Setting::new("name", Kind::Text, Group::Models),
    Setting::new("models_dir", Kind::Path, Group::Models),
    Setting::new("memory", Kind::Quantity, Group::Models),
    Setting::new("probe_models", Kind::Text, Group::Models),
    Setting::new("in_process", Kind::Switch, Group::Models),
    Setting::new("crash_limit", Kind::Number, Group::Models),
    Setting::new("keep_alive", Kind::Quantity, Group::Models),
    Setting::new("alias", Kind::Pairs, Group::Models),
    Setting::new("lora", Kind::Paths, Group::Models),
    Setting::new("chat_template", Kind::Text, Group::Models),
    Setting::new("chat_template_file", Kind::Path, Group::Models),
    Setting::new("client_templates", Kind::Switch, Group::Models),
    Setting::new("host", Kind::Text, Group::Network),
    Setting::new("port", Kind::Number, Group::Network),
    Setting::new("api_key", Kind::List, Group::Network).secret(),
    Setting::new("admin_key", Kind::List, Group::Network).secret(),
    Setting::new("isolate_keys", Kind::Switch, Group::Network),
    Setting::new("open", Kind::Switch, Group::Network),
    Setting::new("allow_host", Kind::List, Group::Network),
    Setting::new("cors", Kind::List, Group::Network),
    Setting::new("signing_key", Kind::Text, Group::Network).secret(),
    Setting::new("max_body", Kind::Quantity, Group::Network),
    Setting::new("header_timeout", Kind::Quantity, Group::Network),
    Setting::new("body_timeout", Kind::Quantity, Group::Network),
    Setting::new("request_timeout", Kind::Quantity, Group::Network),
    Setting::new("max_connections", Kind::Number, Group::Network),
    Setting::new("queue_limit", Kind::Number, Group::Network),
    Setting::new("shutdown_grace", Kind::Quantity, Group::Network),
    Setting::new("write_timeout", Kind::Quantity, Group::Network),
    Setting::new("max_upload", Kind::Quantity, Group::Network),
    Setting::new("upload_timeout", Kind::Quantity, Group::Network),
    Setting::new("mcp_server", Kind::Pairs, Group::Network),
    Setting::new("mcp_header", Kind::Pairs, Group::Network),
    Setting::new("mcp_timeout", Kind::Quantity, Group::Network),
    Setting::new("node", Kind::List, Group::Nodes),
    Setting::new("node_cert", Kind::Path, Group::Nodes),
    Setting::new("node_key", Kind::Path, Group::Nodes),
    Setting::new("node_ca", Kind::Path, Group::Nodes),
    Setting::new("cluster", Kind::List, Group::Nodes),
    Setting::new("cluster_key_file", Kind::Path, Group::Nodes),
    Setting::new("advertise", Kind::Text, Group::Nodes),
    Setting::new("node_name", Kind::Text, Group::Nodes),
    Setting::new("hints_listen", Kind::Text, Group::Nodes),
    Setting::new("pull_listen", Kind::Text, Group::Nodes),
    Setting::new("kv_events", Kind::Text, Group::Nodes),
    Setting::new("kv_events_replay", Kind::Text, Group::Nodes),
    Setting::new("kv_events_block", Kind::Number, Group::Nodes),
    Setting::new("kv_events_open", Kind::Switch, Group::Nodes),
    Setting::new("cache_dir", Kind::Path, Group::Cache),
    Setting::new("cache_size", Kind::Quantity, Group::Cache),
    Setting::new("cache_ram", Kind::Quantity, Group::Cache),
    Setting::new("save_min_tokens", Kind::Number, Group::Cache),
    Setting::new("cache_tier", Kind::Text, Group::Cache),
    Setting::new("ram_file_dir", Kind::Path, Group::Cache),
    Setting::new("ram_file_size", Kind::Quantity, Group::Cache),
    Setting::new("pressure", Kind::Text, Group::Cache),
    Setting::new("shared", Kind::Text, Group::Cache),
    Setting::new("shared_quota", Kind::Quantity, Group::Cache),
    Setting::new("shared_bandwidth", Kind::Quantity, Group::Cache),
    Setting::new("shared_key_file", Kind::Path, Group::Cache),
    Setting::new("drain_limit", Kind::Quantity, Group::Cache),
    Setting::new("exact", Kind::Text, Group::Cache),
    Setting::new("drafts", Kind::Text, Group::Cache),
    Setting::new("replay", Kind::Text, Group::Cache),
    Setting::new("no_hygiene", Kind::Switch, Group::Cache),
    Setting::new("ctx_size", Kind::Number, Group::Computing),
    Setting::new("parallel", Kind::Number, Group::Computing),
    Setting::new("kv_layout", Kind::Text, Group::Computing),
    Setting::new("threads", Kind::Number, Group::Computing),
    Setting::new("threads_batch", Kind::Number, Group::Computing),
    Setting::new("poll", Kind::Number, Group::Computing),
    Setting::new("batch_size", Kind::Number, Group::Computing),
    Setting::new("ubatch_size", Kind::Number, Group::Computing),
    Setting::new("cache_type_k", Kind::Text, Group::Computing),
    Setting::new("cache_type_v", Kind::Text, Group::Computing),
    Setting::new("flash_attn", Kind::Text, Group::Computing),
    Setting::new("swa_full", Kind::Switch, Group::Computing),
    Setting::new("no_kv_offload", Kind::Switch, Group::Computing),
    Setting::new("gpu_layers", Kind::Quantity, Group::Computing),
    Setting::new("device", Kind::Text, Group::Computing),
    Setting::new("backends", Kind::Paths, Group::Computing),
    Setting::new("rpc", Kind::List, Group::Computing),
    Setting::new("cpu_moe", Kind::Switch, Group::Computing),
    Setting::new("n_cpu_moe", Kind::Number, Group::Computing),
    Setting::new("numa", Kind::Text, Group::Computing),
    Setting::new("split_mode", Kind::Text, Group::Computing),
    Setting::new("main_gpu", Kind::Number, Group::Computing),
    Setting::new("tensor_split", Kind::Text, Group::Computing),
    Setting::new("no_mmap", Kind::Switch, Group::Computing),
    Setting::new("mlock", Kind::Switch, Group::Computing),
    Setting::new("check_tensors", Kind::Switch, Group::Computing),
    Setting::new("pooling", Kind::Text, Group::Computing),
    Setting::new("reasoning", Kind::Text, Group::Computing),
    Setting::new("reasoning_budget", Kind::Number, Group::Computing),
    Setting::new("rope_scaling", Kind::Text, Group::Computing),
    Setting::new("rope_freq_base", Kind::Decimal, Group::Computing),
    Setting::new("rope_freq_scale", Kind::Decimal, Group::Computing),
    Setting::new("yarn_ext_factor", Kind::Decimal, Group::Computing),
    Setting::new("yarn_attn_factor", Kind::Decimal, Group::Computing),
    Setting::new("yarn_beta_fast", Kind::Decimal, Group::Computing),
    Setting::new("yarn_beta_slow", Kind::Decimal, Group::Computing),
    Setting::new("yarn_orig_ctx", Kind::Number, Group::Computing),
    Setting::new("log_level", Kind::Text, Group::Logs).variable_named("PONCHO_LOG"),
    Setting::new("log_format", Kind::Text, Group::Logs),
    Setting::new("quiet", Kind::Switch, Group::Logs),
    Setting::new("console_requests", Kind::Number, Group::Logs),
    Setting::new("otlp_endpoint", Kind::Text, Group::Logs).variable_named("OTEL_EXPORTER_OTLP_ENDPOINT"),
];

/// The commands that take every setting.
const COMMANDS: [&str; 6] = ["serve", "node", "route", "config", "doctor", "fit"];

/// The flag that names the settings file; it is not a setting itself.
const FILE_FLAG: &str = "config";

/// The models that a command takes as plain arguments instead of `--model`.
const MODELS_ARGUMENT: &str = "named";

/// The variable that does the same.
const FILE_VARIABLE: &str = "PONCHO_CONFIG";

/// The variable that names the server of a command, as `--url` does; it is not a setting of a server.
pub(crate) const ADDRESS_VARIABLE: &str = "PONCHO_URL";

/// The flags of all settings, with their variables in their help.
pub(crate) fn flags() -> Command {
    ServeArgs::augment_args(LogArgs::augment_args(Command::new("poncho"))).mut_args(with_variable)
}

/// Adds the settings to a command line: the flags of `serve` are also those of `config` and `doctor`.
pub(crate) fn with_settings(command: Command) -> Command {
    let file = Arg::new(FILE_FLAG)
        .long(FILE_FLAG)
        .value_name("FILE")
        .value_parser(clap::value_parser!(std::path::PathBuf))
        .help("Read settings from this file [env: PONCHO_CONFIG] [default: ~/.config/poncho/poncho.toml if it exists]");
    let command = command.mut_subcommand("serve", |serve| serve.mut_args(with_variable).arg(file.clone()));
    let command =
        command.mut_subcommand("node", |node| node.mut_args(with_variable).mut_args(without_http).arg(file.clone()));
    let command = command
        .mut_subcommand("route", |route| route.mut_args(with_variable).mut_args(without_engine).arg(file.clone()));
    ["config", "doctor", "fit"].into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| {
            let shared = ServeArgs::augment_args(Command::new(name)).mut_args(with_variable);
            let shared = shared.get_arguments().cloned().map(|flag| flag.help_heading("Settings of `poncho serve`"));
            sub.arg(file.clone()).args(shared.collect::<Vec<_>>())
        })
    })
}

/// A node takes the settings of `serve`, so that both can share a file; those without effect are not in its help.
fn without_http(flag: Arg) -> Arg {
    let is_used = ["shutdown_grace", "queue_limit", "signing_key"].contains(&flag.get_id().as_str());
    let is_http = find(flag.get_id().as_str()).is_some_and(|setting| setting.group == Group::Network);
    let is_front = ["node", "keep_alive", "alias", "client_templates", "quiet"].contains(&flag.get_id().as_str());
    if (is_http && !is_used) || is_front { flag.hide(true) } else { flag }
}

/// A router takes the settings of `serve` too; those of models and their cache have no effect.
fn without_engine(flag: Arg) -> Arg {
    let name = flag.get_id().as_str();
    let is_of_node = ["named", "signing_key", "queue_limit", "advertise", "node_name", "hints_listen"].contains(&name);
    let is_used = ["alias", "keep_alive"].contains(&name);
    let is_engine = find(name)
        .is_some_and(|setting| matches!(setting.group, Group::Models | Group::Cache | Group::Computing) && !is_used);
    if is_of_node || is_engine { flag.hide(true) } else { flag }
}

/// The flag with its variable in its help.
fn with_variable(flag: Arg) -> Arg {
    let Some(setting) = find(flag.get_id().as_str()) else { return flag };
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    if help.contains("[env:") {
        return flag;
    }
    let variable = format!("[env: {}]", setting.variable());
    match help.find(" [default:") {
        Some(at) => {
            let (text, default) = help.split_at(at);
            flag.help(format!("{text} {variable}{default}"))
        }
        None => flag.help(format!("{help} {variable}")),
    }
}

fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The flag of a setting.
pub(crate) fn flag_of<'a>(flags: &'a Command, setting: &Setting) -> Option<&'a Arg> {
    flags.get_arguments().find(|flag| flag.get_id() == setting.name)
}

/// Did-you-mean: the most similar name, if one is similar enough.
pub(crate) fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = names
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&wrong.to_ascii_lowercase(), &name.to_ascii_lowercase()), name));
    // Less similar names are rarely what the user meant.
    scored.filter(|(score, _)| *score > 0.75).max_by(|one, two| one.0.total_cmp(&two.0)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_serve_is_a_setting_and_every_setting_a_flag() {
        let flags = flags();
        // Models as plain arguments have no variable and no key.
        for flag in flags.get_arguments().filter(|flag| !flag.is_positional()) {
            assert!(
                find(flag.get_id().as_str()).is_some(),
                "--{} of `poncho serve` has no row in SETTINGS: add one to crates/cli/src/settings.rs, then run \
                 `poncho config --reference > docs/configuration.md`",
                flag.get_long().unwrap_or_default()
            );
        }
        for setting in SETTINGS {
            let flag = flag_of(&flags, setting);
            assert!(flag.is_some(), "the setting {} has no flag: remove its row from SETTINGS", setting.name);
            let many = flag.is_some_and(|flag| matches!(flag.get_action(), clap::ArgAction::Append));
            let switch = flag.is_some_and(|flag| matches!(flag.get_action(), clap::ArgAction::SetTrue));
            let kinds = if many { "List, Paths or Pairs" } else { "one for a single value" };
            assert_eq!(setting.is_many(), many, "{}: its flag needs another kind, {kinds}", setting.name);
            assert_eq!(
                setting.kind == Kind::Switch,
                switch,
                "{}: the kind of a flag without value is Switch",
                setting.name
            );
        }
    }

    #[test]
    fn names_and_variables_are_unique() {
        let mut variables: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
        variables.sort();
        variables.dedup();
        assert_eq!(variables.len(), SETTINGS.len());
        assert!(SETTINGS.iter().all(|setting| Group::ALL.contains(&setting.group)));
        assert_eq!(find("ctx_size").unwrap().variable(), "PONCHO_CTX_SIZE");
        assert_eq!(find("log_level").unwrap().variable(), "PONCHO_LOG");
    }

    #[test]
    fn a_suggestion_is_similar() {
        assert_eq!(nearest("prot", ["port", "host", "parallel"]), Some("port"));
        assert_eq!(nearest("ctx-size", ["ctx_size", "cache_size"]), Some("ctx_size"));
        assert_eq!(nearest("zzz", ["port", "host"]), None);
    }
}
