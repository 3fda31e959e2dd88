//! The server and the model for an agent: one that runs, or one that is started in this process.
//!
//! Without a named model, a server that runs decides; a server of our own takes the model of the settings or of the last
//! chat, or the best installed one for agents that fits into the memory. It must never load a model only to print.

use std::path::Path;

use anyhow::{Context, bail};
use poncho_models::{AgentModel, Registry, agent_model_for};
use poncho_terminal::show_bytes;
use serde_json::Value;

use super::args::LaunchArgs;
use super::clients::Agent;
use super::setup::Target;
use crate::client::{Connection, Purpose, last_model};
use crate::serving::memory;
use crate::settings;
use crate::settings::models_folder::models_folder;

/// What an agent would use.
pub(crate) struct Found {
    pub(crate) target: Target,
    /// Tokens that the model was trained with.
    pub(crate) trained: Option<usize>,
    /// Whether its template knows tools; `None` if the server does not say.
    pub(crate) tools: Option<bool>,
    /// The model of a server that would have to be started.
    pub(crate) starts: Option<String>,
}

/// Finds a server, or starts one.
pub(crate) async fn open(args: &LaunchArgs, agent: &Agent) -> anyhow::Result<(Found, Connection)> {
    let connection = match running(args).await? {
        Some(connection) => connection,
        None => {
            let model = own_model(args)?;
            let mut own = args.model.own.clone();
            own.ctx_size = Some(own_context(args, agent)?);
            eprintln!("no server answers; loading {model} with a context of {} tokens", own.ctx_size.unwrap_or(0));
            Connection::start(Some(&model), &own, Purpose::Compute).await?
        }
    };
    let found = describe(&connection).await?;
    Ok((found, connection))
}

/// Finds a server, or says which one would be started.
pub(crate) async fn look(args: &LaunchArgs, agent: &Agent) -> anyhow::Result<Found> {
    if let Some(connection) = running(args).await? {
        return describe(&connection).await;
    }
    let model = own_model(args)?;
    let target = Target {
        url: "http://127.0.0.1:PORT".to_owned(),
        key: None,
        model: file_stem(&model).to_owned(),
        context: usize::try_from(own_context(args, agent)?)?,
    };
    Ok(Found { target, trained: None, tools: None, starts: Some(model) })
}

async fn running(args: &LaunchArgs) -> anyhow::Result<Option<Connection>> {
    Connection::find(&args.model.server, &args.model.own, args.model.model.as_deref()).await
}

/// The name that a file gets at a server of our own.
fn file_stem(model: &str) -> &str {
    let name = model.strip_suffix(".gguf").and_then(|path| path.rsplit('/').next());
    name.unwrap_or(model)
}

/// The flag, or what the agent needs and the settings allow.
fn own_context(args: &LaunchArgs, agent: &Agent) -> anyhow::Result<u32> {
    let (settings, _) = settings::of_serve()?;
    let least = u32::try_from(agent.least_context).unwrap_or(u32::MAX);
    Ok(args.model.own.ctx_size.unwrap_or_else(|| settings.ctx_size.map_or(least, |tokens| tokens.max(least))))
}

/// The model for a server of our own.
///
/// # Errors
/// If none is named and none is installed that an agent can use: then the message proposes one.
fn own_model(args: &LaunchArgs) -> anyhow::Result<String> {
    let (settings, _) = settings::of_serve()?;
    if let Some(model) = args.model.model.as_ref().or(settings.models().first()) {
        return Ok(model.clone());
    }
    let registry = Registry::open(&models_folder(settings.models_dir.as_deref())?)?;
    let installed: Vec<String> = registry.list()?.iter().map(|model| model.name.to_string()).collect();
    let memory = memory::available();
    let fits = |model: &&AgentModel| memory.is_none_or(|memory| model.bytes <= memory);
    let best =
        poncho_models::AGENT_MODELS.iter().filter(fits).find(|model| installed.iter().any(|name| name == model.name));
    if let Some(best) = best {
        return Ok(best.name.to_owned());
    }
    if let Some(last) = last_model::read().filter(|last| installed.contains(last) || Path::new(last).is_file()) {
        return Ok(last);
    }
    match agent_model_for(memory) {
        Some(model) => bail!(
            "no server answers, and no model for agents is installed; {} fits into the memory of this machine ({} of {}): \
             install it with `poncho pull {}`, or name a model with --model",
            model.name,
            show_bytes(model.bytes),
            memory.map_or_else(|| "unknown size".to_owned(), show_bytes),
            model.name
        ),
        None => bail!(
            "no server answers, and this machine has too little memory for a model that is good with tools; use another \
             machine's server with --url, or name a model with --model"
        ),
    }
}

async fn describe(connection: &Connection) -> anyhow::Result<Found> {
    let client = &connection.client;
    let listed = client.get("/v1/models").await?.unwrap_or_default();
    let models = listed.get("data").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let model = models.iter().find(|model| model.get("id").and_then(Value::as_str) == Some(&connection.model));
    // The first is Poncho's and OpenRouter's, then those of llama-server and vLLM.
    let lengths = ["/context_length", "/meta/n_ctx", "/max_model_len", "/meta/n_ctx_train"];
    let number = |path: &str| model?.pointer(path)?.as_u64().and_then(|number| usize::try_from(number).ok());
    let context = lengths.into_iter().find_map(number);
    let context = context.with_context(|| {
        format!("the server at {} does not say the context length of {}", client.authority(), connection.model)
    })?;
    let words = model.and_then(|model| model.get("capabilities")?.as_array());
    Ok(Found {
        target: Target {
            url: client.url(),
            key: client.key().map(str::to_owned),
            model: connection.model.clone(),
            context,
        },
        trained: number("/meta/n_ctx_train"),
        tools: words.map(|words| words.iter().any(|word| word == "tools")),
        starts: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_served_under_its_stem() {
        for (model, name) in [("/models/a.gguf", "a"), ("a.gguf", "a"), ("qwen3:4b", "qwen3:4b")] {
            assert_eq!(file_stem(model), name);
        }
    }
}
