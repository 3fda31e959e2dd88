//! Responses: every field and item that can be wrong, one by one, and every shape that an item may have.

use serde_json::{Value, json};

use crate::dialects::responses::{PATH, asking};
use crate::support::{Server, with};

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = Server::plain().await;
    let tool = |fields: Value| json!({"tools": [with(json!({"type": "function", "name": "f"}), &fields)]});
    let format = |format: Value| json!({"text": {"format": format}});
    let cases = [
        (json!({"model": null}), "model"),
        (json!({"model": 5}), "model"),
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"instructions": ["x"]}), "instructions"),
        (json!({"previous_response_id": 5}), "previous_response_id"),
        (json!({"background": true}), "background"),
        (json!({"background": "yes"}), "background"),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"prompt": {"id": "pmpt_1"}}), "prompt"),
        (json!({"tools": {}}), "tools"),
        (json!({"tools": [5]}), "tools[0]"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tools": [{"type": "file_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "x"}]}), "tools[1].type"),
        (tool(json!({"name": ""})), "tools[0].name"),
        (tool(json!({"name": 5})), "tools[0].name"),
        (tool(json!({"parameters": 5})), "tools[0].parameters"),
        (tool(json!({"strict": "yes"})), "tools[0].strict"),
        (tool(json!({"description": 5})), "tools[0].description"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"parallel_tool_calls": 1}), "parallel_tool_calls"),
        (json!({"max_tool_calls": -1}), "max_tool_calls"),
        (json!({"text": "json"}), "text"),
        (json!({"text": {"verbosity": "loud"}}), "text.verbosity"),
        (format(json!("text")), "text.format"),
        (format(json!({})), "text.format.type"),
        (format(json!({"type": "xml"})), "text.format.type"),
        (format(json!({"type": "json_schema", "name": "n"})), "text.format.schema"),
        (format(json!({"type": "json_schema", "schema": {}})), "text.format.name"),
        (format(json!({"type": "json_schema", "name": "n", "schema": 7})), "text.format.schema"),
        (json!({"reasoning": "high"}), "reasoning"),
        (json!({"reasoning": {"effort": 5}}), "reasoning.effort"),
        (json!({"reasoning": {"summary": "long"}}), "reasoning.summary"),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_output_tokens": -1}), "max_output_tokens"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 300}), "top_logprobs"),
        (json!({"include": "all"}), "include"),
        (json!({"include": ["reasoning.encrypted_content", "everything"]}), "include[1]"),
        (json!({"store": "no"}), "store"),
        (json!({"metadata": {"a": 5}}), "metadata.a"),
        (json!({"metadata": {"a": "x".repeat(513)}}), "metadata"),
        (
            json!({"metadata": (0..17).map(|key| (key.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>()}),
            "metadata",
        ),
        (json!({"truncation": "middle"}), "truncation"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_obfuscation": 1}}), "stream_options.include_obfuscation"),
        (json!({"service_tier": 5}), "service_tier"),
        (json!({"prompt_cache_key": 5}), "prompt_cache_key"),
        (json!({"safety_identifier": 5}), "safety_identifier"),
        (json!({"user": 5}), "user"),
        (json!({"session_id": ""}), "session_id"),
        (json!({"exact": true}), "exact"),
        (json!({"poncho": "yes"}), "poncho"),
        (json!({"chat_template_kwargs": {"enable_thinking": "no"}}), "chat_template_kwargs.enable_thinking"),
        (json!({"logit_bias": {"word": 1}}), "logit_bias.word"),
    ];
    for (fields, param) in cases {
        for stream in [false, true] {
            let body = with(with(asking(&json!("x")), &json!({"stream": stream})), &fields);
            let answer = server.post(PATH, &body).await;
            let error = &answer.json()["error"];
            assert_eq!((answer.status, &error["param"]), (400, &json!(param)), "{fields}: {}", answer.text);
            assert_eq!(error["type"], "invalid_request_error");
        }
    }
    let unknown = server.post(PATH, &with(asking(&json!("x")), &json!({"model": "nobody"}))).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    server.ask(PATH, &with(asking(&json!("x")), &json!({"max_output_tokens": 1}))).await;
}

#[tokio::test]
async fn wrong_items_are_named() {
    let server = Server::plain().await;
    let message = |content: Value| json!({"role": "user", "content": content});
    let cases = [
        (json!(5), "input[1]"),
        (json!({}), "input[1].role"),
        (json!({"type": "banana"}), "input[1].type"),
        (json!({"type": "computer_call_output", "call_id": "x", "output": {}}), "input[1].output"),
        (json!({"type": "web_search_call", "id": "ws_1", "status": "completed"}), "input[1].type"),
        (json!({"type": "message", "content": "x"}), "input[1].role"),
        (json!({"role": "king", "content": "x"}), "input[1].role"),
        (json!({"role": "user"}), "input[1].content"),
        (message(json!(5)), "input[1].content"),
        (message(json!(["x"])), "input[1].content[0]"),
        (message(json!([{"text": "x"}])), "input[1].content[0].type"),
        (message(json!([{"type": "input_text"}])), "input[1].content[0].text"),
        (
            message(json!([{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:"}])),
            "input[1].content[1].type",
        ),
        (message(json!([{"type": "input_file", "file_id": "x"}])), "input[1].content[0].type"),
        (json!({"type": "function_call", "name": "f", "arguments": "{}"}), "input[1].call_id"),
        (json!({"type": "function_call", "call_id": "c", "arguments": "{}"}), "input[1].name"),
        (json!({"type": "function_call", "call_id": "c", "name": "f"}), "input[1].arguments"),
        (json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}), "input[1].arguments"),
        (json!({"type": "function_call_output", "output": "x"}), "input[1].call_id"),
        (json!({"type": "function_call_output", "call_id": "c"}), "input[1].output"),
        (json!({"type": "function_call_output", "call_id": "never made", "output": "x"}), "input[1].call_id"),
        (
            json!({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}),
            "input[1].output[0].type",
        ),
        (json!({"type": "reasoning", "summary": [{"type": "summary_text"}]}), "input[1].summary[0].text"),
        (json!({"type": "reasoning", "summary": [{"type": "poem", "text": "x"}]}), "input[1].summary[0].type"),
        (json!({"type": "reasoning", "summary": "x"}), "input[1].summary"),
        (json!({"type": "item_reference"}), "input[1].id"),
    ];
    for (item, param) in cases {
        let answer = server.post(PATH, &asking(&json!([{"role": "user", "content": "x"}, item]))).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{item}: {}", answer.text);
    }
}

#[tokio::test]
async fn items_come_in_short_and_whole_forms() {
    let server = Server::plain().await;
    let items = json!([
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}], "id": "msg_mine"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null},
        {"type": "message", "role": "assistant", "id": "msg_2", "status": "completed",
            "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}, {"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
        {"role": "assistant", "content": "d", "phase": "commentary"},
        {"role": "user", "content": "e"},
    ]);
    let made = server.ask(PATH, &with(asking(&items), &json!({"max_output_tokens": 1}))).await;
    let path = format!("{PATH}/{}/input_items?order=asc", made["id"].as_str().unwrap());
    let listed = server.get(&path).await.json()["data"].clone();
    let field =
        |name: &str| -> Vec<Value> { listed.as_array().unwrap().iter().map(|item| item[name].clone()).collect() };
    let kinds =
        ["message", "message", "reasoning", "message", "function_call", "function_call_output", "message", "message"];
    assert_eq!(field("type"), kinds);
    assert!(field("id").iter().all(|id| id.as_str().unwrap().len() > 3) && field("id")[1] == "msg_mine");
    assert_eq!(listed[0]["content"], json!([{"type": "input_text", "text": "Be kind."}]));
    assert_eq!(listed[3]["content"][1], json!({"type": "refusal", "refusal": "no"}));
    assert_eq!((&listed[5]["output"], &listed[5]["status"]), (&json!("ok"), &json!("completed")));
    assert_eq!(listed[6]["content"][0]["type"], "output_text");
}
