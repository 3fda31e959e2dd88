//! Images: refused in every dialect, wherever an agent puts them, with a sentence that it shows to its user.

use serde_json::{Value, json};

use crate::support::Server;

const DATA: &str = "aGk=";

fn user(content: &Value) -> Value {
    json!([{"role": "user", "content": content}])
}

/// A path, a body with an image, and the place that the error names.
fn requests() -> Vec<(&'static str, Value, &'static str)> {
    let chat_part = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{DATA}")}});
    let block = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}});
    let item = json!({"type": "input_image", "image_url": format!("data:image/png;base64,{DATA}"), "detail": "auto"});
    let text = json!({"type": "text", "text": "Look:"});
    let call = json!({"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"});
    let use_ = json!({"type": "tool_use", "id": "t", "name": "read", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [text, block]});
    vec![
        ("/v1/chat/completions", json!({"messages": user(&json!([text, chat_part]))}), "messages[0].content[1].type"),
        ("/v1/messages", json!({"messages": user(&json!([text, block]))}), "messages.0.content.1.type"),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "Read it."}, {"role": "assistant", "content": [use_]},
                {"role": "user", "content": [result]}]}),
            "messages.2.content.0.content.1.type",
        ),
        (
            "/v1/responses",
            json!({"input": user(&json!([{"type": "input_text", "text": "Look:"}, item]))}),
            "input[0].content[1].type",
        ),
        (
            "/v1/responses",
            json!({"input": [call, {"type": "function_call_output", "call_id": "c", "output": [item]}]}),
            "input[1].output[0].type",
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "Look:", "images": [DATA]}]}),
            "messages[0].images",
        ),
        ("/api/generate", json!({"prompt": "Look:", "images": [DATA]}), "images"),
    ]
}

#[tokio::test]
async fn images_are_refused_with_a_sentence_in_every_dialect() {
    let server = Server::plain().await;
    for (path, mut body, place) in requests() {
        body["model"] = "stub".into();
        body["max_tokens"] = if path == "/v1/messages" { json!(4) } else { Value::Null };
        for stream in [false, true] {
            body["stream"] = stream.into();
            let refused = server.post(path, &body).await;
            assert_eq!(refused.status, 400, "{path}: {}", refused.text);
            let error = refused.json()["error"].clone();
            let said = error["message"].as_str().or(error.as_str()).unwrap().to_owned();
            assert_eq!(said, format!("{place}: this model cannot read images; send text"), "{path}");
        }
    }
}
