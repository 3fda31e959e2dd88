//! Codex's custom tools: called with a text, replayed as they were, and the tools that are refused.

use serde_json::{Value, json};

use crate::support::{Server, Setup, with};

const PATH: &str = "/v1/responses";
const PATCH: &str = "*** Begin Patch\n*** Add File: a \"b\".txt\n+Gr\u{fc}\u{df}e \u{1f600}\n*** End Patch\n";

fn patch_tool() -> Value {
    json!({"type": "custom", "name": "apply_patch", "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\" /.+/"}})
}

/// The start of the prompt, and the call as the model writes it.
fn script() -> (String, String) {
    let description = "Edits files.\n\nThe input follows this grammar (lark):\nstart: \"*** Begin Patch\" /.+/";
    let schema = r#"{"type":"object","properties":{"input":{"type":"string","description":"The whole input of the tool as one text"}},"required":["input"],"additionalProperties":false}"#;
    let description = Value::from(description).to_string();
    let tools = format!(
        r#"[{{"type":"function","function":{{"name":"apply_patch","description":{description},"parameters":{schema}}}}}]"#
    );
    let prompt = format!("<s><|im_start|>system\nTools:\n{tools}<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n");
    let arguments = json!({"input": PATCH}).to_string();
    (prompt, format!(r#"<tool_call>{{"name":"apply_patch","arguments":{arguments}}}</tool_call>"#))
}

async fn server() -> Server {
    let (prompt, call) = script();
    let after = format!("{prompt}<|im_start|>assistant\n{call}<|im_end|>\n<|im_start|>tool\nDone!<|im_end|>\n");
    let replies = vec![
        (format!("{prompt}<|im_start|>assistant\n"), format!("{call}<|im_end|>")),
        (format!("{after}<|im_start|>assistant\n"), "All written.<|im_end|>".to_owned()),
    ];
    Server::start(Setup { replies, ..Setup::default() }).await
}

fn asking(input: &Value) -> Value {
    json!({"model": "stub", "temperature": 0, "input": input, "tools": [patch_tool()]})
}

#[tokio::test]
async fn a_custom_tool_is_called_with_a_text_and_its_call_is_replayed() {
    let server = server().await;
    let first = server.ask(PATH, &asking(&json!("Go"))).await;
    let [call] = &first["output"].as_array().unwrap()[..] else { panic!("{first}") };
    assert_eq!(
        (&call["type"], &call["name"], &call["input"]),
        (&json!("custom_tool_call"), &json!("apply_patch"), &json!(PATCH))
    );
    assert!(call["id"].as_str().unwrap().starts_with("ctc_") && call["status"] == "completed", "{call}");
    let tool = &first["tools"][0];
    assert_eq!((&tool["type"], &tool["format"]), (&json!("custom"), &patch_tool()["format"]), "{tool}");

    let output = json!({"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done!"});
    let parts = with(output.clone(), &json!({"output": [{"type": "input_text", "text": "Done!"}]}));
    for (input, previous) in [
        (json!([{"role": "user", "content": "Go"}, call, output]), Value::Null),
        (json!([{"role": "user", "content": "Go"}, call, parts]), Value::Null),
        (json!([output]), first["id"].clone()),
    ] {
        let body = with(asking(&input), &json!({"previous_response_id": previous}));
        let second = server.ask(PATH, &body).await;
        assert_eq!(second["output"][0]["content"][0]["text"], "All written.", "{second}");
        let usage = |answer: &Value, name: &str| answer["usage"][name].as_u64().unwrap();
        let cached = second["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let before = usage(&first, "input_tokens") + usage(&first, "output_tokens");
        assert!(cached + 1 >= before, "{cached} of {before}: the call was not found again");
    }
}

#[tokio::test]
async fn the_text_of_a_custom_tool_is_streamed() {
    let server = server().await;
    let events = server.stream(PATH, &asking(&json!("Go"))).await.named_events();
    let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    let deltas = of("response.custom_tool_call_input.delta");
    let joined: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(joined, PATCH);
    let [done] = of("response.custom_tool_call_input.done")[..] else { panic!("{events:?}") };
    let [item] = of("response.output_item.done")[..] else { panic!("{events:?}") };
    let [added] = of("response.output_item.added")[..] else { panic!("{events:?}") };
    assert_eq!(
        (&done["input"], &item["item"]["input"], &added["item"]["input"]),
        (&json!(PATCH), &json!(PATCH), &json!(""))
    );
    assert!(
        deltas.iter().chain([&done]).all(|event| event["item_id"] == item["item"]["id"] && event["output_index"] == 0)
    );
    assert!(of("response.function_call_arguments.delta").is_empty());
}

#[tokio::test]
async fn a_custom_tool_can_be_chosen() {
    let server = server().await;
    let choice = json!({"type": "custom", "name": "apply_patch"});
    let answer =
        server.ask(PATH, &with(asking(&json!("Go")), &json!({"tool_choice": choice, "max_output_tokens": 90}))).await;
    assert_eq!(
        (&answer["output"][0]["type"], &answer["tool_choice"]),
        (&json!("custom_tool_call"), &choice),
        "{answer}"
    );
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_with_a_reason() {
    let server = server().await;
    let custom = |fields: &Value| with(json!({"type": "custom", "name": "f"}), fields);
    let format = |format: &Value| custom(&json!({"format": format}));
    let call = json!({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"});
    let output = json!({"type": "custom_tool_call_output", "call_id": "c", "output": "x"});
    let mcp = json!({"type": "mcp", "server_label": "docs", "server_url": "https://example.test/mcp"});
    for (fields, param, part) in [
        (json!({"tools": [custom(&json!({"name": ""}))]}), "tools[0].name", "needs a name"),
        (json!({"tools": [format(&json!({"type": "xml"}))]}), "tools[0].format", "text or grammar"),
        (json!({"tools": [format(&json!({"type": "grammar", "syntax": "bnf"}))]}), "tools[0].format", "lark or regex"),
        (json!({"tools": [format(&json!({"type": "grammar", "syntax": "regex"}))]}), "tools[0].format", "a definition"),
        (json!({"tools": [mcp]}), "tools[0].type", "does not call MCP servers; let the client call them"),
        (json!({"tools": [{"type": "computer_use_preview"}]}), "tools[0].type", "cannot be run by this server"),
        (json!({"input": [output]}), "input[0].call_id", "no call \"c\""),
        (json!({"input": [with(call, &json!({"input": null}))]}), "input[0].input", "needs it"),
    ] {
        let refused = server.post(PATH, &with(asking(&json!("Go")), &fields)).await;
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{}", refused.text);
        assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    }
    let chat = json!({"model": "stub", "messages": [{"role": "user", "content": "Go"}],
        "tools": [{"type": "custom", "custom": {"name": "f"}}]});
    let refused = server.post("/v1/chat/completions", &chat).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools[0].type")), "{}", refused.text);
    assert!(refused.text.contains("only functions can be called"), "{}", refused.text);
}
