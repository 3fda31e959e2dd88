//! Poncho's own endpoints: health, metrics, the cache, tokens and templates.
//!
//! Errors have OpenAI's shape. Where a `model` can be left out, it means the only one that is loaded.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use poncho_api::{HygieneRule, PressureReport, Rendered, SpecialText, TierHealth, TierReport, TokenizeMode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::dialects::openai::convert::chat_turn;
use crate::dialects::openai::ignored;
use crate::dialects::openai::types::ChatRequestBody;
use crate::dialects::shared::{WithWarnings, warn_of_model};
use crate::dialects::template_variables::warn_of_variables;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::http::token_list::TokenList;
use crate::http::unknown_fields::UnknownField;
use crate::http::warnings::Warnings;
use crate::models::served::ServedModel;
use crate::owner::Owner;
use crate::telemetry::metrics::Surroundings;

/// `GET /health`: the process is up.
pub(crate) async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `GET /health/ready`: a request would be taken.
pub(crate) async fn ready(State(app): State<SharedApp>) -> Response {
    let status = if app.life.is_draining() {
        "shutting_down"
    } else if app.models.any_serves() {
        return Json(json!({"status": "ready"})).into_response();
    } else {
        "no_model"
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": status}))).into_response()
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

/// `GET /api/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/hygiene`: the rules, what they do, and which are on.
pub(crate) async fn hygiene(State(app): State<SharedApp>) -> Json<Value> {
    let on = app.models.node().hygiene();
    let rules = HygieneRule::ALL.map(|rule| {
        let (what, before, after) = rule.example();
        json!({"rule": rule.as_str(), "on": on.contains(&rule), "what": what, "before": before, "after": after})
    });
    Json(json!({"rules": rules}))
}

/// `GET /api/cache`: counters, tiers and their health.
pub(crate) async fn cache(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<Value>, ApiError> {
    app.keys.check_sees_sums(owner)?;
    let cache = app.models.node().cache();
    let counters: serde_json::Map<String, Value> =
        cache.counters.into_iter().map(|counter| (counter.name, counter.value.into())).collect();
    let tier = |tier: TierReport| {
        let TierHealth { off, slow } = tier.health.unwrap_or_default();
        let is_on = tier.quota > 0 && off.is_none();
        json!({"tier": tier.tier, "bytes": tier.bytes, "quota": tier.quota, "rows": tier.rows, "on": is_on, "off_because": off, "slow_because": slow})
    };
    let mut report = json!({
        "counters": counters,
        "tiers": cache.tiers.into_iter().map(tier).collect::<Vec<Value>>(),
        "rows": cache.rows,
        "pinned_rows": cache.pinned_rows,
        "write_queue": cache.write_queue,
        "index_bytes": cache.index_bytes,
        "pressure": pressure(&cache.pressure),
    });
    for (name, tier) in [("shared", cache.shared), ("peers", cache.peers)] {
        if let (Some(report), Some(tier)) = (report.as_object_mut(), tier) {
            report.insert(name.to_owned(), json!(tier));
        }
    }
    Ok(Json(report))
}

/// What the pressure watcher has seen and done.
fn pressure(report: &PressureReport) -> Value {
    json!({
        "on": report.on,
        "samples": report.samples,
        "evictions": report.evictions,
        "held_back": report.held_back,
        "last_sample": report.last_sample.map(|(used, total)| json!({"used": used, "total": total})),
        "last_action": report.last_action.map(|(wanted, freed)| json!({"wanted": wanted, "freed": freed})),
        "last_error": report.last_error,
    })
}

/// `POST /tokenize`.
#[derive(Deserialize)]
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
    if !body.with_pieces.unwrap_or(false) {
        return Ok(Json(WithWarnings::new(&app, json!({"tokens": tokens}), warnings)));
    }
    let pieces = model.token_bytes(tokens.clone()).await?;
    let piece = |(token, bytes): (u32, Vec<u8>)| match String::from_utf8(bytes) {
        Ok(text) => json!({"id": token, "piece": text}),
        // A part of a character has no text of its own.
        Err(error) => json!({"id": token, "piece": error.into_bytes()}),
    };
    let answer = json!({"tokens": tokens.into_iter().zip(pieces).map(piece).collect::<Vec<Value>>()});
    Ok(Json(WithWarnings::new(&app, answer, warnings)))
}

/// The warnings of endpoints that llama.cpp's server has too, and that its clients use.
fn warnings(unknown: Vec<UnknownField>, model: &ServedModel) -> Warnings {
    let mut warnings = Warnings::about(unknown, &[]);
    warn_of_model(&mut warnings, model);
    warnings
}

/// `POST /detokenize`.
#[derive(Deserialize)]
pub(crate) struct DetokenizeBody {
    model: Option<String>,
    tokens: TokenList,
    /// Write the text of special tokens.
    special: Option<bool>,
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
    Ok(Json(WithWarnings::new(&app, json!({"content": content}), warnings)))
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
    let answer = json!({"prompt": text, "tokens": tokens, "boundaries": boundaries});
    Ok(Json(WithWarnings::new(&app, answer, warnings)))
}
