//! The cache over HTTP: its rows, and giving bytes back.
//!
//! Handlers of `/api/cache/*`; `explain.rs` has the one that explains a miss, `rows.rs` those of single rows. Errors have
//! OpenAI's shape. Whatever frees something takes a JSON body, so that a page in a browser cannot ask for it unnoticed. The only prompt text that leaves here is the first words of rows, for the owner
//! that sent them.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::Uri;
use poncho_api::{Key, RowPage, RowReport, SaveReason, SpecialText, Tier, to_hex};
use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::dialects::shared::query_value;
use crate::error::ApiError;
use crate::forms::form;
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
        shown.push(Row::new(one, own.is_some(), text));
    }
    let rows = shown;
    let next = offset.saturating_add(rows.len());
    let next = Some(next).filter(|next| *next < total && !rows.is_empty());
    Ok(Json(json!(Rows { total, offset, rows, next_offset: next })))
}

/// The answer of `GET /api/cache/rows`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Rows {
    total: usize,
    offset: usize,
    rows: Vec<Row>,
    next_offset: Option<usize>,
}

/// A row of the cache as clients see it.
#[derive(Serialize, JsonSchema)]
struct Row {
    key: String,
    /// The row that it builds on.
    parent: Option<String>,
    /// Of the model with its adapters.
    fingerprint: String,
    tokens: u32,
    /// The first token that it stores itself.
    start: u32,
    /// How many rows build on it.
    children: usize,
    /// Tiers that hold it, fastest first.
    #[schemars(with = "Vec<TierWord>")]
    tiers: Vec<&'static str>,
    /// Whether a write of it is queued or running.
    pending: bool,
    /// Bytes it takes, all tiers together.
    bytes: u64,
    /// How often it was used; null for a key that sees its own rows only.
    hits: Option<u64>,
    /// Creation, unix seconds.
    created: u64,
    /// Last use, unix seconds; null for a key that sees its own rows only.
    last_used: Option<u64>,
    /// Why it was saved.
    #[schemars(extend("enum" = SaveReason::ALL.map(SaveReason::as_str)))]
    reason: &'static str,
    pinned: bool,
    /// Its first words, for the key that sent them.
    text: Option<String>,
}

form! {
    /// A tier of this machine.
    TierWord, json_schema!({"type": "string", "enum": Tier::ALL.map(Tier::as_str)})
}

impl Row {
    /// A narrowed view leaves out what others' use of it would change.
    fn new(row: &RowReport, is_narrowed: bool, text: Option<String>) -> Self {
        let unless_narrowed = |number: u64| (!is_narrowed).then_some(number);
        Self {
            key: row.key.to_string(),
            parent: row.parent.map(|key| key.to_string()),
            fingerprint: to_hex(&row.fingerprint),
            tokens: row.tokens,
            start: row.start,
            children: row.children,
            tiers: row.tiers.iter().map(|tier| tier.as_str()).collect(),
            pending: row.pending,
            bytes: row.bytes,
            hits: unless_narrowed(row.hits.into()),
            created: row.created,
            last_used: unless_narrowed(row.last_used),
            reason: row.reason.as_str(),
            pinned: row.pinned,
            text,
        }
    }
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

/// The answer of `DELETE /api/cache/rows/{id}`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Removed {
    key: String,
    removed: bool,
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
    Ok(Json(json!(Removed { key: id, removed })))
}

/// A number of the query.
fn number(uri: &Uri, name: &str) -> Result<Option<usize>, ApiError> {
    query_value(uri, name)
        .map(|value| value.parse().map_err(|_| ApiError::field(name, "it must be a whole number")))
        .transpose()
}

/// `POST /api/cache/evict`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EvictRequest")]
pub(crate) struct EvictBody {
    /// How much to free.
    bytes: u64,
    /// Where; everywhere if it is left out.
    #[schemars(with = "Option<Vec<TierWord>>")]
    tiers: Option<Vec<String>>,
}

/// The answer of whatever frees something.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Freed {
    freed_bytes: u64,
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
    Ok(Json(json!(Freed { freed_bytes: freed })))
}

/// `POST /api/cache/clear` and `/api/cache/gc`: an empty object.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
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
    Ok(Json(json!(Freed { freed_bytes: freed })))
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
    Ok(Json(json!(Freed { freed_bytes: freed })))
}
