//! Ollama's refusals: one sentence, the right status, the field by name; and streams that fail or are left.

use std::collections::BTreeMap;

use http_body_util::BodyExt;
use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, wait_until_held, with};

const JSON: (&str, &str) = ("content-type", "application/json");

#[track_caller]
fn is_error(answer: &Answer, status: u16, start: &str) {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(answer.headers["content-type"], "application/json");
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    let said = body["error"].as_str().unwrap();
    assert!(said.starts_with(start), "{said:?} does not start with {start:?}");
}

fn shared_cases() -> Vec<(Value, &'static str)> {
    vec![
        (json!({"model": null}), "model: "),
        (json!({"model": ""}), "model: "),
        (json!({"model": 5}), "model: "),
        (json!({"stream": "yes"}), "stream: "),
        (json!({"format": "xml"}), "format: "),
        (json!({"format": 5}), "format: "),
        (json!({"options": []}), "options: "),
        (json!({"options": {"num_predict": "many"}}), "options.num_predict: "),
        (json!({"options": {"num_predict": 1.5}}), "options.num_predict: "),
        (json!({"options": {"temperature": "hot"}}), "options.temperature: "),
        (json!({"options": {"temperature": -1}}), "options.temperature: "),
        (json!({"options": {"top_k": []}}), "options.top_k: "),
        (json!({"options": {"top_p": 2}}), "options.top_p: "),
        (json!({"options": {"min_p": 1.1}}), "options.min_p: "),
        (json!({"options": {"seed": "x"}}), "options.seed: "),
        (json!({"options": {"stop": 5}}), "options.stop: "),
        (json!({"options": {"stop": ["a", 5]}}), "options.stop[1]: "),
        (json!({"options": {"stop": ""}}), "stop "),
        (json!({"options": {"repeat_penalty": 0}}), "options.repeat_penalty: "),
        (json!({"options": {"repeat_last_n": "all"}}), "options.repeat_last_n: "),
        (json!({"options": {"presence_penalty": {}}}), "options.presence_penalty: "),
        (json!({"options": {"frequency_penalty": true}}), "options.frequency_penalty: "),
        (json!({"options": {"num_ctx": "big"}}), "options.num_ctx: "),
        (json!({"keep_alive": "soon"}), "keep_alive: "),
        (json!({"keep_alive": true}), "keep_alive: "),
        (json!({"think": "hard"}), "think: "),
        (json!({"think": 1}), "think: "),
        (json!({"logprobs": "yes"}), "logprobs: "),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs: "),
        (json!({"top_logprobs": -1}), "top_logprobs: "),
        (json!({"session_id": 5}), "session_id: "),
        (json!({"session_id": ""}), "session_id "),
        (json!({"poncho": "yes"}), "poncho: "),
    ]
}

#[tokio::test]
async fn wrong_fields_are_named_one_by_one() {
    let server = Server::plain().await;
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let call = |call: Value| json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
    let chat = [
        (json!({"messages": "hello"}), "messages: "),
        (json!({"messages": [5]}), "messages[0]: "),
        (json!({"messages": [["user", "x"]]}), "messages[0]: "),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role: "),
        (json!({"messages": [{"role": "king", "content": "x"}]}), "messages[0].role: "),
        (user(json!(5)), "messages[0].content: "),
        (user(json!([{"type": "text", "text": "x"}])), "messages[0].content: "),
        (
            json!({"messages": [{"role": "user", "images": ["aGk="]}]}),
            "messages[0].images: this model cannot read images",
        ),
        (json!({"messages": [{"role": "user", "images": "aGk="}]}), "messages[0].images: "),
        (json!({"messages": [{"role": "assistant", "thinking": 5}]}), "messages[0].thinking: "),
        (call(json!({"function": {"name": 5}})), "messages[0].tool_calls[0].function.name: "),
        (call(json!({"function": {}})), "messages[0].tool_calls[0].function.name: "),
        (call(json!({})), "messages[0].tool_calls[0].function: "),
        (call(json!({"function": {"name": "f", "arguments": "{}"}})), "messages[0].tool_calls[0].function.arguments: "),
        (json!({"messages": [{"role": "tool", "tool_name": 5}]}), "messages[0].tool_name: "),
        (json!({"tools": "all"}), "tools: "),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function: "),
        (json!({"tools": [{"type": "function", "function": {"name": ""}}]}), "tools[0].function.name: "),
        (json!({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}), "tools[0].type: "),
    ];
    let generate = [
        (json!({"prompt": 5}), "prompt: "),
        (json!({"suffix": []}), "suffix: "),
        (json!({"suffix": "x"}), "suffix: this model does not support insert"),
        (json!({"system": 5}), "system: "),
        (json!({"template": 5}), "template: "),
        (json!({"template": "{{ .Messages }}"}), "template: "),
        (json!({"raw": 1}), "raw: "),
        (json!({"images": ["aGk="]}), "images: this model cannot read images"),
        (json!({"images": [5]}), "images[0]: "),
        (json!({"context": "x"}), "context: "),
        (json!({"context": [1, -2]}), "context[1]: "),
    ];
    let chat = chat.into_iter().chain(shared_cases()).map(|case| ("/api/chat", case));
    let generate = generate.into_iter().chain(shared_cases()).map(|case| ("/api/generate", case));
    for (path, (fields, start)) in chat.chain(generate) {
        let body = json!({"model": "stub", "prompt": "x", "messages": [{"role": "user", "content": "x"}]});
        let body = with(body, &fields);
        is_error(&server.post(path, &body).await, 400, start);
        if fields.get("stream").is_none() {
            is_error(&server.post(path, &with(body, &json!({"stream": false}))).await, 400, start);
        }
    }
}

#[tokio::test]
async fn wrong_fields_of_the_other_endpoints_are_named_too() {
    let server = Server::plain().await;
    for (path, fields, start) in [
        ("/api/embed", json!({"model": 5}), "model: "),
        ("/api/embed", json!({"model": null}), "model: "),
        ("/api/embed", json!({"input": 5}), "input: "),
        ("/api/embed", json!({"input": ["a", 5]}), "input[1]: "),
        ("/api/embed", json!({"input": vec!["a"; 2049]}), "input: "),
        ("/api/embed", json!({"truncate": "no"}), "truncate: "),
        ("/api/embed", json!({"dimensions": "x"}), "dimensions: "),
        ("/api/embed", json!({"dimensions": 8}), "dimensions: "),
        ("/api/embed", json!({"dimensions": -1}), "dimensions: "),
        ("/api/embed", json!({"options": 5}), "options: "),
        ("/api/embed", json!({"keep_alive": []}), "keep_alive: "),
        ("/api/embeddings", json!({"prompt": ["a"]}), "prompt: "),
        ("/api/embeddings", json!({"model": ""}), "model: "),
        ("/api/embeddings", json!({"options": {"seed": []}}), "options.seed: "),
        ("/api/show", json!({"model": 5}), "model: "),
        ("/api/show", json!({"model": ""}), "model: "),
        ("/api/show", json!({"verbose": "yes"}), "verbose: "),
    ] {
        is_error(&server.post(path, &with(json!({"model": "stub"}), &fields)).await, 400, start);
    }
}

#[tokio::test]
async fn an_unknown_model_is_not_found_in_ollamas_words() {
    let aliases =
        BTreeMap::from([("llama3".to_owned(), "stub".to_owned()), ("big:latest".to_owned(), "stub".to_owned())]);
    let config = ServerConfig { aliases, ..ServerConfig::default() };
    let server = Server::start(Setup { models: vec!["stub", "small:1b"], config, ..Setup::default() }).await;
    for path in ["/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/show"] {
        for known in ["stub", "stub:latest", "small:1b", "llama3", "llama3:latest", "big", "big:latest"] {
            let answer = server.post(path, &json!({"model": known})).await;
            assert_eq!(answer.status, 200, "{path} {known}: {}", answer.text);
        }
        for unknown in ["x", "stub:1b", "small", "stub:latest:latest", "../stub"] {
            let answer = server.post(path, &json!({"model": unknown})).await;
            assert_eq!(answer.json(), json!({"error": format!("model '{unknown}' not found")}));
            assert_eq!(answer.status, 404);
        }
    }
    let echoed = server.ask("/api/chat", &json!({"model": "llama3:latest"})).await;
    assert_eq!(echoed["model"], "llama3:latest", "the name comes back as it was sent");
}

#[tokio::test]
async fn other_refusals_have_their_status_and_ollamas_shape() {
    let server = Server::plain().await;
    let long = json!({"model": "stub", "prompt": "x".repeat(5000)});
    is_error(&server.post("/api/generate", &long).await, 400, "the prompt has ");
    is_error(&server.get("/api/generate").await, 405, "/api/generate does not support GET");
    is_error(&server.post("/api/tags", &json!({})).await, 405, "/api/tags does not support POST");
    is_error(&server.post("/api/push", &json!({})).await, 501, "/api/push is not part of this server yet");
    is_error(&server.send(Method::POST, "/api/chat", &[JSON], b"{".to_vec()).await, 400, "the body is not valid JSON");
    let text = [("content-type", "text/plain")];
    is_error(
        &server.send(Method::POST, "/api/chat", &text, b"{}".to_vec()).await,
        415,
        "the content type is text/plain",
    );
    let none = Server::start(Setup { models: vec![], ..Setup::default() }).await;
    is_error(&none.post("/api/chat", &json!({"model": "stub"})).await, 503, "no model is loaded");
    assert_eq!(none.get("/api/tags").await.json(), json!({"models": []}));
    assert_eq!(none.get("/api/ps").await.json(), json!({"models": []}));
    let locked = ServerConfig { keys: vec!["k".into()], ..ServerConfig::default() };
    let locked = Server::start(Setup { config: locked, ..Setup::default() }).await;
    is_error(&locked.get("/api/tags").await, 401, "a valid API key is needed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_before_the_first_text_has_a_status_and_a_later_one_is_a_line() {
    let server = Server::saying("Hi", "a long enough reply to fail in its middle<|im_end|>").await;
    let body = json!({"model": "stub", "prompt": "Hi", "options": {"temperature": 0}});
    server.faults.on_decode(1, DecodeFault::Panic);
    is_error(&server.post("/api/generate", &body).await, 500, "");
    server.until_ready().await;
    server.faults.on_decode(12, DecodeFault::Block);
    let mut response = server.open(Method::POST, "/api/generate", &[JSON], body.to_string().into()).await;
    assert_eq!(response.status(), 200);
    let first = response.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&first).unwrap()["done"], false);
    wait_until_held(&server).await;
    server.faults.on_decode(1, DecodeFault::Panic);
    server.faults.release();
    let lines = crate::support::read(response).await.lines();
    let (last, others) = lines.split_last().unwrap();
    assert!(last["error"].is_string() && last.as_object().unwrap().len() == 1, "{last}");
    assert!(others.iter().all(|line| line["done"] == false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_a_stream_cancels_it() {
    let server = Server::saying("Hi", &("x".repeat(3000) + "<|im_end|>")).await;
    server.faults.on_decode(20, DecodeFault::Block);
    let body = json!({"model": "stub", "messages": [{"role": "user", "content": "Hi"}], "options": {"temperature": 0}});
    let mut response = server.open(Method::POST, "/api/chat", &[JSON], body.to_string().into()).await;
    assert!(response.body_mut().frame().await.is_some());
    server.leave(response).await;
}
