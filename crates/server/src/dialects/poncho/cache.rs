//! The cache over HTTP: its rows, why a prompt misses, and giving bytes back.
//!
//! Handlers of `/api/cache/*`. Errors have OpenAI's shape. Whatever frees something takes a JSON body, so that a page
//! in a browser cannot ask for it unnoticed. No prompt text but the caller's own surroundings leaves here.

use axum::Extension;
use axum::extract::State;
use axum::http::Uri;
use poncho_api::{Around, Explained, ExplainedRow, Generate, Prompt, Request, RowPage, RowReport, Tier, to_hex};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::dialects::openai::convert::chat_turn;
use crate::dialects::openai::prompt::Prompts;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Json, JsonBytes, parse};
use crate::http::unknown_fields::short;
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
    known_parameters(&uri, &["offset", "limit"])?;
    let offset = number(&uri, "offset")?.unwrap_or(0);
    let limit = number(&uri, "limit")?.unwrap_or(PAGE);
    if !(1..=MOST_ROWS).contains(&limit) {
        return Err(ApiError::field("limit", format!("it is {limit} and must be from 1 to {MOST_ROWS}")));
    }
    let own = app.keys.narrowed(owner);
    let RowPage { total, rows } = app.models.node().cache_rows(own, offset, limit).await;
    let rows: Vec<Value> = rows.iter().map(|one| row(one, own.is_some())).collect();
    let next = offset.saturating_add(rows.len());
    let next = Some(next).filter(|next| *next < total && !rows.is_empty());
    Ok(Json(json!({"total": total, "offset": offset, "rows": rows, "next_offset": next})))
}

/// A row; a narrowed view leaves out what others' use of it would change.
fn row(row: &RowReport, is_narrowed: bool) -> Value {
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
    })
}

/// Refuses a query that has other parameters.
pub(crate) fn known_parameters(uri: &Uri, known: &[&str]) -> Result<(), ApiError> {
    let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    match pairs.find(|(name, _)| !known.contains(&&**name)) {
        Some((name, _)) => {
            Err(ApiError::field(short(&name), format!("it is not a parameter; use {}", known.join(", "))))
        }
        None => Ok(()),
    }
}

/// A number of the query.
fn number(uri: &Uri, name: &str) -> Result<Option<usize>, ApiError> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(found, _)| *found == name).map(|(_, value)| value).next();
    value.map(|value| value.parse().map_err(|_| ApiError::field(name, "it must be a whole number"))).transpose()
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

/// Distinguishes the two kinds of questions.
#[derive(Deserialize)]
struct Kind {
    model: Option<String>,
    messages: Option<serde::de::IgnoredAny>,
    prompt: Option<Prompts>,
}

/// `POST /api/cache/explain`: where a prompt, or the prompt of a chat request, leaves the best cached one; with
/// several API keys, each sees its own rows only.
pub(crate) async fn explain_miss(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    body: JsonBytes,
) -> Result<Json<Value>, ApiError> {
    let kind: Kind = parse(&body.0)?;
    let model = app.models.resolve_or_only(kind.model.as_deref()).await?;
    let asked = match (kind.messages, kind.prompt) {
        (Some(_), None) => chat_turn(&parse(&body.0)?, &Request::default())?,
        (None, Some(prompts)) => match prompts.one() {
            Some(input) => Generate::new(Prompt::Written(input), Request::default()),
            None => return Err(ApiError::field("prompt", "it must be a text or a list of tokens")),
        },
        (Some(_), Some(_)) => return Err(ApiError::field("prompt", "send a prompt or messages, not both")),
        (None, None) => return Err(ApiError::field("messages", "send the messages of a chat, or a prompt")),
    };
    let model = model.asked_by(app.keys.tenant(owner));
    Ok(Json(explained(model.id(), model.explained(asked).await?)))
}

fn explained(model: &str, found: Explained) -> Value {
    let (word, sentence) = found.cause.words();
    let around = |around: Around| json!({"before": around.before, "after": around.after});
    let row = |row: ExplainedRow| json!({"key": row.key, "tokens": row.tokens, "tier": row.tier});
    let offset = found.parting.is_some().then_some(found.agree);
    let (cached, asked) = found.parting.unzip();
    json!({
        "model": model,
        "tokens": found.tokens,
        "agree": found.agree,
        "usable": found.usable,
        "offset": offset,
        "cause": word,
        "reason": sentence,
        "row": found.row.map(row),
        "cached": cached.map(around),
        "asked": asked.map(around),
    })
}
