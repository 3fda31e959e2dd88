//! The operations of Poncho's own API that look at the cache or change it.
//!
//! Read by `openapi.rs`. Each names the types that its handler reads and writes.

use serde_json::json;

use super::operation::{MODEL, Operation, delete, get, post, put};
use crate::dialects::poncho::cache::{EmptyBody, EvictBody, Freed, Removed, Rows};
use crate::dialects::poncho::endpoints::CacheOut;
use crate::dialects::poncho::explain::{Explanation, PromptBody};
use crate::dialects::poncho::rows::{Evictions, Pinned, RowText, Unpinned, VerifiedRow};
use crate::dialects::shared::WithWarnings;

/// Errors of requests that free something.
const FREE: &[u16] = &[400, 401, 408, 413, 415, 500, 503];

const KEY: &str = "The key of the row.";

pub(super) fn operations() -> Vec<Operation> {
    let mut all = whole();
    all.extend(rows());
    all
}

fn whole() -> Vec<Operation> {
    let dialect = json!({"type": "string", "enum": ["openai", "anthropic", "responses", "ollama"]});
    vec![
        get("/api/cache", "cache", "Counters and tiers of the cache.").answers::<CacheOut>().fails(&[401]),
        post(
            "/api/cache/explain",
            "cacheExplain",
            "What differs between a prompt and the most similar cached one, and what to do about it.",
        )
        .in_query(
            "dialect",
            "The API that the body is written for; without it, the fields of the body decide.",
            dialect,
        )
        .takes::<PromptBody>()
        .example("prompt", json!({"model": "stub", "prompt": "Hi"}))
        .example("chat", json!({"model": "stub", "messages": [{"role": "user", "content": "Hi"}]}))
        .answers::<WithWarnings<Explanation>>()
        .fails(MODEL),
        post("/api/cache/evict", "cacheEvict", "Free bytes, oldest rows first.")
            .takes::<EvictBody>()
            .example("one", json!({"bytes": 1}))
            .answers::<Freed>()
            .fails(FREE),
        post("/api/cache/clear", "cacheClear", "Drop every row that is not in use.")
            .takes::<EmptyBody>()
            .example("one", json!({}))
            .answers::<Freed>()
            .fails(FREE),
        post("/api/cache/gc", "cacheGc", "Remove damaged files that were moved aside; usable rows stay.")
            .takes::<EmptyBody>()
            .example("one", json!({}))
            .answers::<Freed>()
            .fails(FREE),
        get(
            "/api/cache/evictions",
            "cacheEvictions",
            "Rows that left their tiers in the last 30 days, by hour, tier and cause. With several keys, for an admin \
             only.",
        )
        .answers::<Evictions>()
        .fails(&[401, 403, 500]),
    ]
}

fn rows() -> Vec<Operation> {
    vec![
        get("/api/cache/rows", "cacheRows", "The rows of the cache.")
            .in_query("offset", "Rows to leave out.", json!({"type": "integer", "minimum": 0}))
            .in_query("limit", "Rows of a page.", json!({"type": "integer", "minimum": 1, "maximum": 1000}))
            .answers::<Rows>()
            .fails(&[400, 401, 500]),
        delete(
            "/api/cache/rows/{id}",
            "cacheRemoveRow",
            "Drop a row that is not in use, that nobody pinned and that no other row builds on.",
        )
        .text_in_path("id", KEY)
        .answers::<Removed>()
        .fails(&[400, 401, 500, 503]),
        put(
            "/api/cache/rows/{id}/pin",
            "cachePinRow",
            "Keep a row, and the rows that it builds on, while others are evicted. Pins may take half of a tier.",
        )
        .text_in_path("id", KEY)
        .answers::<Pinned>()
        .fails(&[400, 401, 404, 409, 500, 503]),
        delete(
            "/api/cache/rows/{id}/pin",
            "cacheUnpinRow",
            "Let a row be evicted again. A key among several removes its own pin.",
        )
        .text_in_path("id", KEY)
        .answers::<Unpinned>()
        .fails(&[400, 401, 500, 503]),
        post(
            "/api/cache/rows/{id}/verify",
            "cacheVerifyRow",
            "Compare the stored copies of a row with their checksums. A damaged copy leaves the cache.",
        )
        .text_in_path("id", KEY)
        .takes::<EmptyBody>()
        .example("all", json!({}))
        .answers::<VerifiedRow>()
        .fails(&[400, 401, 404, 408, 413, 415, 500, 503]),
        get(
            "/api/cache/rows/{id}/text",
            "cacheRowText",
            "The tokens of a row and their text, for the key that sent them. The text is null if no loaded model can \
             read them.",
        )
        .text_in_path("id", KEY)
        .answers::<RowText>()
        .fails(&[400, 401, 404, 500]),
    ]
}
