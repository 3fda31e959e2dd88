//! `POST /v1/rerank` and its other spellings: documents in the order in which they answer a query.
//!
//! A model that was made to rank (its file pools by rank) scores each pair of query and document. Any other model embeds
//! both, and the score is the cosine of the vectors. The answer has Jina's shape, which llama.cpp's server uses too.

use std::cmp::Ordering;
use std::fmt;

use axum::extract::State;
use poncho_api::{Input, TokenizeMode};
use schemars::JsonSchema;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Deserialize as DeserializeDerive, Serialize};

use crate::dialects::embedding::{self, Embedded, Inputs};
use crate::dialects::openai::ignored;
use crate::dialects::shared::{WithWarnings, warn_of_model};
use crate::error::ApiError;
use crate::forms::left_out;
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::http::unknown_fields;
use crate::http::warnings::Warnings;
use crate::models::served::ServedModel;

/// More documents belong into more calls.
const MOST_DOCUMENTS: usize = 1024;
/// `LLAMA_POOLING_TYPE_RANK`, as model files write it.
const RANK: u64 = 4;
/// Arrays of the file are not needed.
const SHORT_ARRAY: usize = 0;

/// What comes in.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(rename = "RerankRequest")]
pub(crate) struct RerankBody {
    model: Option<String>,
    #[schemars(length(min = 1))]
    query: String,
    #[schemars(with = "Vec<DocumentForm>", length(min = 1, max = MOST_DOCUMENTS))]
    documents: Vec<Document>,
    /// How many of the best to return.
    top_n: Option<usize>,
    return_documents: Option<bool>,
}

/// A text, or an object with one.
#[derive(Debug, Clone)]
struct Document(String);

/// A text, or an object with one.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "a visitor reads documents, so that unknown fields are noted")]
enum DocumentForm {
    Text(#[schemars(length(min = 1))] String),
    Object(DocumentBody),
}

/// A document that comes as an object.
#[derive(Debug, DeserializeDerive, JsonSchema)]
#[schemars(inline)]
struct DocumentBody {
    #[schemars(length(min = 1))]
    text: String,
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text or an object with a text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Document, E> {
        Ok(Document(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Document, A::Error> {
        unknown_fields::read(map).map(|DocumentBody { text }| Document(text))
    }
}

/// What goes out.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Reranked {
    object: &'static str,
    model: String,
    results: Vec<Ranked>,
    usage: RerankUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RankedDocument", transform = left_out)]
struct Ranked {
    /// Its place in the request.
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentOut>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DocumentText")]
struct DocumentOut {
    text: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RerankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Ranks documents.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<RerankBody>,
) -> Result<Json<WithWarnings<Reranked>>, ApiError> {
    let model = app.models.resolve_or_only(body.model.as_deref()).await?;
    let mut warnings = Warnings::about(unknown, &ignored::PLAIN);
    warn_of_model(&mut warnings, &model);
    if body.query.is_empty() {
        return Err(ApiError::field("query", "it is empty"));
    }
    let count = body.documents.len();
    if count == 0 || count > MOST_DOCUMENTS {
        let reason = format!("it has {count} elements and must have between 1 and {MOST_DOCUMENTS}");
        return Err(ApiError::field("documents", reason));
    }
    if let Some(at) = body.documents.iter().position(|document| document.0.is_empty()) {
        return Err(ApiError::field(format!("documents[{at}]"), "it is empty"));
    }
    let id = model.id().to_owned();
    let scored = if was_made_to_rank(&app, &model).await {
        scored_as_pairs(&app, model, &body).await?
    } else {
        scored_by_cosine(&app, model, &body).await?
    };
    let wants_documents = body.return_documents.unwrap_or(false);
    let mut results: Vec<Ranked> = scored
        .scores
        .into_iter()
        .zip(body.documents)
        .enumerate()
        .map(|(index, (relevance_score, document))| {
            let document = wants_documents.then_some(DocumentOut { text: document.0 });
            Ranked { index, relevance_score, document }
        })
        .collect();
    // Stable: documents with equal scores keep their order.
    results.sort_by(|a, b| b.relevance_score.partial_cmp(&a.relevance_score).unwrap_or(Ordering::Equal));
    results.truncate(body.top_n.unwrap_or(count));
    let usage = RerankUsage { prompt_tokens: scored.tokens, total_tokens: scored.tokens };
    Ok(Json(WithWarnings::new(&app, Reranked { object: "list", model: id, results, usage }, warnings)))
}

/// One score for each document, and the tokens that were read for them.
struct Scored {
    scores: Vec<f32>,
    tokens: usize,
}

async fn was_made_to_rank(app: &SharedApp, model: &ServedModel) -> bool {
    let file = app.models.node().model_file(&model.report().path, SHORT_ARRAY).await;
    let pooling = file.metadata.iter().find(|(key, _)| key.ends_with(".pooling_type"));
    pooling.and_then(|(_, value)| value.as_u64()) == Some(RANK)
}

/// Query and document in one input: the text that such models are trained on.
async fn scored_as_pairs(app: &SharedApp, model: ServedModel, body: &RerankBody) -> Result<Scored, ApiError> {
    let plain = TokenizeMode { add_special: false, parse_special: false };
    let special = model.info().special;
    let query = model.tokenize(body.query.clone(), plain).await?;
    let mut inputs = Vec::with_capacity(body.documents.len());
    for document in &body.documents {
        let document = model.tokenize(document.0.clone(), plain).await?;
        let between = special.eos.into_iter().chain(special.sep.or(special.eos));
        let pair = special.bos.into_iter().chain(query.iter().copied()).chain(between);
        inputs.push(Input::Tokens(pair.chain(document).chain(special.eos).collect()));
    }
    let inputs = Inputs { inputs, field: "documents", truncates: true, normalises: false };
    let Embedded { vectors, tokens } = embedding::embed(app, model, inputs).await?;
    let scores = vectors.iter().map(|vector| vector.first().copied().unwrap_or_default()).collect();
    Ok(Scored { scores, tokens })
}

async fn scored_by_cosine(app: &SharedApp, model: ServedModel, body: &RerankBody) -> Result<Scored, ApiError> {
    let texts = std::iter::once(&body.query).chain(body.documents.iter().map(|document| &document.0));
    let inputs = texts.map(|text| Input::Text(text.clone())).collect();
    let inputs = Inputs { inputs, field: "documents", truncates: true, normalises: true };
    let Embedded { vectors, tokens } = embedding::embed(app, model, inputs).await?;
    let Some((query, documents)) = vectors.split_first() else {
        return Err(ApiError::Internal { doing: "embedded a query" });
    };
    let cosine = |document: &Vec<f32>| query.iter().zip(document).map(|(a, b)| a * b).sum();
    Ok(Scored { scores: documents.iter().map(cosine).collect(), tokens })
}
