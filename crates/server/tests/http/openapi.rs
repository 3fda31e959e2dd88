//! The document of the API over a socket: served without a key, and every entry of it leads to a handler.

use hyper::Method;
use poncho_server::ServerConfig;
use serde_json::Value;
use snapbox::{assert_data_eq, file};

use crate::support::{Server, Setup};

const PATH: &str = "/openapi.json";

/// A change of the interface shows in the difference of the file. `SNAPSHOTS=overwrite` in the environment of the test
/// rewrites it.
#[tokio::test]
async fn the_served_document_equals_its_snapshot() {
    let server = Server::plain().await;
    let document = serde_json::to_string_pretty(&server.get(PATH).await.json()).unwrap() + "\n";
    assert_data_eq!(document, file!["snapshots/openapi.json": Text].raw());
}

/// A path with something in its places.
fn filled(path: &str) -> String {
    path.replace("{id}", "x").replace("{digest}", "sha256:x")
}

#[tokio::test]
async fn the_document_needs_no_key_and_what_it_lists_does() {
    let config = ServerConfig { keys: vec!["secret".to_owned()], ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let answer = server.get(PATH).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let document = answer.json();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(!answer.text.contains("secret") && !answer.text.contains("127.0.0.1"));
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let answer = server.send(method.clone(), &filled(path), &[], Vec::new()).await;
            let is_listed = !operation["responses"]["401"].is_null();
            assert_eq!(answer.status == 401, is_listed, "{method} {path}: {}", answer.status);
        }
    }
}

/// Hardening 21: the documents said that only health probes need no key.
#[tokio::test]
async fn exactly_the_paths_that_the_document_names_answer_without_a_key() {
    let config = ServerConfig { keys: vec!["secret".to_owned()], ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    server.until_ready().await;
    let mut open = Vec::new();
    for (path, operations) in server.get(PATH).await.json()["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let answer = server.send(method.clone(), &filled(path), &[], Vec::new()).await;
            match answer.status {
                401 => {}
                200 => open.push(format!("{method} {path}")),
                status => panic!("{method} {path} answers {status}: {}", answer.text),
            }
        }
    }
    open.sort();
    let guide = include_str!("../../../../docs/browsers-and-limits.md");
    let (_, table) = guide.split_once("| Open without a key |").expect("the guide has a table of open paths");
    let (table, _) = table.split_once("\n\n").unwrap();
    let mut named: Vec<String> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next().map(str::to_owned)).collect();
    named.sort();
    assert_eq!(open, named, "routes on the left, docs/browsers-and-limits.md on the right");
    for path in ["/nowhere", "/v1", "/api"] {
        assert_eq!(server.get(path).await.status, 404, "{path}: says nothing of this server");
    }
}

#[tokio::test]
async fn every_entry_leads_to_a_handler_with_a_documented_answer() {
    let server = Server::plain().await;
    let document = server.get(PATH).await.json();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let headers = [("content-type", "application/json")];
            let body = if method == Method::POST { b"{}".to_vec() } else { Vec::new() };
            let answer = server.send(method.clone(), &filled(path), &headers, body).await;
            let code = serde_json::from_str::<Value>(&answer.text).unwrap_or_default()["error"]["code"].clone();
            assert!(code != "unknown_path" && code != "method_not_allowed", "{method} {path}: {}", answer.text);
            let documented = &operation["responses"][answer.status.to_string()];
            assert!(!documented.is_null(), "{method} {path} answers {}: {}", answer.status, answer.text);
        }
    }
}
