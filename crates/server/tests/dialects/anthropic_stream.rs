//! Anthropic's streams: the exact sequence of events, their numbers and names, pings, and errors on the way.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::dialects::anthropic::{JSON, PATH, asking, calling, saying, send_with_tool, thinking};
use crate::support::{Answer, PATIENCE, Server, Setup, eventually, read, wait_until_held, with};

/// Name and data of each event; a ping that only keeps the stream alive may come anywhere and is left out.
fn events(answer: &Answer) -> Vec<(String, Value)> {
    assert_eq!(answer.headers["content-type"], "text/event-stream", "{}", answer.text);
    let mut found: Vec<(String, Value)> = Vec::new();
    for block in answer.text.split("\n\n").filter(|block| !block.is_empty()) {
        let (name, data) = block.split_once('\n').unwrap_or_else(|| panic!("{block:?}"));
        let name = name.strip_prefix("event: ").unwrap_or_else(|| panic!("{block:?}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], name);
        if name != "ping" || found.len() == 1 {
            found.push((name.to_owned(), data));
        }
    }
    found
}

/// One line for each event; deltas of the same kind in a row are one line with all of their text.
fn outline(events: &[(String, Value)]) -> Vec<String> {
    let mut lines: Vec<(String, String)> = Vec::new();
    for (name, data) in events {
        let delta = &data["delta"];
        let (head, text) = match name.as_str() {
            "content_block_start" => {
                (format!("start {} {}", data["index"], data["content_block"]["type"].as_str().unwrap()), "")
            }
            "content_block_stop" => (format!("stop {}", data["index"]), ""),
            "content_block_delta" => {
                let kind = delta["type"].as_str().unwrap();
                let field =
                    kind.strip_suffix("_delta").filter(|field| *field != "input_json").unwrap_or("partial_json");
                let text = if kind == "signature_delta" { "" } else { delta[field].as_str().unwrap() };
                (format!("{kind} {}", data["index"]), text)
            }
            other => (other.to_owned(), ""),
        };
        match lines.last_mut() {
            Some((last, all)) if *last == head && name == "content_block_delta" => all.push_str(text),
            _ => lines.push((head, text.to_owned())),
        }
    }
    lines.into_iter().map(|(head, text)| format!("{head} {text}").trim_end().to_owned()).collect()
}

async fn stream(server: &Server, body: &Value) -> Vec<(String, Value)> {
    events(&server.stream(PATH, body).await)
}

#[tokio::test]
async fn a_text_is_streamed_in_one_block() {
    let server = saying("Hi", "Héllo there<|im_end|>").await;
    let answer = server.stream(PATH, &asking("Hi")).await;
    assert!(answer.text.starts_with("event: message_start\ndata: {\"type\":\"message_start\","), "{}", answer.text);
    assert!(answer.headers["request-id"].to_str().unwrap().starts_with("req_"));
    let events = events(&answer);
    let expected = [
        "message_start",
        "ping",
        "start 0 text",
        "text_delta 0 Héllo there",
        "stop 0",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(outline(&events), expected);
    let message = &events[0].1["message"];
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        (&message["role"], &message["content"], &message["stop_reason"]),
        (&json!("assistant"), &json!([]), &Value::Null)
    );
    assert_eq!(events[2].1["content_block"], json!({"type": "text", "text": ""}));
    let end = &events[events.len() - 2].1;
    assert_eq!(end["delta"], json!({"stop_reason": "end_turn", "stop_sequence": null}));
    assert_eq!(end.get("poncho"), None, "nobody asked for it");
    assert_eq!(events.last().unwrap().1, json!({"type": "message_stop"}));
}

#[tokio::test]
async fn the_start_and_the_end_tell_the_same_input() {
    let server = saying("Hi", "Hello<|im_end|>").await;
    let mut read = Vec::new();
    for _ in 0..2 {
        let events = stream(&server, &with(asking("Hi"), &json!({"poncho": true}))).await;
        let (start, end) = (&events[0].1["message"]["usage"], &events[events.len() - 2].1);
        for name in ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"] {
            assert_eq!(start[name], end["usage"][name], "{name}");
        }
        assert_eq!((&start["output_tokens"], &end["usage"]["output_tokens"]), (&json!(0), &json!(6)));
        assert_eq!(end["poncho"]["cached_tokens"], end["usage"]["cache_read_input_tokens"]);
        read.push(start["cache_read_input_tokens"].as_u64().unwrap());
    }
    assert!(read[0] == 0 && read[1] > 20, "{read:?}");
}

#[tokio::test]
async fn limits_and_stop_sequences_are_told_at_the_end() {
    let server = saying("Hi", "one two three<|im_end|>").await;
    let cases = [
        (json!({"max_tokens": 3}), "text_delta 0 one", json!({"stop_reason": "max_tokens", "stop_sequence": null})),
        (
            json!({"stop_sequences": [" two"]}),
            "text_delta 0 one",
            json!({"stop_reason": "stop_sequence", "stop_sequence": " two"}),
        ),
    ];
    for (fields, text, stop) in cases {
        let events = stream(&server, &with(asking("Hi"), &fields)).await;
        assert_eq!(outline(&events)[3], text, "{fields}");
        assert_eq!(events[events.len() - 2].1["delta"], stop, "{fields}");
    }
    let empty = stream(&server, &with(asking("Hi"), &json!({"stop_sequences": ["one"]}))).await;
    assert_eq!(outline(&empty), ["message_start", "ping", "message_delta", "message_stop"], "no block without a text");
}

#[tokio::test]
async fn thinking_is_a_block_that_ends_with_its_signature() {
    let server = thinking(None).await;
    for on in [json!({"type": "adaptive"}), json!({"type": "enabled", "budget_tokens": 100})] {
        let body = with(asking("Why?"), &json!({"thinking": on}));
        let events = stream(&server, &body).await;
        let expected = [
            "message_start",
            "ping",
            "start 0 thinking",
            "thinking_delta 0 let me see",
            "signature_delta 0",
            "stop 0",
            "start 1 text",
            "text_delta 1 Because.",
            "stop 1",
            "message_delta",
            "message_stop",
        ];
        assert_eq!(outline(&events), expected, "{on}");
        assert_eq!(events[2].1["content_block"], json!({"type": "thinking", "thinking": "", "signature": ""}));
        let signature = events.iter().find_map(|event| event.1["delta"]["signature"].as_str()).unwrap();
        assert_eq!(server.ask(PATH, &body).await["content"][0]["signature"], signature, "as in the whole answer");
    }
    let omitted =
        stream(&server, &with(asking("Why?"), &json!({"thinking": {"type": "adaptive", "display": "omitted"}}))).await;
    assert_eq!(outline(&omitted)[2..6], ["start 0 thinking", "signature_delta 0", "stop 0", "start 1 text"]);
    assert_eq!(outline(&stream(&server, &asking("Why?")).await)[2..4], ["start 0 text", "text_delta 0 At once."]);
}

#[tokio::test]
async fn calls_are_blocks_with_their_input_in_pieces() {
    let server = calling().await;
    let answer = send_with_tool(&server, &json!({"stream": true})).await;
    let events = events(&answer);
    let expected = [
        "message_start",
        "ping",
        "start 0 text",
        "text_delta 0 Let me look.",
        "stop 0",
        "start 1 tool_use",
        r#"input_json_delta 1 {"a":"b","z":"Rome"}"#,
        "stop 1",
        "start 2 tool_use",
        "input_json_delta 2 {}",
        "stop 2",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(outline(&events), expected);
    let blocks: Vec<&Value> =
        events.iter().map(|event| &event.1["content_block"]).filter(|block| block["type"] == "tool_use").collect();
    assert!(blocks.iter().all(|block| block["input"] == json!({}) && block["name"] == "weather"));
    assert!(blocks.iter().all(|block| block["id"].as_str().unwrap().starts_with("toolu_")));
    assert_ne!(blocks[0]["id"], blocks[1]["id"]);
    assert_eq!(events[events.len() - 2].1["delta"]["stop_reason"], "tool_use");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_on_the_way_is_an_event() {
    let server = Server::plain().await;
    server.faults.on_decode(20, DecodeFault::Block);
    let body = with(asking("Hello"), &json!({"max_tokens": 3000, "ignore_eos": true, "stream": true}));
    let response = server.open(Method::POST, PATH, &[JSON], body.to_string().into()).await;
    wait_until_held(&server).await;
    server.faults.on_decode(1, DecodeFault::Panic);
    server.faults.release();
    let events = events(&read(response).await);
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["error"]["type"]), ("error", &json!("api_error")), "{last}");
    assert!(last["error"]["message"].as_str().unwrap().contains("send the request again"), "{last}");
    assert_eq!(events[0].0, "message_start");
    assert!(events.iter().all(|event| event.0 != "message_stop"));
    // An error that comes before anything was said has a status of its own.
    let model = server.model();
    eventually("the restart", || model.status().starts == 2).await;
    server.faults.on_decode(1, DecodeFault::Panic);
    let early = server.post(PATH, &with(asking("Other"), &json!({"stream": true}))).await;
    assert_eq!((early.status, &early.json()["error"]["type"]), (500, &json!("api_error")), "{}", early.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_waits_is_kept_alive_with_pings() {
    let config = ServerConfig { stream_keep_alive: Duration::from_millis(20), ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    server.faults.on_decode(1, DecodeFault::Block);
    let body = with(asking("Hello"), &json!({"max_tokens": 2, "stream": true})).to_string();
    let (response, ()) = tokio::join!(server.open(Method::POST, PATH, &[JSON], body.into()), wait_until_held(&server));
    let mut body = response.into_body();
    let mut text = String::new();
    while text.matches("event: ping\ndata: {\"type\":\"ping\"").count() < 4 {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.expect("no ping came").unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    assert!(text.starts_with("event: message_start\n"), "the start comes before the prompt is read: {text}");
    server.faults.release();
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(
        std::str::from_utf8(&rest).unwrap().ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_a_stream_cancels_it() {
    let server = Server::plain().await;
    server.faults.on_decode(20, DecodeFault::Block);
    let body = with(asking("Hello"), &json!({"max_tokens": 3000, "ignore_eos": true, "stream": true})).to_string();
    let response = server.open(Method::POST, PATH, &[JSON], body.into()).await;
    server.leave(response).await;
}
