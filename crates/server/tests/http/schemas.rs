//! Schemas that would take a server's time or its stack, on every way by which one can come; and replies with one call.

use poncho_engine::backend::stub::StubTemplate;
use serde_json::{Map, Value, json};

use crate::support::{Answer, Server, Setup, with};

fn wide(count: usize) -> Value {
    let property = |at: usize| (format!("property_{at}"), json!({"type": "string"}));
    let properties: Map<String, Value> = (0..count).map(property).collect();
    json!({"type": "object", "properties": properties})
}

/// Every request that carries a schema, by the path it goes to.
fn requests(schema: &Value) -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "x"}]);
    let chat = json!({"model": "stub", "messages": messages, "max_tokens": 20});
    let function = json!({"type": "function", "function": {"name": "wide_tool", "parameters": schema}});
    let named = json!({"type": "json_schema", "name": "n", "schema": schema});
    vec![
        (
            "/v1/chat/completions",
            with(
                chat.clone(),
                &json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
            ),
        ),
        ("/v1/chat/completions", with(chat.clone(), &json!({"tools": [function]}))),
        ("/v1/chat/completions", with(chat.clone(), &json!({"tools": [function], "tool_choice": "required"}))),
        ("/v1/responses", json!({"model": "stub", "input": "x", "text": {"format": named}})),
        (
            "/v1/responses",
            json!({"model": "stub", "input": "x", "tools": [{"type": "function", "name": "wide_tool", "parameters": schema}]}),
        ),
        ("/v1/messages", with(chat.clone(), &json!({"tools": [{"name": "wide_tool", "input_schema": schema}]}))),
        ("/v1/messages", with(chat, &json!({"output_format": {"type": "json_schema", "schema": schema}}))),
        ("/api/chat", json!({"model": "stub", "messages": messages, "format": schema})),
        ("/api/chat", json!({"model": "stub", "messages": messages, "tools": [function]})),
        ("/api/generate", json!({"model": "stub", "prompt": "x", "format": schema})),
        ("/api/generate", json!({"model": "stub", "prompt": "x", "format": schema, "raw": true})),
    ]
}

/// So large that no schema of these tests is refused because its tokens do not fit.
const CONTEXT: u32 = 1 << 20;

async fn all_refused(schema: &Value, said: &str) {
    for template in [StubTemplate::Full, StubTemplate::WithoutTools] {
        let server = Server::start(Setup { template, context: CONTEXT, ..Setup::default() }).await;
        for (path, body) in requests(schema) {
            let answer = server.post(path, &body).await;
            assert_eq!(answer.status, 400, "{path}: {}", answer.text);
            assert!(answer.text.contains(said), "{path}: {}", answer.text);
        }
    }
}

/// Hardening 14.2: 6,000 ended the process, 2,600 burned a core after the client had left, 1,000 took 4 s.
#[tokio::test]
async fn an_object_with_6000_optional_properties_is_refused_on_every_way() {
    all_refused(&wide(6_000), "keys in one object").await;
    for count in [1_000, 2_600] {
        let nested = json!({"type": "array", "items": {"properties": wide(count)["properties"]}});
        let said =
            if count > 2_000 { "2000 are allowed" } else { "at #/items it has 1000 optional properties and 200 are" };
        all_refused(&nested, said).await;
    }
}

/// Hardening 14.12: 6 tokens took 3.9 s of the worker's time.
#[tokio::test]
async fn an_enum_of_4000_strings_is_refused_on_every_way() {
    let words: Vec<String> = (0..4_000).map(|word| format!("word-{word}")).collect();
    let schema = json!({"type": "object", "properties": {"word": {"enum": words}}, "required": ["word"]});
    all_refused(&schema, "at #/properties/word it has 4000 enum values and 1000 are allowed").await;
}

#[tokio::test]
async fn many_tools_count_together_and_the_refusal_says_so() {
    for template in [StubTemplate::Full, StubTemplate::WithoutTools] {
        let server = Server::start(Setup { template, context: CONTEXT, ..Setup::default() }).await;
        let tool =
            |at: usize| json!({"type": "function", "function": {"name": format!("f{at}"), "parameters": wide(200)}});
        let tools: Vec<Value> = (0..20).map(tool).collect();
        let body = json!({"model": "stub", "messages": [{"role": "user", "content": "x"}], "tools": tools});
        let answer = server.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert_eq!(answer.json()["error"]["param"], "tools", "{}", answer.text);
    }
}

/// The names of the calls in an answer, and why it ended.
fn calls(path: &str, answer: &Answer) -> (Vec<String>, String) {
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    let answer = answer.json();
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let found: Vec<String> = match path {
        "/v1/messages" => {
            let blocks = answer["content"].as_array().unwrap().iter();
            blocks.filter(|block| block["type"] == "tool_use").map(name).collect()
        }
        "/v1/responses" => {
            let items = answer["output"].as_array().unwrap().iter();
            items.filter(|item| item["type"] == "function_call").map(name).collect()
        }
        _ => {
            let calls = answer["choices"][0]["message"]["tool_calls"].as_array().cloned().unwrap_or_default();
            calls.iter().map(|call| name(&call["function"])).collect()
        }
    };
    let end = [&answer["choices"][0]["finish_reason"], &answer["stop_reason"], &answer["status"]];
    (found, end.iter().find_map(|end| end.as_str()).unwrap_or_default().to_owned())
}

fn moon(shape: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"phase": {"enum": ["new", "full"]}}});
    match shape {
        "/v1/messages" => json!({"name": "moon", "input_schema": parameters}),
        "/v1/responses" => json!({"type": "function", "name": "moon", "parameters": parameters}),
        _ => json!({"type": "function", "function": {"name": "moon", "parameters": parameters}}),
    }
}

/// Hardening 14.28: further calls followed until the length limit.
#[tokio::test]
async fn a_named_function_is_called_exactly_once() {
    let ways = [
        ("/v1/chat/completions", "max_tokens", json!({"type": "function", "function": {"name": "moon"}}), "tool_calls"),
        ("/v1/messages", "max_tokens", json!({"type": "tool", "name": "moon"}), "tool_use"),
        ("/v1/responses", "max_output_tokens", json!({"type": "function", "name": "moon"}), "completed"),
    ];
    for template in [StubTemplate::Full, StubTemplate::WithoutTools] {
        let server = Server::start(Setup { template, ..Setup::default() }).await;
        for (path, most, choice, end) in &ways {
            // The stub writes what the grammar allows; a few questions make sure that it would go on for some.
            for question in ["How is it?", "And now?", "Tell me.", "Look at it, please.", "What?", "Go on."] {
                let asked = if *path == "/v1/responses" {
                    json!({"input": question})
                } else {
                    json!({"messages": [{"role": "user", "content": question}]})
                };
                let fields = json!({"model": "stub", "tools": [moon(path)], "tool_choice": choice, *most: 1_000});
                let answer = server.post(path, &with(asked, &fields)).await;
                assert_eq!(calls(path, &answer), (vec!["moon".to_owned()], (*end).to_owned()), "{path} {question}");
            }
        }
    }
}
