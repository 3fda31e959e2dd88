//! `POST /v1/embeddings`: texts or tokens in, vectors of length 1 out, in the same order.
//!
//! Each input is computed by itself (`embedding.rs`): replies in flight go on between two of them, and a client that goes
//! away ends the work.

use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::call::model_name;
use super::ignored;
use super::prompt::{PromptForm, Prompts};
use crate::dialects::embedding::{self, Inputs};
use crate::dialects::shared::{WithWarnings, warn_of_model};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::http::warnings::Warnings;

/// What OpenAI's reference says.
const INPUT: PromptForm = PromptForm { field: "input", most: 2048, may_be_empty: false };

/// What comes in.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "EmbeddingsRequest")]
pub(crate) struct EmbeddingsBody {
    #[schemars(required)]
    model: Option<String>,
    /// A text, texts, tokens or lists of tokens.
    input: Prompts,
    #[schemars(extend("enum" = ["float", "base64", null]))]
    encoding_format: Option<String>,
    dimensions: Option<u32>,
    /// Who asks; answered with a warning.
    user: Option<String>,
}

/// What goes out.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Embeddings")]
pub(crate) struct EmbeddingsOut {
    #[schemars(extend("enum" = ["list"]))]
    object: &'static str,
    data: Vec<EmbeddingOut>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Embedding")]
struct EmbeddingOut {
    #[schemars(extend("enum" = ["embedding"]))]
    object: &'static str,
    index: usize,
    embedding: Encoded,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Encoded {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, JsonSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// How a vector is written.
#[derive(Debug, Clone, Copy)]
enum Encoding {
    Floats,
    Base64,
}

impl Encoding {
    fn read(word: Option<&str>) -> Result<Self, ApiError> {
        match word {
            None | Some("float") => Ok(Self::Floats),
            Some("base64") => Ok(Self::Base64),
            Some(other) => {
                Err(ApiError::field("encoding_format", format!("it is {other:?} and must be float or base64")))
            }
        }
    }

    fn write(self, vector: Vec<f32>) -> Encoded {
        match self {
            Self::Floats => Encoded::Floats(vector),
            Self::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Encoded::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

/// Embeds some inputs.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<EmbeddingsBody>,
) -> Result<Json<WithWarnings<EmbeddingsOut>>, ApiError> {
    let model = app.models.resolve(model_name(body.model.as_deref())?).await?;
    let mut warnings = Warnings::about(unknown, &ignored::PLAIN);
    ignored::warn_of_user(&mut warnings, body.user.as_deref());
    warn_of_model(&mut warnings, &model);
    let encoding = Encoding::read(body.encoding_format.as_deref())?;
    let width = model.info().n_embd_out;
    if let Some(dimensions) = body.dimensions.filter(|dimensions| *dimensions != width) {
        let reason = format!("it is {dimensions} and this model makes vectors of {width}; leave it out");
        return Err(ApiError::field("dimensions", reason));
    }
    body.input.check_tokens(INPUT.field, model.limits().vocab)?;
    let prompts = INPUT.read(body.input)?;
    let id = model.id().to_owned();
    let inputs = Inputs { inputs: prompts, field: INPUT.field, truncates: false, normalises: true };
    let embedded = embedding::embed(&app, model, inputs).await.map_err(|error| match error {
        // This API names the list, not its elements.
        ApiError::Field { field, reason } if field.starts_with("input[") => ApiError::field(INPUT.field, reason),
        other => other,
    })?;
    let usage = EmbeddingUsage { prompt_tokens: embedded.tokens, total_tokens: embedded.tokens };
    let vectors = embedded.vectors.into_iter().enumerate();
    let data =
        vectors.map(|(index, vector)| EmbeddingOut { object: "embedding", index, embedding: encoding.write(vector) });
    let answer = EmbeddingsOut { object: "list", data: data.collect(), model: id, usage };
    Ok(Json(WithWarnings::new(&app, answer, warnings)))
}
