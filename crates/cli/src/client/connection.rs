//! The server of a command, its model, and the end of a server that was started for the command.
//!
//! `--url` or `PONCHO_URL` names the server. Otherwise a Poncho at the address of the settings is used if it has the
//! model. Otherwise the model is loaded in this process. Nothing is printed here.

use std::fs::metadata;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use poncho_cache::split_parts;
use poncho_client::{Client, Refusal};
use poncho_terminal::parse_iso;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::address::{self, Access};
use super::args::{ModelArgs, OwnArgs, ServerArgs};
use super::choice::{choose, name_at};
use super::local::LocalServer;
use super::own_server::{self, Purpose};

/// How long a server at the address of the settings may take to answer.
const PROBE: Duration = Duration::from_secs(2);

/// A server and a model of it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    /// The name of the model at the server.
    pub(crate) model: String,
    /// The server that was started for this command, until it is ended.
    own: Arc<Mutex<Option<LocalServer>>>,
}

impl Connection {
    /// Finds a server with the model of the flags, or starts one.
    pub(crate) async fn to_model(args: &ModelArgs, purpose: Purpose) -> anyhow::Result<Self> {
        Self::open(&args.server, &args.own, args.model.as_deref(), purpose).await
    }

    /// Finds a server with the model, or starts one.
    pub(crate) async fn open(
        server: &ServerArgs,
        own: &OwnArgs,
        model: Option<&str>,
        purpose: Purpose,
    ) -> anyhow::Result<Self> {
        match Self::find(server, own, model).await? {
            Some(found) => Ok(found),
            None => Self::start(model, own, purpose).await,
        }
    }

    /// Finds a server with the model: the named one, or a Poncho at the address of the settings.
    pub(crate) async fn find(server: &ServerArgs, own: &OwnArgs, model: Option<&str>) -> anyhow::Result<Option<Self>> {
        if let Some(client) = named(server)?.filter(|_| !own.local) {
            let listed = listed_models(&client).await?;
            let model = match model {
                Some(text) => name_at(text, &listed).unwrap_or_else(|| text.to_owned()),
                None => choose(&client, &listed).await.context(
                    "the server has no models; install one there with `poncho pull`, or name one that it can load",
                )?,
            };
            return Ok(Some(Self::to(client, model, None)));
        }
        if !own.local
            && let Some((client, listed)) = answering_poncho(server, model).await?
        {
            let found = match model {
                Some(text) => name_at(text, &listed),
                None => choose(&client, &listed).await,
            };
            if let Some((name, text)) = found.as_deref().zip(model)
                && !is_same_file(&client, name, Path::new(text)).await
            {
                return Ok(None);
            }
            return Ok(found.map(|model| Self::to(client, model, None)));
        }
        Ok(None)
    }

    /// Starts a server in this process.
    pub(crate) async fn start(model: Option<&str>, own: &OwnArgs, purpose: Purpose) -> anyhow::Result<Self> {
        let (server, model) = own_server::start(model, own, purpose).await?;
        Ok(Self::to(server.client.clone(), model, Some(server)))
    }

    fn to(client: Client, model: String, own: Option<LocalServer>) -> Self {
        Self { client, model, own: Arc::new(Mutex::new(own)) }
    }

    /// Whether the model runs in this process.
    pub(crate) async fn is_own(&self) -> bool {
        self.own.lock().await.is_some()
    }

    /// Ends a server that was started for this command: its states are saved. Other servers keep running.
    pub(crate) async fn close(&self) -> anyhow::Result<()> {
        // Held until the end, so that a second caller does not end the process while states are saved.
        let mut own = self.own.lock().await;
        if let Some(server) = own.take() {
            server.stop().await?;
        }
        Ok(())
    }
}

/// A client for the named server, or for the address of the settings.
pub(crate) fn named_or_default(server: &ServerArgs) -> anyhow::Result<Client> {
    client_for(server, Access::Client)
}

/// The same with an administrator's key, if the settings have one.
pub(crate) fn administered(server: &ServerArgs) -> anyhow::Result<Client> {
    client_for(server, Access::Administrator)
}

fn client_for(server: &ServerArgs, access: Access) -> anyhow::Result<Client> {
    match address::named(server) {
        Some(named) => Client::new(&named.url, address::key(server, true, access)?),
        None => Client::new(&address::of_settings()?.url, address::key(server, false, access)?),
    }
}

/// The names of the models that a server lists.
pub(crate) async fn listed_models(client: &Client) -> anyhow::Result<Vec<String>> {
    let listed = client.get("/v1/models").await?;
    let listed = listed.with_context(|| format!("the server at {} does not list its models", client.authority()))?;
    Ok(names(&listed))
}

fn names(listed: &Value) -> Vec<String> {
    let models = listed.get("data").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    models.iter().filter_map(|model| model.get("id")?.as_str().map(str::to_owned)).collect()
}

fn named(server: &ServerArgs) -> anyhow::Result<Option<Client>> {
    let Some(named) = address::named(server) else { return Ok(None) };
    Client::new(&named.url, address::key(server, true, Access::Client)?).map(Some)
}

/// A Poncho at the address of the settings and its models; `None` if there is another program or nothing.
///
/// # Errors
/// If that Poncho requires a key and the model is not a file, which this process could load itself.
async fn answering_poncho(server: &ServerArgs, model: Option<&str>) -> anyhow::Result<Option<(Client, Vec<String>)>> {
    // With port 0 a running server may be anywhere; the model is loaded in this process.
    let Ok(address) = address::of_settings() else { return Ok(None) };
    let client = Client::new(&address.url, address::key(server, false, Access::Client)?)?;
    let listed = match timeout(PROBE, client.get("/v1/models")).await {
        Ok(Ok(Some(listed))) => listed,
        Ok(Err(error)) if is_about_key(&error) && !model.is_some_and(|model| Path::new(model).is_file()) => {
            let front = timeout(PROBE, client.get_text("/")).await;
            if front.is_ok_and(|front| front.is_ok_and(|text| text.starts_with("Poncho"))) {
                bail!("{error}, or load the model in this process with --local");
            }
            return Ok(None);
        }
        _ => return Ok(None),
    };
    let is_poncho = listed.pointer("/data/0/owned_by").and_then(Value::as_str) == Some("poncho");
    Ok(is_poncho.then(|| (client, names(&listed))))
}

/// Whether the server's model of this name is this file, because another file may have the same name. True for a text
/// that is not a file.
async fn is_same_file(client: &Client, name: &str, path: &Path) -> bool {
    if !path.is_file() {
        return true;
    }
    let tagged = format!("{name}:latest");
    let Ok(Some(listed)) = client.get("/api/tags").await else { return false };
    let mut models = listed.get("models").and_then(Value::as_array).into_iter().flatten();
    let found = models.find(|model| model.get("name").is_some_and(|found| *found == name || *found == tagged.as_str()));
    let text = |field: &str| found?.get(field)?.as_str();
    let size = found.and_then(|model| model.get("size")?.as_u64());
    let stamp = size.zip(text("modified_at").and_then(parse_iso));
    stamp.is_some() && stamp == stamp_of(path)
}

/// Bytes and time of the last change of a model's files, in unix seconds.
fn stamp_of(path: &Path) -> Option<(u64, u64)> {
    split_parts(path).ok()?.iter().try_fold((0, 0), |(bytes, latest): (u64, u64), part| {
        let facts = metadata(part).ok()?;
        let modified = facts.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs();
        Some((bytes.saturating_add(facts.len()), latest.max(modified)))
    })
}

fn is_about_key(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(Refusal::is_about_key)
}

/// The error for a path that the server does not have.
pub(crate) fn unknown_path(client: &Client, path: &str) -> anyhow::Error {
    anyhow!("the server at {} has no {path}; is it a Poncho of this version?", client.authority())
}
