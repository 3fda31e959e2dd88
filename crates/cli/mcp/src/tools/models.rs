//! The tool `models`: what is installed, what is loaded, and the context of each.

use poncho_client::Client;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::reading::{self, ListedModel};
use super::schema::{reads, typed};
use crate::error::ToolError;

pub(super) const NAME: &str = "models";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {}

/// All models of the server.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Models {
    models: Vec<Model>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Model {
    name: String,
    /// Whether it is in memory. A request to another model loads it first.
    loaded: bool,
    /// Tokens that one request may use, prompt and reply together.
    context_length: u64,
    /// Tokens of the context that the model was trained with.
    trained_context_length: u64,
    architecture: String,
    parameters: u64,
    /// Size of the weights in bytes.
    bytes: u64,
    /// What it can do, such as completion, tools, thinking; null for a model that is not loaded.
    capabilities: Option<Vec<String>>,
}

impl From<ListedModel> for Model {
    fn from(listed: ListedModel) -> Self {
        let ListedModel { id, context_length, capabilities, meta } = listed;
        Self {
            name: id,
            loaded: meta.loaded,
            context_length,
            trained_context_length: meta.n_ctx_train,
            architecture: meta.architecture,
            parameters: meta.n_params,
            bytes: meta.size,
            capabilities,
        }
    }
}

pub(super) fn tool() -> Tool {
    let description = "Lists the models of the Poncho server: which are installed, which are loaded, and how many tokens \
        one request may use.";
    typed::<Arguments, Models>(NAME, description, reads("Models"))
}

pub(super) async fn call(client: &Client, Arguments {}: Arguments) -> Result<Models, ToolError> {
    let models = reading::models(client).await?;
    Ok(Models { models: models.into_iter().map(Model::from).collect() })
}
