//! The id of a request: the client's own if it is usable, else a new one; in headers, errors and traces alike.

use hyper::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Server, asking, with};

const JSON: (&str, &str) = ("content-type", "application/json");
const OWN: &str = "0b7f6a2e-7d1c-4bb6-9d1f-2f6f1f0c1a11";

async fn send(server: &Server, path: &str, id: &str, body: &Value) -> Answer {
    server.send(Method::POST, path, &[JSON, ("x-request-id", id)], body.to_string().into()).await
}

/// Hardening 27: the id that a client sent was thrown away.
#[tokio::test]
async fn every_dialect_answers_with_the_id_that_the_client_sent() {
    let server = Server::plain().await;
    let short = with(asking("Hi"), &json!({"max_tokens": 2}));
    let requests = [
        ("/v1/chat/completions", short.clone()),
        ("/v1/chat/completions", with(short.clone(), &json!({"stream": true}))),
        ("/v1/responses", json!({"model": "stub", "input": "Hi", "max_output_tokens": 16})),
        ("/v1/embeddings", json!({"model": "stub", "input": "Hi"})),
        ("/v1/messages", short.clone()),
        ("/v1/messages", with(short.clone(), &json!({"stream": true}))),
        ("/api/chat", with(short.clone(), &json!({"stream": false, "options": {"num_predict": 2}}))),
        ("/api/generate", json!({"model": "stub", "prompt": "Hi", "options": {"num_predict": 2}})),
        ("/tokenize", json!({"model": "stub", "content": "Hi"})),
    ];
    for (path, body) in requests {
        let answer = send(&server, path, OWN, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        assert_eq!(answer.headers["x-request-id"], OWN, "{path}");
        let other = answer.headers.get("request-id").map(|id| id.to_str().unwrap());
        assert_eq!(other, (path == "/v1/messages").then_some(OWN), "{path}: Anthropic has a header of its own");
    }
}

#[tokio::test]
async fn errors_carry_the_clients_id_too() {
    let server = Server::plain().await;
    for path in ["/v1/chat/completions", "/v1/messages", "/api/chat", "/nowhere"] {
        let answer = send(&server, path, OWN, &json!({"model": 5})).await;
        assert!(answer.status >= 400, "{path}");
        assert_eq!(answer.headers["x-request-id"], OWN, "{path}");
        if path == "/v1/messages" {
            assert_eq!(
                (&answer.json()["request_id"], &answer.headers["request-id"]),
                (&json!(OWN), &answer.headers["x-request-id"])
            );
        }
    }
}

#[tokio::test]
async fn an_id_that_is_not_usable_is_replaced() {
    let server = Server::plain().await;
    for wrong in ["", "two words", "tab\there", &"x".repeat(129)] {
        let answer = send(&server, "/tokenize", wrong, &json!({"model": "stub", "content": "Hi"})).await;
        let id = answer.headers["x-request-id"].to_str().unwrap();
        assert!(answer.status == 200 && id.starts_with("req_") && id.len() == 34, "{wrong:?} became {id}");
    }
}
