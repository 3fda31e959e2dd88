//! Poncho's own endpoints: health, metrics, the cache, tokens and templates.
//!
//! Errors have OpenAI's shape. Where a `model` can be left out, it means the only one that is loaded.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use poncho_api::{
    HygieneRule, PressureReport, Rendered, SharedTierReport, SpecialText, TierHealth, TierReport, TokenizeMode,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::dialects::openai::convert::chat_turn;
use crate::dialects::openai::ignored;
use crate::dialects::openai::types::ChatRequestBody;
use crate::dialects::shared::{WithWarnings, warn_of_model};
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::forms::{AnyObject, left_out};
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::http::token_list::TokenList;
use crate::http::unknown_fields::UnknownField;
use crate::http::warnings::Warnings;
use crate::models::served::ServedModel;
use crate::owner::Owner;
use crate::telemetry::metrics::Surroundings;

/// The answer of `GET /health`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Health {
    #[schemars(extend("enum" = ["ok"]))]
    status: &'static str,
}

/// The answer of `GET /health/ready`, if a request would be taken.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Ready {
    #[schemars(extend("enum" = ["ready"]))]
    status: &'static str,
}

/// The same, if none would be.
#[derive(Serialize, JsonSchema)]
pub(crate) struct NotReady {
    #[schemars(extend("enum" = ["shutting_down", "no_model"]))]
    status: &'static str,
}

/// `GET /health`: the process is up.
pub(crate) async fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// `GET /health/ready`: a request would be taken.
pub(crate) async fn ready(State(app): State<SharedApp>) -> Response {
    let status = if app.life.is_draining() {
        "shutting_down"
    } else if app.models.any_serves() {
        return Json(Ready { status: "ready" }).into_response();
    } else {
        "no_model"
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(NotReady { status })).into_response()
}

/// `GET /metrics`.
pub(crate) async fn metrics(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Response, ApiError> {
    app.keys.check_sees_sums(owner)?;
    let node = app.models.node();
    let page = app.metrics.render(&Surroundings {
        cache: &node.cache(),
        models: &node.models(),
        in_flight: app.life.count(),
        spans: app.exporter.as_ref().map_or((0, 0), |exporter| exporter.counts()),
    });
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], page).into_response())
}

/// The answer of `GET /api/version`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// `GET /api/version`.
pub(crate) async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION") })
}

/// The answer of `GET /api/hygiene`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HygieneRules {
    rules: Vec<ShownRule>,
}

/// A rule with an example.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "HygieneExample")]
struct ShownRule {
    rule: HygieneRule,
    on: bool,
    /// What it does.
    what: &'static str,
    before: &'static str,
    after: &'static str,
}

/// `GET /api/hygiene`: the rules, what they do, and which are on.
pub(crate) async fn hygiene(State(app): State<SharedApp>) -> Json<Value> {
    let on = app.models.node().hygiene();
    let rules = HygieneRule::ALL.map(|rule| {
        let (what, before, after) = rule.example();
        ShownRule { rule, on: on.contains(&rule), what, before, after }
    });
    Json(json!(HygieneRules { rules: rules.into() }))
}

/// The answer of `GET /api/cache`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Cache", transform = left_out)]
pub(crate) struct CacheOut {
    /// What was counted since it was opened.
    counters: BTreeMap<String, u64>,
    /// Fastest first.
    tiers: Vec<CacheTier>,
    rows: usize,
    /// Rows that are being read.
    pinned_rows: usize,
    /// Saves that wait for a writer.
    write_queue: usize,
    /// Memory of the index.
    index_bytes: usize,
    pressure: PressureOut,
    /// The tier that several machines share, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AnyObject>")]
    shared: Option<SharedTierReport>,
    /// The caches of other nodes, if this one pulls from them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<AnyObject>")]
    peers: Option<SharedTierReport>,
}

/// A tier of this machine, as `GET /api/cache` has it.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct CacheTier {
    /// ram, ram_file or disk.
    tier: String,
    bytes: u64,
    /// Bytes that it may hold; 0 where it is not used.
    quota: u64,
    rows: u64,
    /// Whether it is used.
    on: bool,
    /// Why it was turned off.
    off_because: Option<String>,
    /// Why it is slow.
    slow_because: Option<String>,
}

impl From<TierReport> for CacheTier {
    fn from(tier: TierReport) -> Self {
        let TierHealth { off, slow } = tier.health.unwrap_or_default();
        Self {
            tier: tier.tier.as_str().to_owned(),
            bytes: tier.bytes,
            quota: tier.quota,
            rows: tier.rows,
            on: tier.quota > 0 && off.is_none(),
            off_because: off,
            slow_because: slow,
        }
    }
}

/// What the pressure watcher has seen and done.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "MemoryPressure")]
struct PressureOut {
    on: bool,
    /// Samples taken, failed ones included.
    samples: u64,
    evictions: u64,
    /// Samples at which nothing was evicted, because evictions before had changed nothing.
    held_back: u64,
    last_sample: Option<PressureSample>,
    last_action: Option<PressureAction>,
    last_error: Option<String>,
}

/// Bytes in use, and in all.
#[derive(Serialize, JsonSchema)]
struct PressureSample {
    used: u64,
    total: u64,
}

/// Bytes that were wanted, and that an eviction freed.
#[derive(Serialize, JsonSchema)]
struct PressureAction {
    wanted: u64,
    freed: u64,
}

impl From<PressureReport> for PressureOut {
    fn from(report: PressureReport) -> Self {
        Self {
            on: report.on,
            samples: report.samples,
            evictions: report.evictions,
            held_back: report.held_back,
            last_sample: report.last_sample.map(|(used, total)| PressureSample { used, total }),
            last_action: report.last_action.map(|(wanted, freed)| PressureAction { wanted, freed }),
            last_error: report.last_error,
        }
    }
}

/// `GET /api/cache`: counters, tiers and their health.
pub(crate) async fn cache(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<Value>, ApiError> {
    app.keys.check_sees_sums(owner)?;
    let cache = app.models.node().cache();
    Ok(Json(json!(CacheOut {
        counters: cache.counters.into_iter().map(|counter| (counter.name, counter.value)).collect(),
        tiers: cache.tiers.into_iter().map(CacheTier::from).collect(),
        rows: cache.rows,
        pinned_rows: cache.pinned_rows,
        write_queue: cache.write_queue,
        index_bytes: cache.index_bytes,
        pressure: cache.pressure.into(),
        shared: cache.shared,
        peers: cache.peers,
    })))
}

/// `POST /tokenize`.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "TokenizeRequest")]
pub(crate) struct TokenizeBody {
    model: Option<String>,
    content: String,
    /// Add what the model wants at the ends of a text.
    add_special: Option<bool>,
    /// Recognise the text of special tokens.
    parse_special: Option<bool>,
    /// Also send the text of each token.
    with_pieces: Option<bool>,
}

/// The answer of `POST /tokenize`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Tokenized {
    tokens: Tokens,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Tokens {
    Plain(Vec<u32>),
    WithPieces(Vec<TokenPiece>),
}

#[derive(Serialize, JsonSchema)]
struct TokenPiece {
    id: u32,
    piece: Piece,
}

/// A part of a character has no text of its own.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// The tokens of a text.
pub(crate) async fn tokenize(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<TokenizeBody>,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    let model = app.models.resolve_or_only(body.model.as_deref()).await?;
    let warnings = warnings(unknown, &model);
    let mode = TokenizeMode {
        add_special: body.add_special.unwrap_or(false),
        parse_special: body.parse_special.unwrap_or(false),
    };
    let tokens = model.tokenize(body.content, mode).await.map_err(|error| ApiError::from(error.in_field("content")))?;
    let tokens = if body.with_pieces.unwrap_or(false) {
        let pieces = model.token_bytes(tokens.clone()).await?;
        let piece = |bytes: Vec<u8>| {
            String::from_utf8(bytes).map_or_else(|error| Piece::Bytes(error.into_bytes()), Piece::Text)
        };
        let pieces = tokens.into_iter().zip(pieces).map(|(id, bytes)| TokenPiece { id, piece: piece(bytes) });
        Tokens::WithPieces(pieces.collect())
    } else {
        Tokens::Plain(tokens)
    };
    Ok(Json(WithWarnings::new(&app, json!(Tokenized { tokens }), warnings)))
}

/// The warnings of endpoints that llama.cpp's server has too, and that its clients use.
fn warnings(unknown: Vec<UnknownField>, model: &ServedModel) -> Warnings {
    let mut warnings = Warnings::about(unknown, &[]);
    warn_of_model(&mut warnings, model);
    warnings
}

/// `POST /detokenize`.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "DetokenizeRequest")]
pub(crate) struct DetokenizeBody {
    model: Option<String>,
    tokens: TokenList,
    /// Write the text of special tokens.
    special: Option<bool>,
}

/// The answer of `POST /detokenize`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Detokenized {
    content: String,
}

/// The text of some tokens.
pub(crate) async fn detokenize(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<DetokenizeBody>,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    let model = app.models.resolve_or_only(body.model.as_deref()).await?;
    let warnings = warnings(unknown, &model);
    let tokens = body.tokens.known("tokens", model.limits().vocab)?;
    let special = if body.special.unwrap_or(true) { SpecialText::Render } else { SpecialText::Hide };
    let content = model.detokenize(tokens, special).await?;
    Ok(Json(WithWarnings::new(&app, json!(Detokenized { content }), warnings)))
}

/// The answer of `POST /apply-template`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TemplateApplied {
    prompt: String,
    tokens: Vec<u32>,
    /// The tokens at which messages end.
    boundaries: Vec<usize>,
}

/// `POST /apply-template`: a chat request as the model would read it.
pub(crate) async fn apply_template(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Checked { body, unknown }: Checked<ChatRequestBody>,
) -> Result<Json<WithWarnings<Value>>, ApiError> {
    let model = app.models.resolve_or_only(body.model.as_deref()).await?.asked_by(app.keys.tenant(owner));
    let asked = chat_turn(&body, model.defaults().generation())?;
    let mut warnings = Warnings::about(unknown, &ignored::CHAT);
    ignored::warn_of_chat(&mut warnings, &body);
    warn_of_model(&mut warnings, &model);
    warn_of_variables(&mut warnings, &model, &asked, "reasoning_effort").await;
    let Rendered { text, tokens, boundaries, .. } = model.rendered(asked).await?;
    let answer = TemplateApplied { prompt: text, tokens, boundaries };
    Ok(Json(WithWarnings::new(&app, json!(answer), warnings)))
}
