//! Questions to the server that the tools share: a document of a path, read into a type, within a limit of time.
//!
//! Replies of a model have no limit here: the client of the tool cancels them.

use std::time::Duration;

use poncho_client::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use crate::error::ToolError;

/// For reports that the server has at hand.
const REPORT: Duration = Duration::from_secs(30);
/// For questions that may load a model first.
const LOADING: Duration = Duration::from_secs(300);

/// A report of the server.
pub(super) async fn report<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, ToolError> {
    let answer = within(REPORT, client.get(path)).await?;
    read(path, answer.ok_or_else(|| no_path(client, path))?)
}

/// The same of a path that needs the model.
pub(super) async fn model_report<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, ToolError> {
    let answer = within(LOADING, client.get(path)).await?;
    read(path, answer.ok_or_else(|| no_path(client, path))?)
}

/// The answer to a document that is posted.
pub(super) async fn posted<T: DeserializeOwned>(client: &Client, path: &str, body: &Value) -> Result<T, ToolError> {
    let answer = within(LOADING, client.post(path, body)).await?;
    read(path, answer)
}

async fn within<T>(limit: Duration, question: impl Future<Output = anyhow::Result<T>> + Send) -> Result<T, ToolError> {
    Ok(timeout(limit, question).await.map_err(|_| ToolError::Late { limit })??)
}

fn no_path(client: &Client, path: &str) -> ToolError {
    ToolError::NoPath { authority: client.authority().to_owned(), path: path.to_owned() }
}

fn read<T: DeserializeOwned>(path: &str, answer: Value) -> Result<T, ToolError> {
    serde_json::from_value(answer)
        .map_err(|error| ToolError::Unreadable { path: path.to_owned(), reason: error.to_string() })
}

/// What the server lists at `/v1/models`.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    pub(super) data: Vec<ListedModel>,
}

/// One of them; a server that is not a Poncho leaves most fields out.
#[derive(Debug, Deserialize)]
pub(super) struct ListedModel {
    pub(super) id: String,
    pub(super) context_length: u64,
    pub(super) capabilities: Option<Vec<String>>,
    pub(super) meta: Meta,
}

#[derive(Debug, Deserialize)]
pub(super) struct Meta {
    pub(super) loaded: bool,
    pub(super) architecture: String,
    pub(super) n_ctx_train: u64,
    pub(super) n_params: u64,
    pub(super) size: u64,
}

/// The models of the server.
pub(super) async fn models(client: &Client) -> Result<Vec<ListedModel>, ToolError> {
    Ok(report::<Listed>(client, "/v1/models").await?.data)
}
