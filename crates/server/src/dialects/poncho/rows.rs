//! Single rows of the cache over HTTP: pinned, unpinned, checked, read; and evictions over time.
//!
//! Handlers of `/api/cache/rows/{id}/*` and `/api/cache/evictions`. With several API keys each has its own rows only. The
//! text of a row goes to a key that sent all of it and to nobody else, an admin included. Errors have OpenAI's shape.

use axum::Extension;
use axum::extract::{Path, State};
use poncho_api::{CopyCheck, EvictionSum, Key, PinOutcome, RowTokens, SpecialText};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::cache::{EmptyBody, row_key};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::owner::Owner;

fn no_row(key: Key) -> ApiError {
    ApiError::NoRow { key }
}

/// The answer of `PUT /api/cache/rows/{id}/pin`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Pinned {
    key: String,
    pinned: bool,
}

/// `PUT /api/cache/rows/{id}/pin`: keeps a row, and the rows that it builds on, while others are evicted.
pub(crate) async fn pin(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let key = row_key(&id)?;
    match app.models.node().pin_row(app.keys.narrowed(owner), key).await {
        PinOutcome::Pinned => Ok(Json(json!(Pinned { key: id, pinned: true }))),
        PinOutcome::NoRow => Err(no_row(key)),
        PinOutcome::TooLarge { limit } => Err(ApiError::PinsTooLarge { limit }),
        PinOutcome::TooMany { limit } => Err(ApiError::TooManyPins { limit }),
    }
}

/// The answer of `DELETE /api/cache/rows/{id}/pin`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Unpinned {
    key: String,
    pinned: bool,
    was_pinned: bool,
}

/// `DELETE /api/cache/rows/{id}/pin`: lets a row go again. A key among several removes its own pin.
pub(crate) async fn unpin(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let key = row_key(&id)?;
    let was_pinned = app.models.node().unpin_row(app.keys.narrowed(owner), key).await;
    Ok(Json(json!(Unpinned { key: id, pinned: false, was_pinned })))
}

/// The answer of `POST /api/cache/rows/{id}/verify`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct VerifiedRow {
    key: String,
    whole: bool,
    copies: Vec<CopyCheck>,
}

/// `POST /api/cache/rows/{id}/verify`: compares the stored copies of a row with their checksums.
pub(crate) async fn verify(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    Json(EmptyBody {}): Json<EmptyBody>,
) -> Result<Json<Value>, ApiError> {
    let key = row_key(&id)?;
    let copies = app.models.node().verify_row(app.keys.narrowed(owner), key).await.ok_or_else(|| no_row(key))?;
    let whole = copies.iter().all(|copy| copy.problem.is_none());
    Ok(Json(json!(VerifiedRow { key: id, whole, copies })))
}

/// The answer of `GET /api/cache/rows/{id}/text`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RowText {
    key: String,
    model: Option<String>,
    tokens: Vec<u32>,
    text: Option<String>,
}

/// `GET /api/cache/rows/{id}/text`: all tokens of a row and their text, for the key that sent them. The text is null if no
/// loaded model can read the tokens.
pub(crate) async fn text(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let key = row_key(&id)?;
    if !app.keys.sees_rows_text(owner) {
        // An admin sees rows of others without their text.
        return Err(no_row(key));
    }
    let node = app.models.node();
    let RowTokens { fingerprint, tokens } =
        node.row_tokens(app.keys.narrowed(owner), key).await.ok_or_else(|| no_row(key))?;
    let models = node.models();
    let model = models.iter().find(|model| model.report().fingerprint == fingerprint);
    let text = match model {
        Some(model) => model.detokenize(tokens.clone(), SpecialText::Render).await.ok(),
        None => None,
    };
    let model = model.map(|model| model.report().id.clone());
    Ok(Json(json!(RowText { key: id, model, tokens, text })))
}

/// The answer of `GET /api/cache/evictions`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Evictions {
    evictions: Vec<EvictionSum>,
}

/// `GET /api/cache/evictions`: rows that left their tiers in the last 30 days, by hour, tier and cause. They cover all
/// keys, so with several keys only an admin reads them.
pub(crate) async fn evictions(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<Value>, ApiError> {
    app.keys.check_sees_sums(owner)?;
    Ok(Json(json!(Evictions { evictions: app.models.node().evictions().await })))
}
