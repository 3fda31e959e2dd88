//! Variables of other programs that mean the same as one of our settings: `OLLAMA_HOST` and some `LLAMA_ARG_*`.
//!
//! The layer below the settings file and above the defaults, read by `layers.rs`. These variables were set for another
//! program, so a value that Poncho does not accept is noted and ignored; it must never end a command.

use super::environment::Environment;
use super::{Origin, Setting};

/// Ollama's variable: where its server listens, and where its clients find it.
const OLLAMA_HOST: &str = "OLLAMA_HOST";
/// The port of `OLLAMA_HOST` without a scheme and without a port.
const OLLAMA_PORT: u16 = 11434;
/// The prefix of llama-server's variables.
const LLAMA_PREFIX: &str = "LLAMA_ARG_";

/// How a variable is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The value of the setting.
    Same,
    /// On or off, as llama.cpp spells it.
    Switch,
    /// The opposite of the setting.
    Inverse,
    /// The host of an address.
    Host,
    /// The port of an address.
    Port,
}

/// Setting, variable and reading. If two variables mean one setting, the first that is set wins.
const VARIABLES: &[(&str, &str, Reading)] = &[
    ("model", "LLAMA_ARG_MODEL", Reading::Same),
    ("host", OLLAMA_HOST, Reading::Host),
    ("host", "LLAMA_ARG_HOST", Reading::Same),
    ("port", OLLAMA_HOST, Reading::Port),
    ("port", "LLAMA_ARG_PORT", Reading::Same),
    ("parallel", "LLAMA_ARG_N_PARALLEL", Reading::Same),
    ("threads", "LLAMA_ARG_THREADS", Reading::Same),
    ("batch_size", "LLAMA_ARG_BATCH", Reading::Same),
    ("ubatch_size", "LLAMA_ARG_UBATCH", Reading::Same),
    ("cache_type_k", "LLAMA_ARG_CACHE_TYPE_K", Reading::Same),
    ("cache_type_v", "LLAMA_ARG_CACHE_TYPE_V", Reading::Same),
    ("flash_attn", "LLAMA_ARG_FLASH_ATTN", Reading::Same),
    ("swa_full", "LLAMA_ARG_SWA_FULL", Reading::Switch),
    ("no_kv_offload", "LLAMA_ARG_KV_OFFLOAD", Reading::Inverse),
    ("gpu_layers", "LLAMA_ARG_N_GPU_LAYERS", Reading::Same),
    ("split_mode", "LLAMA_ARG_SPLIT_MODE", Reading::Same),
    ("main_gpu", "LLAMA_ARG_MAIN_GPU", Reading::Same),
    ("tensor_split", "LLAMA_ARG_TENSOR_SPLIT", Reading::Same),
    ("cpu_moe", "LLAMA_ARG_CPU_MOE", Reading::Switch),
    ("n_cpu_moe", "LLAMA_ARG_N_CPU_MOE", Reading::Same),
    ("numa", "LLAMA_ARG_NUMA", Reading::Same),
    ("chat_template_file", "LLAMA_ARG_CHAT_TEMPLATE_FILE", Reading::Same),
    ("reasoning", "LLAMA_ARG_REASONING", Reading::Same),
    ("reasoning_budget", "LLAMA_ARG_THINK_BUDGET", Reading::Same),
    ("pooling", "LLAMA_ARG_POOLING", Reading::Same),
    ("rope_scaling", "LLAMA_ARG_ROPE_SCALING_TYPE", Reading::Same),
    ("rope_freq_base", "LLAMA_ARG_ROPE_FREQ_BASE", Reading::Same),
    ("rope_freq_scale", "LLAMA_ARG_ROPE_FREQ_SCALE", Reading::Same),
    ("yarn_ext_factor", "LLAMA_ARG_YARN_EXT_FACTOR", Reading::Same),
    ("yarn_attn_factor", "LLAMA_ARG_YARN_ATTN_FACTOR", Reading::Same),
    ("yarn_beta_fast", "LLAMA_ARG_YARN_BETA_FAST", Reading::Same),
    ("yarn_beta_slow", "LLAMA_ARG_YARN_BETA_SLOW", Reading::Same),
    ("yarn_orig_ctx", "LLAMA_ARG_YARN_ORIG_CTX", Reading::Same),
];

/// Similar variables with another meaning, and what to set instead.
const DIFFERENT: &[(&str, &str)] = &[
    ("LLAMA_ARG_CTX_SIZE", "it is the context of all requests together; set PONCHO_CTX_SIZE to that of one request"),
    ("LLAMA_ARG_CACHE_RAM", "it counts MiB; set PONCHO_CACHE_RAM, such as 512MiB"),
    ("LLAMA_ARG_ALIAS", "set PONCHO_NAME, or PONCHO_ALIAS for another name of a model"),
    ("LLAMA_ARG_MODELS_DIR", "its folder has another layout; set PONCHO_MODELS_DIR"),
];

/// A value of another program's variable; `Err` is a note about a value that cannot be read.
pub(super) fn value_of(setting: &Setting, environment: &Environment) -> Option<Result<(String, Origin), String>> {
    let mut rows = VARIABLES.iter().filter(|(name, ..)| *name == setting.name);
    rows.find_map(|(_, variable, reading)| {
        let value = environment.get(variable)?;
        let read = value.to_str().and_then(|text| read(text.trim(), *reading));
        Some(match read {
            Some(value) => Ok((value, Origin::OtherProgram((*variable).to_owned()))),
            None => Err(ignored(variable, &value.to_string_lossy())),
        })
    })
}

/// The note about a value that is not used.
pub(super) fn ignored(variable: &str, value: &str) -> String {
    format!("{variable} is `{value}`, which Poncho does not accept; it is ignored")
}

/// Each variable with its setting, for the reference.
pub(super) fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    VARIABLES.iter().map(|(setting, variable, _)| (*variable, *setting))
}

/// Notes about variables of llama-server that are set and not read.
pub(super) fn unread(environment: &Environment) -> Vec<String> {
    let read = |name: &str| VARIABLES.iter().any(|(_, variable, _)| *variable == name);
    let unread = environment.starting_with(LLAMA_PREFIX).filter(|name| !read(name));
    unread
        .map(|name| match DIFFERENT.iter().find(|(variable, _)| *variable == name) {
            Some((_, why)) => format!("{name} is not read: {why}"),
            None => format!("{name} is not read: Poncho has no setting with the same meaning"),
        })
        .collect()
}

fn read(text: &str, reading: Reading) -> Option<String> {
    match reading {
        Reading::Same => Some(text.to_owned()),
        Reading::Switch => switch(text).map(|is_on| is_on.to_string()),
        Reading::Inverse => switch(text).map(|is_on| (!is_on).to_string()),
        Reading::Host => address(text).map(|(host, _)| host),
        Reading::Port => address(text).map(|(_, port)| port.to_string()),
    }
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "enabled" | "true" | "1" => Some(true),
        "off" | "disabled" | "false" | "0" => Some(false),
        _ => None,
    }
}

/// Host and port of `[SCHEME://]HOST[:PORT][/PATH]`, with Ollama's defaults.
fn address(text: &str) -> Option<(String, u16)> {
    let (scheme, rest) = text.split_once("://").map_or((None, text), |(scheme, rest)| (Some(scheme), rest));
    let default = match scheme {
        None => OLLAMA_PORT,
        Some("http") => 80,
        Some(_) => return None,
    };
    let rest = rest.split('/').next().unwrap_or_default();
    let (host, port) = match rest.strip_prefix('[') {
        Some(bracketed) => {
            let (host, after) = bracketed.split_once(']')?;
            (host, after.strip_prefix(':'))
        }
        // Several colons without brackets: an IPv6 address without a port.
        None if rest.matches(':').count() > 1 => (rest, None),
        None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Some(default), |port| port.parse().ok())?;
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    Some((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::*;

    #[test]
    fn each_row_names_a_setting() {
        for (name, variable, _) in VARIABLES {
            assert!(find(name).is_some(), "{variable} stands for {name}, which is not a setting");
        }
    }

    #[test]
    fn the_address_of_ollama_is_read_as_ollama_reads_it() {
        for (text, host, port) in [
            ("127.0.0.1:8080", "127.0.0.1", 8080),
            ("http://127.0.0.1:8080", "127.0.0.1", 8080),
            ("http://example.test/path", "example.test", 80),
            ("0.0.0.0", "0.0.0.0", 11434),
            (":9000", "127.0.0.1", 9000),
            ("[::1]:9000", "::1", 9000),
            ("[::1]", "::1", 11434),
            ("::1", "::1", 11434),
        ] {
            assert_eq!(address(text), Some((host.to_owned(), port)), "{text}");
        }
        for wrong in ["https://127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "[::1"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn switches_are_spelt_as_llama_cpp_spells_them() {
        assert_eq!(read("enabled", Reading::Switch).as_deref(), Some("true"));
        assert_eq!(read("0", Reading::Inverse).as_deref(), Some("true"));
        assert_eq!(read("perhaps", Reading::Switch), None);
    }

    #[test]
    fn variables_that_are_not_read_are_noted() {
        let environment = Environment::of(&[("LLAMA_ARG_CTX_SIZE", "4096"), ("LLAMA_ARG_TOP_K", "5")]);
        let notes = unread(&environment);
        assert!(notes.iter().any(|note| note.starts_with("LLAMA_ARG_CTX_SIZE") && note.contains("PONCHO_CTX_SIZE")));
        assert!(notes.iter().any(|note| note.starts_with("LLAMA_ARG_TOP_K is not read")), "{notes:?}");
    }
}
