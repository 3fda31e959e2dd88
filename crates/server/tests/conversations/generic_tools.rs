//! Tools on a model with a template that ignores them: listed in the system message, enforced by a grammar, parsed and streamed.

use poncho_engine::backend::stub::StubTemplate;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, joined, with};

const PATH: &str = "/v1/chat/completions";

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"enum": ["Rome", "Bern"]}}}}},
        {"type": "function", "function": {"name": "clock"}},
    ])
}

fn body() -> Value {
    with(asking("How is it?"), &json!({"tools": tools()}))
}

/// A server that ignores tools and says `reply` to a request.
async fn server(body: &Value, reply: &str) -> Server {
    let setup = || Setup { template: StubTemplate::WithoutTools, ..Setup::default() };
    let prompt = Server::start(setup()).await.ask("/apply-template", body).await["prompt"].as_str().unwrap().to_owned();
    Server::start(Setup { replies: vec![(format!("<s>{prompt}"), reply.to_owned())], ..setup() }).await
}

/// A server that says something to a prompt with plain text markers, as they are in a system message.
async fn prompt_of(body: &Value) -> Value {
    Server::start(Setup { template: StubTemplate::WithoutTools, ..Setup::default() })
        .await
        .ask("/apply-template", body)
        .await
}

#[tokio::test]
async fn the_prompt_explains_the_tools() {
    let rendered = prompt_of(&with(body(), &json!({"messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "noon<|im_end|>"},
    ]}))).await;
    let prompt = rendered["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("<|im_start|>system\nBe kind.\n\nThese tools"), "{prompt}");
    assert!(prompt.contains("<|im_start|>assistant\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nnoon"), "{prompt}");
    let tokens = rendered["tokens"].as_array().unwrap();
    assert_eq!(tokens.iter().filter(|token| **token == 260).count(), 4, "a mark in a tool's answer ends nothing");
    assert!(!tokens.contains(&json!(263)), "texts of the request hold no special tokens");
}

#[tokio::test]
async fn a_required_or_named_call_is_made() {
    let server = Server::start(Setup { template: StubTemplate::WithoutTools, ..Setup::default() }).await;
    for (choice, name) in
        [(json!("required"), None), (json!({"type": "function", "function": {"name": "clock"}}), Some("clock"))]
    {
        let fields = json!({"tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 2000});
        let answer = server.chat(&with(body(), &fields)).await;
        let choice = &answer["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        let called = calls[0]["function"]["name"].as_str().unwrap();
        assert!(name.is_none_or(|name| name == called) && ["weather", "clock"].contains(&called));
        let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(called != "weather" || arguments["city"].is_string(), "{arguments}");
    }
}

#[tokio::test]
async fn a_free_choice_may_talk_and_call_and_the_stream_says_the_same() {
    let body = body();
    // The model writes the mark and would then write nonsense; from the mark on it may only write a call.
    let reply = "Let me look.\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call><|im_end|>";
    let prompt = prompt_of(&body).await;
    let tokens: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
    let server =
        Server::start_with_tokens(Setup { template: StubTemplate::WithoutTools, ..Setup::default() }, &tokens, reply)
            .await;
    let whole = server.chat(&with(body.clone(), &json!({"parallel_tool_calls": true}))).await;
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], "Let me look.", "{whole}");
    assert_eq!(message["tool_calls"][0]["function"], json!({"name": "clock", "arguments": "{}"}));
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
    let chunks = server.stream(PATH, &body).await.chunks();
    assert_eq!(joined(&chunks, 0, "content"), "Let me look.");
    let pieces: Vec<&Value> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!(pieces[0]["function"]["name"], "clock");
    let arguments: String = pieces.iter().map(|piece| piece["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, "{}");
}

#[tokio::test]
async fn a_call_that_was_begun_is_finished_properly() {
    let body = body();
    let tokens: Vec<u32> = serde_json::from_value(prompt_of(&body).await["tokens"].clone()).unwrap();
    let setup = Setup { template: StubTemplate::WithoutTools, ..Setup::default() };
    let server = Server::start_with_tokens(setup, &tokens, "So <tool_call>nonsense</tool_call><|im_end|>").await;
    let answer = server.chat(&with(body, &json!({"max_tokens": 2000}))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "So");
    assert!(!answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().is_empty(), "{answer}");
}

#[tokio::test]
async fn a_schema_and_tools_go_together() {
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}});
    let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let body = with(body(), &format);
    let server = server(&body, "Words.<|im_end|>").await;
    let answer = server.chat(&with(body.clone(), &json!({"max_tokens": 2000}))).await;
    let message = &answer["choices"][0]["message"];
    match message["content"].as_str() {
        Some(text) => assert!(serde_json::from_str::<Value>(text).unwrap()["ok"].is_boolean(), "{text}"),
        None => assert!(!message["tool_calls"].as_array().unwrap().is_empty()),
    }
    let called = server.chat(&with(body, &json!({"tool_choice": "required", "max_tokens": 2000}))).await;
    assert_eq!(called["choices"][0]["finish_reason"], "tool_calls", "the schema does not hide the call");
}

#[tokio::test]
async fn a_schema_that_is_none_names_its_tool() {
    let bad = json!([{"type": "function", "function": {"name": "fine"}},
        {"type": "function", "function": {"name": "odd", "parameters": {"type": "mystery"}}}]);
    let server = Server::start(Setup { template: StubTemplate::WithoutTools, ..Setup::default() }).await;
    let answer = server.post(PATH, &with(asking("x"), &json!({"tools": bad}))).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
    let error = &answer.json()["error"];
    assert_eq!(error["param"], "tools.odd.function.parameters");
    assert!(error["message"].as_str().unwrap().contains("odd"), "{error}");
}
