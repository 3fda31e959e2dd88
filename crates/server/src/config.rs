//! What the server may be told: keys, limits, names. Raw settings, checked once by `serve`.
//!
//! Built by the command line or a Rust program. Its debug form never shows a key.

mod endpoint;
mod keep_alive;
mod memory;
mod system;
mod uploads;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::library::ModelLibrary;
use crate::responses::tool_server::ToolServer;
pub(crate) use endpoint::traces_url;
pub use keep_alive::KeepAlive;
pub use memory::MemoryBudget;
pub use system::{
    PlanLine, PlannedMemory, Plans, RecentLines, ShownDevice, ShownMachine, ShownPlan, ShownSetting, UnusedDevice,
};
pub use uploads::UploadRules;

/// Everything that can be set. `ServerConfig::default()` is right for a private server on the loopback.
#[derive(Clone)]
pub struct ServerConfig {
    /// Keys of which a client must send one; empty asks for none.
    pub keys: Vec<String>,
    /// Further keys. A client with one of them may see and evict what all keys have stored, and read the metrics.
    pub admin_keys: Vec<String>,
    /// Give each key a namespace of its own: nothing is shared between keys, not even the time that a hit saves.
    pub isolate_keys: bool,
    /// Names that clients use for models that are loaded or installed under another name. A name that ends with `*`
    /// stands for every name that begins so; the longest one wins, and a whole name wins over all of them.
    pub aliases: BTreeMap<String, String>,
    /// Answer with the default model, or else with the only loaded one, where nobody knows the name that a request
    /// says.
    pub any_model: bool,
    /// What is meant by no name at all, and with `any_model` by a name that nobody knows.
    pub default_model: Option<String>,
    /// Where models come from that are not loaded; without one only those are served that the engine has.
    pub library: Option<Arc<dyn ModelLibrary>>,
    /// How much memory loaded models may take together.
    pub memory: MemoryBudget,
    /// How long a model that was loaded for a request stays loaded after the last one.
    pub keep_alive: KeepAlive,
    /// Longest request body in bytes.
    pub max_body: usize,
    /// What clients that send files of models may take.
    pub uploads: UploadRules,
    /// Connections served at the same time; further ones wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take to send the head of a request; also closes idle connections.
    pub header_timeout: Duration,
    /// How long a client may take to send the body of a request.
    pub body_timeout: Duration,
    /// How long a client may leave what is written to it unread. After that its request is cancelled and its connection
    /// closed; any byte that it reads restarts the time.
    pub write_timeout: Duration,
    /// How long a request may take; `None` for as long as it needs.
    pub request_timeout: Option<Duration>,
    /// Pause after which a quiet stream gets an event, so that neither its client nor a proxy takes it for dead.
    pub stream_keep_alive: Duration,
    /// A file for the hashes of requests that ask for cache diagnostics; without one they end with the server.
    pub records_file: Option<PathBuf>,
    /// How long requests in flight may go on once shutdown began.
    pub shutdown_grace: Duration,
    /// Names, without a port, that a server on the loopback without keys answers to besides those of the loopback.
    pub allowed_hosts: Vec<String>,
    /// Origins of pages that may use this server, such as `https://chat.example`; none by default.
    pub cors: Vec<String>,
    /// The address of an OpenTelemetry collector that takes traces as OTLP over HTTP or HTTPS; `None` makes no traces.
    pub otlp_endpoint: Option<String>,
    /// How many of the last requests `/api/requests` and the console show; 0 keeps none.
    pub requests_kept: usize,
    /// Where the sums of what the cache saved are kept over restarts; `None` keeps them in memory only.
    pub savings_file: Option<PathBuf>,
    /// MCP servers with tools that requests of `/v1/responses` may use, by label. This server contacts no other address,
    /// whatever a client sends; without any, such requests are refused.
    pub tool_servers: BTreeMap<String, Arc<dyn ToolServer>>,
    /// How long a call of such a tool may take.
    pub tool_timeout: Duration,
    /// The settings of the program that runs this server, as `/api/system` lists them. Without keys and other secrets.
    pub settings: Vec<ShownSetting>,
    /// The devices of the machine, for `/api/system`.
    pub machine: ShownMachine,
    /// The plans of models, for `/api/system`.
    pub plans: Option<Plans>,
    /// The last log lines at warn and above, for `/api/system`.
    pub recent_warnings: Arc<RecentLines>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            admin_keys: Vec::new(),
            isolate_keys: false,
            aliases: BTreeMap::new(),
            any_model: false,
            default_model: None,
            library: None,
            memory: MemoryBudget::default(),
            // Long enough for the pause between two turns of a conversation.
            keep_alive: KeepAlive::For(Duration::from_secs(300)),
            // A context of a million tokens is a few megabytes of text; the rest is room for JSON escapes.
            max_body: 32 << 20,
            uploads: UploadRules::default(),
            max_connections: 1024,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            // A laptop that slept a moment, or a reader that paged through a long answer, is still there.
            write_timeout: Duration::from_secs(60),
            request_timeout: None,
            // Proxies give up on a silent connection after 30 to 60 seconds; agents can be set to a few seconds, and the
            // event also reports how far the prompt is read.
            stream_keep_alive: Duration::from_secs(2),
            records_file: None,
            shutdown_grace: Duration::from_secs(30),
            allowed_hosts: Vec::new(),
            cors: Vec::new(),
            otlp_endpoint: None,
            requests_kept: 1000,
            savings_file: None,
            tool_servers: BTreeMap::new(),
            // A tool that searches or compiles takes a while; a person in front of a chat waits this long.
            tool_timeout: Duration::from_secs(60),
            settings: Vec::new(),
            machine: ShownMachine::default(),
            plans: None,
            recent_warnings: Arc::default(),
        }
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ServerConfig")
            .field("keys", &self.keys.len())
            .field("admin_keys", &self.admin_keys.len())
            .field("isolate_keys", &self.isolate_keys)
            .field("aliases", &self.aliases)
            .field("any_model", &self.any_model)
            .field("default_model", &self.default_model)
            .field("library", &self.library.is_some())
            .field("memory", &self.memory)
            .field("keep_alive", &self.keep_alive)
            .field("max_body", &self.max_body)
            .field("uploads", &self.uploads)
            .field("max_connections", &self.max_connections)
            .field("header_timeout", &self.header_timeout)
            .field("body_timeout", &self.body_timeout)
            .field("write_timeout", &self.write_timeout)
            .field("request_timeout", &self.request_timeout)
            .field("stream_keep_alive", &self.stream_keep_alive)
            .field("records_file", &self.records_file)
            .field("shutdown_grace", &self.shutdown_grace)
            .field("allowed_hosts", &self.allowed_hosts)
            .field("cors", &self.cors)
            .field("otlp_endpoint", &self.otlp_endpoint)
            .field("requests_kept", &self.requests_kept)
            .field("savings_file", &self.savings_file)
            .field("tool_servers", &self.tool_servers.keys())
            .field("tool_timeout", &self.tool_timeout)
            .field("settings", &self.settings.len())
            .finish()
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// An empty key would let everybody in.
    #[error("API key {number} is empty; set it or remove it")]
    EmptyKey {
        /// Its place in the list, counted from 1.
        number: usize,
    },
    /// A limit of zero would refuse everything.
    #[error("{setting} is 0, so nothing could be served; set it to at least 1")]
    Zero {
        /// The setting's name.
        setting: &'static str,
    },
    /// An alias without a name, or for nothing.
    #[error("the alias {alias:?} for {target:?} is incomplete; write NAME=MODEL")]
    EmptyAlias {
        /// The name that clients would use.
        alias: String,
        /// The model that it would stand for.
        target: String,
    },
    /// A star that does not end the name.
    #[error("the alias {alias:?} has a * before its end; a * is allowed only at the end, such as claude-*")]
    AliasPattern {
        /// The name that clients would use.
        alias: String,
    },
    /// An address of a collector that cannot be used.
    #[error("the collector's address {url:?} cannot be used: {reason}; write it as http://localhost:4318")]
    Endpoint {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A machine that cannot send to a collector.
    #[error("traces cannot be sent: {reason}; install the system's certificates, or use an address with http://")]
    Exporter {
        /// What is missing.
        reason: String,
    },
    /// Something that no browser sends as its origin.
    #[error("{origin:?} is not a valid origin; write it as https://chat.example, in lower case and without a path")]
    Origin {
        /// As it was given.
        origin: String,
    },
    /// An address that others can reach, and no key.
    #[error(
        "{address} can be reached from other machines and no API key is set; set a key, bind to 127.0.0.1, or force it"
    )]
    OpenBind {
        /// The address.
        address: SocketAddr,
    },
}

impl ServerConfig {
    /// Says what is wrong with the settings.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut all_keys = self.keys.iter().chain(&self.admin_keys);
        if let Some(index) = all_keys.position(|key| key.trim().is_empty()) {
            return Err(ConfigError::EmptyKey { number: index + 1 });
        }
        let zero = [
            ("max_body", self.max_body == 0),
            ("max_connections", self.max_connections == 0),
            ("uploads.time", self.uploads.time.is_zero()),
            ("uploads.sweep_every", self.uploads.sweep_every.is_zero()),
            ("header_timeout", self.header_timeout.is_zero()),
            ("body_timeout", self.body_timeout.is_zero()),
            ("write_timeout", self.write_timeout.is_zero()),
            ("request_timeout", self.request_timeout.is_some_and(|limit| limit.is_zero())),
            ("stream_keep_alive", self.stream_keep_alive.is_zero()),
            ("tool_timeout", self.tool_timeout.is_zero()),
        ];
        if let Some((setting, _)) = zero.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(ConfigError::Zero { setting });
        }
        let has_star = |alias: &&String| alias.strip_suffix('*').unwrap_or(alias).contains('*');
        if let Some(alias) = self.aliases.keys().find(has_star) {
            return Err(ConfigError::AliasPattern { alias: alias.clone() });
        }
        if let Some(origin) = self.cors.iter().find(|origin| !is_origin(origin)) {
            return Err(ConfigError::Origin { origin: origin.clone() });
        }
        self.otlp_endpoint.as_deref().map(traces_url).transpose()?;
        match self.aliases.iter().find(|(alias, target)| alias.is_empty() || target.is_empty()) {
            Some((alias, target)) => Err(ConfigError::EmptyAlias { alias: alias.clone(), target: target.clone() }),
            None => Ok(()),
        }
    }
}

/// Whether the server may listen there: loopback always, anything else with a key or by force.
///
/// # Errors
/// The address can be reached by others and nothing protects it.
pub fn check_bind(address: SocketAddr, keys: &[String], force: bool) -> Result<(), ConfigError> {
    if address.ip().to_canonical().is_loopback() || !keys.is_empty() || force {
        return Ok(());
    }
    Err(ConfigError::OpenBind { address })
}

/// Whether a text is what browsers send as an origin: a scheme, a host, maybe a port, nothing more.
pub(crate) fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else { return false };
    let is_plain = |text: &str, also: &[u8]| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || also.contains(&byte))
    };
    is_plain(scheme, b"-+.") && is_plain(host, b"-_.:[]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_is_open_without_a_key() {
        let key = ["secret".to_owned()];
        for open in ["0.0.0.0:80", "192.168.1.4:80", "[::]:80", "[2001:db8::1]:80", "[::ffff:10.0.0.1]:80"] {
            let address: SocketAddr = open.parse().unwrap();
            assert_eq!(check_bind(address, &[], false), Err(ConfigError::OpenBind { address }), "{open}");
            assert_eq!(check_bind(address, &key, false), Ok(()), "{open}");
            assert_eq!(check_bind(address, &[], true), Ok(()), "{open}");
        }
        for closed in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(check_bind(closed.parse().unwrap(), &[], false), Ok(()), "{closed}");
        }
    }

    #[test]
    fn settings_that_serve_nobody_or_everybody_are_refused() {
        assert_eq!(ServerConfig::default().check(), Ok(()));
        let wrong = [
            ServerConfig { keys: vec!["a".into(), " ".into()], ..ServerConfig::default() },
            ServerConfig { admin_keys: vec![String::new()], keys: vec!["a".into()], ..ServerConfig::default() },
            ServerConfig { max_body: 0, ..ServerConfig::default() },
            ServerConfig { request_timeout: Some(Duration::ZERO), ..ServerConfig::default() },
            ServerConfig { aliases: BTreeMap::from([("gpt".into(), String::new())]), ..ServerConfig::default() },
            ServerConfig { aliases: BTreeMap::from([("a*b".into(), "c".into())]), ..ServerConfig::default() },
            ServerConfig { cors: vec!["*".into()], ..ServerConfig::default() },
            ServerConfig { otlp_endpoint: Some("ftp://x".into()), ..ServerConfig::default() },
        ];
        let said = wrong.map(|config| config.check().unwrap_err().to_string());
        let words = ["key 2", "key 2", "max_body", "request_timeout", "\"gpt\"", "\"a*b\"", "\"*\"", "http://"];
        for (text, word) in said.iter().zip(words) {
            assert!(text.contains(word), "{text}");
        }
        let secure = ServerConfig { otlp_endpoint: Some("https://x".into()), ..ServerConfig::default() };
        assert_eq!(secure.check(), Ok(()));
    }

    #[test]
    fn keys_stay_out_of_logs() {
        let config = ServerConfig { keys: vec!["sk-secret".into()], ..ServerConfig::default() };
        assert!(!format!("{config:?}").contains("sk-secret"));
    }
}
