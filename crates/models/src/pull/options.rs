//! How a model is fetched: its name, the hub, the token, retries and time limits.
//!
//! Set by the server and by the command line. The token of the hub must never be printed.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::digest::Sha256;
use crate::name::ModelName;

/// Where the hub is, unless `HF_ENDPOINT` says otherwise.
const HUB: &str = "https://huggingface.co";

/// How a model is fetched.
#[derive(Clone)]
#[non_exhaustive]
pub struct PullOptions {
    /// The name to install it under [default: the reference's own].
    pub name: Option<ModelName>,
    /// The hash that the file must have, if the caller knows it.
    pub sha256: Option<Sha256>,
    /// The address of the hub, without a slash at its end.
    pub hub: String,
    /// The token for the hub.
    pub hub_token: Option<String>,
    /// The Python that packages are fetched with.
    pub python: PathBuf,
    /// How many attempts in a row may fail without a new byte before the download is given up; 0 gives up at once.
    pub retries: u32,
    /// How long to wait before such a retry.
    pub retry_pause: Duration,
    /// How long a server may send nothing.
    pub silence: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            name: None,
            sha256: None,
            hub: HUB.to_owned(),
            hub_token: None,
            python: "python3".into(),
            // A router that restarts is back after some seconds.
            retries: 4,
            retry_pause: Duration::from_secs(2),
            silence: Duration::from_secs(60),
        }
    }
}

impl fmt::Debug for PullOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("PullOptions");
        shown.field("name", &self.name).field("sha256", &self.sha256).field("hub", &self.hub);
        shown.field("hub_token", &self.hub_token.as_ref().map(|_| "(not shown)")).finish_non_exhaustive()
    }
}

impl PullOptions {
    /// The defaults with `HF_ENDPOINT` and `HF_TOKEN` of the environment.
    #[must_use]
    pub fn from_env() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let mut options = Self { hub_token: variable("HF_TOKEN"), ..Self::default() };
        if let Some(hub) = variable("HF_ENDPOINT") {
            options.hub = hub.trim_end_matches('/').to_owned();
        }
        options
    }
}
