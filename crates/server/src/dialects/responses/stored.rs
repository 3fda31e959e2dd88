//! Responses that ended: read, listed, deleted; and the cancelling that only background responses know.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::owner::Owner;
use crate::responses::item::Item;
use crate::responses::store::StoredResponse;

/// Items on a page, as the API has it, unless told otherwise.
const DEFAULT_PAGE: usize = 20;
/// The same: its most.
const MAX_PAGE: usize = 100;

fn find(app: &SharedApp, owner: Owner, id: &str) -> Result<Arc<StoredResponse>, ApiError> {
    app.responses.get(owner, id).ok_or_else(|| ApiError::NoResponse { id: id.to_owned() })
}

/// `GET /v1/responses/{id}`.
pub(crate) async fn get(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let stored = find(&app, owner, &id)?;
    if !matches!(parameter(query.as_deref(), "stream"), None | Some("" | "false")) {
        return Err(ApiError::field("stream", "only a response in the background can be streamed later; leave it out"));
    }
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], stored.json.clone()).into_response())
}

/// The answer of `DELETE /v1/responses/{id}`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeletedResponse {
    id: String,
    #[schemars(extend("enum" = ["response"]))]
    object: &'static str,
    #[schemars(extend("const" = true))]
    deleted: bool,
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if !app.responses.remove(owner, &id) {
        return Err(ApiError::NoResponse { id });
    }
    Ok(Json(json!(DeletedResponse { id, object: "response", deleted: true })))
}

/// `POST /v1/responses/{id}/cancel`.
pub(crate) async fn cancel(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    find(&app, owner, &id)?;
    let reason = "the response was not made in the background and has ended; close the connection to stop one";
    Err(ApiError::field("id", reason))
}

/// The answer of `GET /v1/responses/{id}/input_items`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ItemList<'a> {
    #[schemars(extend("enum" = ["list"]))]
    object: &'static str,
    data: Vec<&'a Item>,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) async fn input_items(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let stored = find(&app, owner, &id)?;
    let page = Page::read(query.as_deref())?;
    let items: Vec<&Item> = page.order(stored.input.iter().map(|item| &**item));
    let start = match page.after {
        None => 0,
        Some(after) => {
            let found = items.iter().position(|item| item.id() == after);
            found.ok_or_else(|| ApiError::field("after", format!("there is no item {after:?} in this response")))? + 1
        }
    };
    let shown: Vec<&Item> = items.iter().skip(start).take(page.limit).copied().collect();
    Ok(Json(json!(ItemList {
        object: "list",
        first_id: shown.first().map(|item| item.id()),
        last_id: shown.last().map(|item| item.id()),
        has_more: start + shown.len() < items.len(),
        data: shown,
    })))
}

/// Which part of a list is wanted.
#[derive(Debug, PartialEq, Eq)]
struct Page<'q> {
    newest_first: bool,
    limit: usize,
    after: Option<&'q str>,
}

impl<'q> Page<'q> {
    fn read(query: Option<&'q str>) -> Result<Self, ApiError> {
        let newest_first = match parameter(query, "order") {
            None | Some("desc") => true,
            Some("asc") => false,
            Some(other) => return Err(ApiError::field("order", format!("it is {other:?} and must be asc or desc"))),
        };
        let limit = match parameter(query, "limit") {
            None => DEFAULT_PAGE,
            Some(text) => {
                let limit = text.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
                limit.ok_or_else(|| {
                    ApiError::field("limit", format!("it is {text:?} and must be from 1 to {MAX_PAGE}"))
                })?
            }
        };
        Ok(Self { newest_first, limit, after: parameter(query, "after") })
    }

    fn order<'i>(&self, items: impl DoubleEndedIterator<Item = &'i Item>) -> Vec<&'i Item> {
        if self.newest_first { items.rev().collect() } else { items.collect() }
    }
}

/// A parameter of a query. Ids, numbers and words are written without escapes; anything else is refused by its reader.
fn parameter<'q>(query: Option<&'q str>, name: &str) -> Option<&'q str> {
    let pairs = query?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_and_wrong_ones_named() {
        let page = Page::read(Some("include%5B%5D=x&order=asc&limit=7&after=msg_1&limit=8")).unwrap();
        assert_eq!(page, Page { newest_first: false, limit: 8, after: Some("msg_1") });
        assert_eq!(Page::read(None).unwrap(), Page { newest_first: true, limit: 20, after: None });
        for (query, field) in
            [("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order")]
        {
            let said = Page::read(Some(query)).unwrap_err().to_string();
            assert!(said.starts_with(field), "{said}");
        }
    }
}
