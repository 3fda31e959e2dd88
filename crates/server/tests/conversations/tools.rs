//! Tool calls: told apart from content, streamed in pieces, refused where they make no sense.

use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, joined, with};

const PATH: &str = "/v1/chat/completions";
const WEATHER: &str = r#"{"type":"function","function":{"name":"weather","description":"Shows it","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}}}}"#;
const CLOCK: &str = r#"{"type":"function","function":{"name":"clock"}}"#;

fn prompt(tools: &str) -> String {
    format!(
        "<s><|im_start|>system\nTools:\n[{tools}]<|im_end|>\n<|im_start|>user\nHow is it?<|im_end|>\n<|im_start|>assistant\n"
    )
}

async fn server(reply: &str) -> Server {
    let both = prompt(&format!("{CLOCK},{WEATHER}"));
    Server::start(Setup { replies: vec![(both, reply.to_owned())], ..Setup::default() }).await
}

fn body() -> Value {
    let tools: Value = serde_json::from_str(&format!("[{WEATHER},{CLOCK}]")).unwrap();
    with(asking("How is it?"), &json!({"tools": tools}))
}

/// The body as text with the tools as written above: a parsed one would lose their order.
async fn send(server: &Server, fields: &Value) -> crate::support::Answer {
    let mut body = with(body(), fields);
    body["tools"] = json!("TOOLS");
    let text = body.to_string().replace("\"TOOLS\"", &format!("[{WEATHER}, {CLOCK}]"));
    server.send(hyper::Method::POST, PATH, &[("content-type", "application/json")], text.into()).await
}

const CALLS: &str = r#"Let me look.<tool_call>{"name":"weather","arguments":{"z":"Rome"}}</tool_call><tool_call>{"name":"clock","arguments":{}}</tool_call><|im_end|>"#;

#[tokio::test]
async fn calls_are_told_apart_from_content() {
    let server = server(CALLS).await;
    for choice in [json!({}), json!({"tool_choice": "auto"})] {
        let answer = send(&server, &choice).await.json();
        let (choice, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
        assert_eq!((&choice["finish_reason"], &message["content"]), (&json!("tool_calls"), &json!("Let me look.")));
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": "{\"z\":\"Rome\"}"}));
        assert_eq!(calls[1]["function"], json!({"name": "clock", "arguments": "{}"}));
        assert!(calls.iter().all(|call| call["type"] == "function" && call["id"].as_str().unwrap().len() > 20));
        assert_ne!(calls[0]["id"], calls[1]["id"]);
    }
}

#[tokio::test]
async fn a_call_that_is_asked_for_is_made_whatever_the_model_wants_to_say() {
    let server = Server::plain().await;
    let phase = json!({"type": "object", "properties": {"phase": {"enum": ["new", "full"]}}});
    let tools = json!([{"type": "function", "function": {"name": "moon", "parameters": phase}},
        {"type": "function", "function": {"name": "clock"}}]);
    for (choice, parallel, names) in [
        (json!("required"), true, vec!["moon", "clock"]),
        (json!("required"), false, vec!["moon", "clock"]),
        (json!({"type": "function", "function": {"name": "clock"}}), false, vec!["clock"]),
        (json!({"type": "function", "function": {"name": "moon"}}), true, vec!["moon"]),
        (
            json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                {"type": "function", "function": {"name": "moon"}}]}}),
            false,
            vec!["moon"],
        ),
    ] {
        let fields =
            json!({"tool_choice": choice, "parallel_tool_calls": parallel, "max_tokens": 1000, "tools": tools});
        let answer = server.chat(&with(asking("How is it?"), &fields)).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!((&answer["choices"][0]["finish_reason"], &message["content"]), (&json!("tool_calls"), &Value::Null));
        let calls = message["tool_calls"].as_array().unwrap();
        assert!((parallel && choice == "required") || calls.len() == 1, "{calls:?}");
        for call in calls {
            assert!(names.contains(&call["function"]["name"].as_str().unwrap()), "{call}");
            let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
            assert!(arguments.is_object());
        }
    }
}

#[tokio::test]
async fn calls_are_streamed_in_pieces() {
    let server = server(CALLS).await;
    let answer = send(&server, &json!({"stream": true})).await;
    let chunks = answer.chunks();
    assert_eq!(joined(&chunks, 0, "content"), "Let me look.");
    let mut calls: Vec<(String, String, String)> = Vec::new();
    let pieces = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array()).flatten();
    for piece in pieces {
        let index = usize::try_from(piece["index"].as_u64().unwrap()).unwrap();
        if let Some(id) = piece["id"].as_str() {
            assert_eq!((index, &piece["type"]), (calls.len(), &json!("function")));
            calls.push((id.to_owned(), piece["function"]["name"].as_str().unwrap().to_owned(), String::new()));
        }
        calls[index].2.push_str(piece["function"]["arguments"].as_str().unwrap());
    }
    assert_eq!(calls.len(), 2);
    assert_eq!((calls[0].1.as_str(), calls[0].2.as_str()), ("weather", "{\"z\":\"Rome\"}"));
    assert_eq!((calls[1].1.as_str(), calls[1].2.as_str()), ("clock", "{}"));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// Hardening 14.28: the model goes on to a second call where its template has no grammar that ends it.
#[tokio::test]
async fn without_parallel_calls_only_the_first_one_is_told() {
    let server = server(CALLS).await;
    let whole = send(&server, &json!({"parallel_tool_calls": false})).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": "{\"z\":\"Rome\"}"}));
    let chunks = send(&server, &json!({"parallel_tool_calls": false, "stream": true})).await.chunks();
    let pieces: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array()).flatten().collect();
    assert!(!pieces.is_empty() && pieces.iter().all(|piece| piece["index"] == 0), "{pieces:?}");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_reply_that_only_calls_has_no_content() {
    let server = server(r#"<tool_call>{"name":"clock","arguments":{}}</tool_call><|im_end|>"#).await;
    let answer = send(&server, &json!({})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "clock");
}

#[tokio::test]
async fn a_broken_call_loses_no_text() {
    let server = server("So<tool_call>no json</tool_call><|im_end|>").await;
    let answer = send(&server, &json!({})).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], "So<tool_call>no json</tool_call>");
    assert_eq!(choice["finish_reason"], "stop");
    let cut = send(&server, &json!({"max_tokens": 6})).await.json();
    assert_eq!(
        (&cut["choices"][0]["message"]["content"], &cut["choices"][0]["finish_reason"]),
        (&json!("So"), &json!("length"))
    );
}

#[tokio::test]
async fn without_a_choice_the_tools_stay_out() {
    let server = Server::saying("How is it?", "Fine.<|im_end|>").await;
    let answer = send(&server, &json!({"tool_choice": "none"})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Fine.");
}

#[tokio::test]
async fn the_order_of_a_schema_is_kept_in_the_prompt() {
    let server = Server::plain().await;
    let text = format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{WEATHER}]}}"#);
    let headers = [("content-type", "application/json")];
    let answer = server.send(hyper::Method::POST, "/apply-template", &headers, text.into()).await.json();
    assert!(answer["prompt"].as_str().unwrap().contains(WEATHER), "{answer}");
}

#[tokio::test]
async fn choices_and_definitions_that_make_no_sense_are_refused() {
    let server = Server::plain().await;
    let no_name = json!([{"type": "function", "function": {"name": ""}}]);
    let cases = [
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "moon"}}}), "tool_choice"),
        (json!({"tool_choice": 5}), "tool_choice"),
        (json!({"tool_choice": {"type": "allowed_tools"}}), "tool_choice.allowed_tools.mode"),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}),
            "tool_choice.allowed_tools.tools",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                {"type": "function", "function": {"name": "moon"}}]}}}),
            "tool_choice.allowed_tools.tools[0].function.name",
        ),
        (json!({"tools": [], "tool_choice": "required"}), "tool_choice"),
        (json!({"tools": no_name}), "tools[0].function.name"),
        (json!({"tools": [{"type": "retrieval", "function": {"name": "x"}}]}), "tools[0].type"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "x", "parameters": 5}}]}),
            "tools[0].function.parameters",
        ),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": "all"}), "tools"),
    ];
    for (fields, param) in cases {
        let answer = server.post(PATH, &with(body(), &fields)).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{}", answer.text);
    }
}
