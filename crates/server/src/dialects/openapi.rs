//! `GET /openapi.json`: what every path takes and answers, as an OpenAPI 3.1 document.
//!
//! The tables beside this file list the operations, one for each family; an operation names the types of its bodies, and
//! their schemas come from these types. A test holds the document against the routes. Asked for without a key, so it must
//! tell nothing of this server but its version.

mod anthropic;
mod cache;
mod errors;
mod llama_server;
mod ollama;
mod openai;
mod operation;
mod poncho;
mod responses;
mod schemas;

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

pub(crate) use self::errors::refuses_parameters;
use self::operation::Operation;
use self::schemas::Schemas;
use crate::http::body::Json;

/// Paths that clients of a family may try and that say so instead of "not found".
pub(crate) const NOT_BUILT: [&str; 1] = ["/api/push"];

pub(crate) static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

/// The document.
pub(crate) async fn get() -> Json<&'static Value> {
    Json(&DOCUMENT)
}

/// All of them.
fn operations() -> Vec<Operation> {
    let tables = [
        openai::operations(),
        responses::operations(),
        anthropic::operations(),
        ollama::operations(),
        llama_server::operations(),
        poncho::operations(),
        cache::operations(),
    ];
    tables.into_iter().flatten().collect()
}

fn document() -> Value {
    let (mut paths, mut schemas) = (Map::new(), Schemas::new());
    for operation in operations() {
        operation.write(&mut paths, &mut schemas);
    }
    let mut schemas = schemas.named();
    schemas.extend(errors::schemas());
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
    fn every_reference_leads_somewhere() {
        let text = DOCUMENT.to_string();
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
