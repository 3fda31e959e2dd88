//! Single rows of the cache over HTTP: pinned, unpinned, checked, read; and evictions over time.
//!
//! Handlers of `/api/cache/rows/{id}/*` and `/api/cache/evictions`. With several API keys each has its own rows only. The
//! text of a row goes to a key that sent all of it and to nobody else, an admin included. Errors have OpenAI's shape.

use axum::Extension;
use axum::extract::{Path, State};
use poncho_api::{CopyCheck, EvictionSum, Key, PinOutcome, RowTokens, SpecialText};
use serde_json::{Value, json};

use super::cache::{EmptyBody, row_key};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::owner::Owner;

fn no_row(key: Key) -> ApiError {
    ApiError::NoRow { key }
}

/// `PUT /api/cache/rows/{id}/pin`: keeps a row, and the rows that it builds on, while others are evicted.
pub(crate) async fn pin(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let key = row_key(&id)?;
    match app.models.node().pin_row(app.keys.narrowed(owner), key).await {
        PinOutcome::Pinned => Ok(Json(json!({"key": id, "pinned": true}))),
        PinOutcome::NoRow => Err(no_row(key)),
        PinOutcome::TooLarge { limit } => Err(ApiError::PinsTooLarge { limit }),
        PinOutcome::TooMany { limit } => Err(ApiError::TooManyPins { limit }),
    }
}

/// `DELETE /api/cache/rows/{id}/pin`: lets a row go again. A key among several removes its own pin.
pub(crate) async fn unpin(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let key = row_key(&id)?;
    let was_pinned = app.models.node().unpin_row(app.keys.narrowed(owner), key).await;
    Ok(Json(json!({"key": id, "pinned": false, "was_pinned": was_pinned})))
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
    let is_whole = copies.iter().all(|copy| copy.problem.is_none());
    let shown =
        |copy: &CopyCheck| json!({"tier": copy.tier, "checked_bytes": copy.checked_bytes, "problem": copy.problem});
    Ok(Json(json!({"key": id, "whole": is_whole, "copies": copies.iter().map(shown).collect::<Vec<Value>>()})))
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
    Ok(Json(json!({"key": id, "model": model, "tokens": tokens, "text": text})))
}

/// `GET /api/cache/evictions`: rows that left their tiers in the last 30 days, by hour, tier and cause. They cover all
/// keys, so with several keys only an admin reads them.
pub(crate) async fn evictions(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<Value>, ApiError> {
    app.keys.check_sees_sums(owner)?;
    let sums = app.models.node().evictions().await;
    let shown = |sum: &EvictionSum| json!({"hour": sum.hour, "tier": sum.tier, "cause": sum.cause, "rows": sum.rows, "bytes": sum.bytes});
    Ok(Json(json!({"evictions": sums.iter().map(shown).collect::<Vec<Value>>()})))
}
