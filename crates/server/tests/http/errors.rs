//! Bad input of every kind: the right status, a message that names the problem, and a server that goes on.

use hyper::Method;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, asking, with};

const PATH: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");

#[track_caller]
fn is_error(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.text);
    assert_eq!(answer.headers["content-type"], "application/json");
    assert!(answer.headers.contains_key("x-request-id"));
    let error = &answer.json()["error"];
    assert_eq!(error["code"], code, "{error}");
    assert!(error["message"].as_str().unwrap().len() > 10 && error["type"].is_string(), "{error}");
    assert!(error.as_object().unwrap().contains_key("param"), "{error}");
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = Server::plain().await;
    let deep = (0..200).fold(json!(1), |inner, _| json!([inner]));
    let cases = [
        (json!({"messages": []}), "messages"),
        (json!({"messages": "hello"}), "messages"),
        (json!({"messages": [5]}), "messages[0]"),
        (json!({"messages": [["user", "x"]]}), "messages[0]"),
        (json!({"stream_options": [true]}), "stream_options"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "king", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": ["x"]}]}), "messages[0].content[0]"),
        (json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}), "messages[0].content[0].text"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}),
            "messages[0].tool_calls[0].id",
        ),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].tool_call_id"),
        (json!({"model": null}), "model"),
        (json!({"model": 5}), "model"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_completion_tokens": 0}), "max_completion_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": 1e300}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_k": -4}), "top_k"),
        (json!({"min_p": 1.1}), "min_p"),
        (json!({"seed": "x"}), "seed"),
        (json!({"stop": 5}), "stop"),
        (json!({"stop": ["a", 5]}), "stop[1]"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": vec!["x"; 65]}), "stop"),
        (json!({"n": 0}), "n"),
        (json!({"n": 9}), "n"),
        (json!({"n": 2, "session_id": "s"}), "n"),
        (json!({"session_id": ""}), "session_id"),
        (json!({"session_id": "x".repeat(300)}), "session_id"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
        (json!({"logit_bias": {"word": 1}}), "logit_bias.word"),
        (json!({"logit_bias": {"99999": 1}}), "logit_bias"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"top_logprobs": 300, "logprobs": true}), "top_logprobs"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": "json"}), "response_format"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema.schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"chat_template_kwargs": {"enable_thinking": "no"}}), "chat_template_kwargs.enable_thinking"),
        (json!({"user": 5}), "user"),
        (json!({"exact": true}), "exact"),
        (json!({"poncho": "yes"}), "poncho"),
    ];
    for (fields, param) in cases {
        let answer = server.post(PATH, &with(asking("x"), &fields)).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}: {}",
            answer.text
        );
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        let streamed = server.post(PATH, &with(with(asking("x"), &json!({"stream": true})), &fields)).await;
        assert_eq!(streamed.status, 400, "an early error has a status also for streams: {fields}");
    }
    is_error(
        &server.post(PATH, &with(asking("x"), &json!({"chat_template_kwargs": {"deep": deep}}))).await,
        400,
        "invalid_json",
    );
    let bad_schema =
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "unheard of"}}}});
    let refused = server.post(PATH, &with(asking("x"), &bad_schema)).await;
    is_error(&refused, 400, "invalid_grammar");
    assert_eq!(refused.json()["error"]["param"], "response_format", "{}", refused.text);
    assert!(refused.text.contains("unheard of"), "{}", refused.text);
    server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_says_so() {
    let server = Server::plain().await;
    let answer = server.post(PATH, &asking(&"x".repeat(5000))).await;
    is_error(&answer, 400, "context_length_exceeded");
    assert!(answer.text.contains("4095"), "{}", answer.text);
    let completion = json!({"model": "stub", "prompt": "y".repeat(5000)});
    is_error(&server.post("/v1/completions", &completion).await, 400, "context_length_exceeded");
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused() {
    let server = Server::plain().await;
    for body in
        ["", "{", "{\"model\": NaN}", "not json", "{\"messages\": []} {}", &format!("{{\"x\": {}", "[".repeat(100_000))]
    {
        is_error(&server.send(Method::POST, PATH, &[JSON], body.into()).await, 400, "invalid_json");
    }
    let broken = b"{\"model\": \"\xff\xfe\"}".to_vec();
    let answer = server.send(Method::POST, PATH, &[JSON], broken).await;
    is_error(&answer, 400, "invalid_json");
    assert!(answer.text.contains("byte 11"), "{}", answer.text);
    let list = server.send(Method::POST, PATH, &[JSON], b"[]".to_vec()).await;
    assert_eq!((list.status, &list.json()["error"]["param"]), (400, &json!("body")), "{}", list.text);
    let body = asking("x").to_string().into_bytes();
    for headers in
        [&[][..], &[("content-type", "text/plain")], &[("content-type", "application/x-www-form-urlencoded")]]
    {
        is_error(&server.send(Method::POST, PATH, headers, body.clone()).await, 415, "unsupported_content_type");
    }
    server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let config = ServerConfig { max_body: 10_000, ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    is_error(&server.post(PATH, &asking(&"x".repeat(20_000))).await, 413, "body_too_large");
    // Without a length announced, it is noticed while reading.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = server.connect().await;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(format!("{:x}\r\n{}\r\n0\r\n\r\n", 12_000, "x".repeat(12_000)).as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"), "{answer}");
    server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
}

#[tokio::test]
async fn unknown_paths_and_methods_have_the_shape_of_their_family() {
    let server = Server::plain().await;
    is_error(&server.get("/nothing").await, 404, "unknown_path");
    is_error(&server.get("/v1/chat/completion").await, 404, "unknown_path");
    for path in ["/v1/models/%ff", "/v1/responses/%ff%fe", "/api/requests/%c3/why"] {
        is_error(&server.get(path).await, 404, "unknown_path");
    }
    let wrong = server.get(PATH).await;
    is_error(&wrong, 405, "method_not_allowed");
    assert_eq!(wrong.headers["allow"], "POST");
    is_error(&server.send(Method::DELETE, "/v1/models", &[], Vec::new()).await, 405, "method_not_allowed");
    let anthropic = server.get("/v1/messages").await;
    assert_eq!((anthropic.status, &anthropic.json()["type"]), (405, &json!("error")));
    assert_eq!(anthropic.json()["error"]["type"], "invalid_request_error");
    let ollama = server.post("/api/push", &json!({})).await;
    assert_eq!((ollama.status, ollama.json()["error"].is_string()), (501, true), "{}", ollama.text);
}

#[tokio::test]
async fn keys_are_asked_for_everywhere_but_at_the_probes() {
    let config = ServerConfig { keys: vec!["sk-one".into(), "sk-two".into()], ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    assert_eq!(server.get("/health").await.status, 200);
    server.until_ready().await;
    for path in ["/v1/models", "/metrics", "/api/cache", "/api/version"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, &answer.headers["www-authenticate"]), (401, &"Bearer".parse().unwrap()), "{path}");
    }
    let body = with(asking("x"), &json!({"max_tokens": 1})).to_string().into_bytes();
    let send =
        async |name: &str, value: &str| server.send(Method::POST, PATH, &[JSON, (name, value)], body.clone()).await;
    for (name, value) in [
        ("authorization", "Bearer sk-thr"),
        ("authorization", "Bearer"),
        ("authorization", "sk-one"),
        ("x-api-key", "sk"),
    ] {
        let answer = send(name, value).await;
        is_error(&answer, 401, "invalid_api_key");
        assert!(!answer.text.contains("sk-"), "no key in an answer");
    }
    for (name, value) in
        [("authorization", "Bearer sk-one"), ("authorization", "bearer sk-two"), ("x-api-key", "sk-two")]
    {
        assert_eq!(send(name, value).await.status, 200, "{name}: {value}");
    }
    let anthropic = server.post("/v1/messages", &json!({})).await;
    assert_eq!((anthropic.status, &anthropic.json()["error"]["type"]), (401, &json!("authentication_error")));
    let unknown: Value = server.get("/nothing/here").await.json();
    assert_eq!(unknown["error"]["code"], "unknown_path");
}
