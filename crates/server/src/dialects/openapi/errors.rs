//! The errors of the document: which statuses an operation has, and their shape.
//!
//! Asked by `operation.rs` and `openapi.rs`; `query.rs` asks which paths refuse parameters. The shapes are those of
//! `error.rs`, which has the status of each error in each family.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use crate::error::Family;

/// Whether a parameter that a path does not have is an error: on Poncho's own paths and where the library changes.
pub(crate) fn refuses_parameters(path: &str) -> bool {
    let is_own = path.starts_with("/api/") && Family::of_path(path) == Family::OpenAi;
    is_own || ["/api/copy", "/api/delete", "/api/create"].contains(&path)
}

/// The errors of an operation.
pub(super) fn of(path: &str, statuses: &[u16]) -> Map<String, Value> {
    let family = Family::of_path(path);
    let refused = refuses_parameters(path).then_some(StatusCode::BAD_REQUEST);
    let listed = statuses.iter().filter_map(|status| StatusCode::from_u16(*status).ok());
    // Under a name that is not the server's, nothing is answered.
    let all = listed.chain(refused).chain([StatusCode::FORBIDDEN]);
    let written = all.map(|status| {
        let status = family.status(status);
        let reference = format!("#/components/schemas/{}", schema_name(family));
        let content = json!({"application/json": {"schema": {"$ref": reference}}});
        let description = status.canonical_reason().unwrap_or("Overloaded");
        (status.as_u16().to_string(), json!({"description": description, "content": content}))
    });
    written.collect()
}

const fn schema_name(family: Family) -> &'static str {
    match family {
        Family::OpenAi => "OpenAiError",
        Family::Anthropic => "AnthropicError",
        Family::Ollama => "OllamaError",
    }
}

/// The schemas of all errors.
pub(super) fn schemas() -> Map<String, Value> {
    let text = json!({"type": "string"});
    let maybe = json!({"type": ["string", "null"]});
    let object = |properties: Value| {
        let required: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
        json!({"type": "object", "required": required, "properties": properties})
    };
    Map::from_iter([
        (
            schema_name(Family::OpenAi).to_owned(),
            object(json!({"error": object(json!({"message": text, "type": text, "param": maybe, "code": maybe}))})),
        ),
        (
            schema_name(Family::Anthropic).to_owned(),
            object(json!({
                "type": {"const": "error"}, "error": object(json!({"type": text, "message": text})), "request_id": text,
            })),
        ),
        (schema_name(Family::Ollama).to_owned(), object(json!({"error": text}))),
    ])
}
