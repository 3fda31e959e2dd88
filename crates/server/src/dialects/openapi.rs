//! `GET /openapi.json`: what every path takes and answers, as an OpenAPI 3.1 document.
//!
//! The pieces stand beside this file, one for each family: paths and the schemas they use. A piece lists the statuses of an
//! operation's errors in `x-errors`; here they get the shape of their family, from the same table that shapes the errors
//! themselves. A test holds the document against the routes. Asked for without a key, so it must tell nothing of this
//! server but its version.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

use crate::error::Family;
use crate::http::body::Json;

/// Paths that clients of a family may try and that say so instead of "not found".
pub(crate) const NOT_BUILT: [&str; 1] = ["/api/push"];

/// The pieces, in the order in which they are shown.
const PIECES: [&str; 5] = [
    include_str!("openapi/openai.json"),
    include_str!("openapi/responses.json"),
    include_str!("openapi/anthropic.json"),
    include_str!("openapi/ollama.json"),
    include_str!("openapi/poncho.json"),
];

pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

/// The document.
pub(crate) async fn get() -> Json<&'static Value> {
    Json(&DOCUMENT)
}

fn document() -> Value {
    let (mut paths, mut schemas) = (Map::new(), error_schemas());
    for piece in PIECES {
        let Ok(Value::Object(mut piece)) = serde_json::from_str(piece) else { continue };
        let mut take = |name: &str| match piece.remove(name) {
            Some(Value::Object(entries)) => entries,
            _ => Map::new(),
        };
        paths.extend(take("paths").into_iter().map(|(path, operations)| {
            let operations = with_errors(&path, operations);
            (path, operations)
        }));
        schemas.extend(take("schemas"));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Poncho",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Models of llama.cpp behind the APIs of OpenAI, Anthropic and Ollama, and Poncho's own.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

/// Whether a parameter that a path does not have is an error: on Poncho's own paths and where the library changes.
pub(crate) fn refuses_parameters(path: &str) -> bool {
    let is_own = path.starts_with("/api/") && Family::of_path(path) == Family::OpenAi;
    is_own || ["/api/copy", "/api/delete", "/api/create"].contains(&path)
}

/// The operations of a path with their errors written out.
fn with_errors(path: &str, mut operations: Value) -> Value {
    let family = Family::of_path(path);
    for operation in operations.as_object_mut().into_iter().flat_map(Map::values_mut) {
        let Some(operation) = operation.as_object_mut() else { continue };
        let errors = operation.remove("x-errors").unwrap_or_default();
        let mut statuses: Vec<u16> =
            errors.as_array().into_iter().flatten().filter_map(|status| status.as_u64()?.try_into().ok()).collect();
        if refuses_parameters(path) {
            statuses.push(StatusCode::BAD_REQUEST.as_u16());
        }
        // Under a name that is not the server's, nothing is answered.
        statuses.push(StatusCode::FORBIDDEN.as_u16());
        // Who must send a key may also send none where the server has none.
        if statuses.contains(&StatusCode::UNAUTHORIZED.as_u16()) {
            operation.insert("security".to_owned(), json!([{"bearer": []}, {"key": []}, {}]));
        }
        let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { continue };
        for status in statuses.into_iter().filter_map(|status| StatusCode::from_u16(status).ok()) {
            let status = family.status(status);
            let reference = format!("#/components/schemas/{}", error_schema(family));
            let content = json!({"application/json": {"schema": {"$ref": reference}}});
            let description = status.canonical_reason().unwrap_or("Overloaded");
            responses.insert(status.as_u16().to_string(), json!({"description": description, "content": content}));
        }
    }
    operations
}

const fn error_schema(family: Family) -> &'static str {
    match family {
        Family::OpenAi => "OpenAiError",
        Family::Anthropic => "AnthropicError",
        Family::Ollama => "OllamaError",
    }
}

fn error_schemas() -> Map<String, Value> {
    let text = json!({"type": "string"});
    let maybe = json!({"type": ["string", "null"]});
    let object = |properties: Value| {
        let required: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
        json!({"type": "object", "required": required, "properties": properties})
    };
    Map::from_iter([
        (
            error_schema(Family::OpenAi).to_owned(),
            object(json!({"error": object(json!({"message": text, "type": text, "param": maybe, "code": maybe}))})),
        ),
        (
            error_schema(Family::Anthropic).to_owned(),
            object(json!({
                "type": {"const": "error"}, "error": object(json!({"type": text, "message": text})), "request_id": text,
            })),
        ),
        (error_schema(Family::Ollama).to_owned(), object(json!({"error": text}))),
    ])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What the table of routes says, read as text: method and path of each.
    fn routes() -> BTreeSet<(String, String)> {
        let source = include_str!("../router.rs");
        let table = source.split("#[cfg(test)]").next().unwrap();
        let mut found = BTreeSet::new();
        for call in table.split(".route(").skip(1) {
            let Some(path) = call.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next()) else {
                continue;
            };
            let handlers = call.split_once(',').unwrap().1;
            // Up to the end of this call: its brackets are balanced.
            let mut depth = 0_i32;
            let end = handlers.find(|c: char| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                depth < 0
            });
            let handlers = &handlers[..end.unwrap_or(handlers.len())];
            for method in ["get", "head", "post", "put", "patch", "delete"] {
                let call = format!("{method}(");
                let is_word = |at: usize| !handlers[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                if handlers.match_indices(&call).any(|(at, _)| is_word(at)) {
                    found.insert((method.to_owned(), path.replace("{*", "{")));
                }
            }
        }
        found
    }

    fn documented() -> BTreeSet<(String, String)> {
        let paths = DOCUMENT["paths"].as_object().unwrap();
        let methods = |(path, operations): (&String, &Value)| {
            let methods: Vec<String> = operations.as_object().unwrap().keys().cloned().collect();
            methods.into_iter().map(|method| (method, path.clone())).collect::<Vec<_>>()
        };
        paths.iter().flat_map(methods).collect()
    }

    #[test]
    fn every_route_has_an_entry_and_every_entry_a_route() {
        let routes = routes();
        assert!(routes.len() > 30, "the table was not read: {routes:?}");
        let not_built: BTreeSet<&str> = NOT_BUILT.into_iter().collect();
        let built: BTreeSet<_> =
            documented().into_iter().filter(|(_, path)| !not_built.contains(path.as_str())).collect();
        assert_eq!(routes.difference(&built).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "without an entry");
        assert_eq!(built.difference(&routes).collect::<Vec<_>>(), Vec::<&(String, String)>::new(), "without a route");
        let paths: BTreeSet<String> = documented().into_iter().map(|(_, path)| path).collect();
        assert!(not_built.iter().all(|path| paths.contains(*path)), "unimplemented paths are documented too");
    }

    #[test]
    fn the_pieces_are_whole_and_every_reference_leads_somewhere() {
        for piece in PIECES {
            let piece: Value = serde_json::from_str(piece).unwrap();
            assert!(piece["paths"].is_object() && piece["schemas"].is_object());
        }
        let text = DOCUMENT.to_string();
        assert!(!text.contains("x-errors"));
        for reference in text.split("\"$ref\":\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(DOCUMENT.pointer(reference).is_some(), "{reference}");
        }
        let mut ids = BTreeSet::new();
        for (method, path) in documented() {
            let operation = &DOCUMENT["paths"][&path][&method];
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
            assert!(!operation["responses"].as_object().unwrap().is_empty(), "{method} {path}");
        }
    }

    #[test]
    fn errors_have_the_shape_and_the_status_of_their_family() {
        let schema = |path: &str, status: &str| {
            DOCUMENT["paths"][path]["post"]["responses"][status]["content"]["application/json"]["schema"]["$ref"]
                .clone()
        };
        assert_eq!(schema("/v1/chat/completions", "503"), "#/components/schemas/OpenAiError");
        assert_eq!(schema("/v1/messages", "529"), "#/components/schemas/AnthropicError");
        assert_eq!(schema("/v1/messages", "503"), Value::Null);
        assert_eq!(schema("/api/chat", "404"), "#/components/schemas/OllamaError");
        assert_eq!(DOCUMENT["paths"]["/health"]["get"]["security"], Value::Null, "needs no key");
    }
}
