//! The cache over HTTP: its rows, and giving bytes back.
//!
//! Handlers of `/api/cache/*`; `explain.rs` has the one that explains a miss, `rows.rs` those of single rows. Errors have
//! OpenAI's shape. Whatever frees something takes a JSON body, so that a page in a browser cannot ask for it unnoticed. The only prompt text that leaves here is the first words of rows, for the owner
//! that sent them.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::Uri;
use poncho_api::{Key, RowPage, RowReport, SpecialText, Tier, to_hex};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::dialects::query;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::owner::Owner;

/// Rows of a page if nobody says.
const PAGE: usize = 100;
/// The most rows of a page.
const MOST_ROWS: usize = 1000;

/// `GET /api/cache/rows?offset=0&limit=100`: the rows by key. With several API keys each sees its own rows only.
pub(crate) async fn rows(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let offset = number(&uri, "offset")?.unwrap_or(0);
    let limit = number(&uri, "limit")?.unwrap_or(PAGE);
    if !(1..=MOST_ROWS).contains(&limit) {
        return Err(ApiError::field("limit", format!("it is {limit} and must be from 1 to {MOST_ROWS}")));
    }
    let own = app.keys.narrowed(owner);
    let RowPage { total, rows } = app.models.node().cache_rows(own, offset, limit).await;
    let mut shown = Vec::with_capacity(rows.len());
    for one in &rows {
        let text = if app.keys.sees_rows_text(owner) { text(&app, one).await } else { None };
        shown.push(row(one, own.is_some(), text.as_deref()));
    }
    let rows = shown;
    let next = offset.saturating_add(rows.len());
    let next = Some(next).filter(|next| *next < total && !rows.is_empty());
    Ok(Json(json!({"total": total, "offset": offset, "rows": rows, "next_offset": next})))
}

/// A row; a narrowed view leaves out what others' use of it would change.
fn row(row: &RowReport, is_narrowed: bool, text: Option<&str>) -> Value {
    let unless_narrowed = |number: u64| (!is_narrowed).then_some(number);
    json!({
        "key": row.key.to_string(),
        "parent": row.parent.map(|key| key.to_string()),
        "fingerprint": to_hex(&row.fingerprint),
        "tokens": row.tokens,
        "start": row.start,
        "children": row.children,
        "tiers": row.tiers.iter().map(|tier| tier.as_str()).collect::<Vec<_>>(),
        "pending": row.pending,
        "bytes": row.bytes,
        "hits": unless_narrowed(row.hits.into()),
        "created": row.created,
        "last_used": unless_narrowed(row.last_used),
        "reason": row.reason.as_str(),
        "pinned": row.pinned,
        "text": text,
    })
}

/// The first words of a row that builds on no other, if a model that can read its tokens is loaded.
async fn text(app: &SharedApp, row: &RowReport) -> Option<String> {
    if row.first.is_empty() {
        return None;
    }
    let models = app.models.node().models();
    let model = models.iter().find(|model| model.report().fingerprint == row.fingerprint)?;
    let text = model.detokenize(row.first.clone(), SpecialText::Hide).await.ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The key of a row in a path.
pub(super) fn row_key(id: &str) -> Result<Key, ApiError> {
    Key::from_hex(id).ok_or_else(|| ApiError::field("id", "it must be the key of a row, in hexadecimal digits"))
}

/// `DELETE /api/cache/rows/{id}`: drops a row that is not in use, that nobody pinned and that no other row builds on. With several API keys
/// each drops only rows that are its own alone.
pub(crate) async fn remove(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let key = row_key(&id)?;
    let removed = app.models.node().remove_row(app.keys.narrowed(owner), key).await;
    Ok(Json(json!({"key": id, "removed": removed})))
}

/// A number of the query.
fn number(uri: &Uri, name: &str) -> Result<Option<usize>, ApiError> {
    query::value(uri, name)
        .map(|value| value.parse().map_err(|_| ApiError::field(name, "it must be a whole number")))
        .transpose()
}

/// `POST /api/cache/evict`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvictBody {
    /// How much to free.
    bytes: u64,
    /// Where; everywhere if it is left out.
    tiers: Option<Vec<String>>,
}

/// Frees at least that many bytes, oldest rows first. With several API keys each frees only what is its own alone.
pub(crate) async fn evict(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Json(body): Json<EvictBody>,
) -> Result<Json<Value>, ApiError> {
    let known = |(at, name): (usize, &String)| {
        let known = "it must be ram, ram_file or disk";
        Tier::from_name(name).ok_or_else(|| ApiError::field(format!("tiers[{at}]"), known))
    };
    let tiers: Vec<Tier> = match &body.tiers {
        Some(names) => names.iter().enumerate().map(known).collect::<Result<_, _>>()?,
        None => Tier::ALL.to_vec(),
    };
    let freed = app.models.node().evict_bytes(app.keys.narrowed(owner), body.bytes, &tiers).await;
    Ok(Json(json!({"freed_bytes": freed})))
}

/// `POST /api/cache/clear` and `/api/cache/gc`: an empty object.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyBody {}

/// Drops every row that is not in use. With several API keys each drops only the rows that belong to it alone.
pub(crate) async fn clear(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Json(EmptyBody {}): Json<EmptyBody>,
) -> Result<Json<Value>, ApiError> {
    let freed = match app.keys.narrowed(owner) {
        Some(own) => app.models.node().evict_bytes(Some(own), u64::MAX, &Tier::ALL).await,
        None => app.models.node().clear_cache().await,
    };
    Ok(Json(json!({"freed_bytes": freed})))
}

/// Removes files that can never be used again; usable rows stay. They belong to no key, so a key among several that is
/// not an admin's removes none.
pub(crate) async fn gc(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Json(EmptyBody {}): Json<EmptyBody>,
) -> Result<Json<Value>, ApiError> {
    let freed = match app.keys.narrowed(owner) {
        Some(_) => 0,
        None => app.models.node().collect_garbage().await,
    };
    Ok(Json(json!({"freed_bytes": freed})))
}
