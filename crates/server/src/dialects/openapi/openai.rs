//! The operations of OpenAI's API, without responses.
//!
//! Read by `openapi.rs`. Each names the types that its handler reads and writes.

use serde_json::json;

use super::operation::{COUNT, Operation, REPLY, get, post};
use crate::dialects::openai::answers::{ChatChoice, ModelOut, TextChoice, WholeAnswer};
use crate::dialects::openai::embeddings::{EmbeddingsBody, EmbeddingsOut};
use crate::dialects::openai::models::ModelList;
use crate::dialects::openai::types::{ChatRequestBody, CompletionRequestBody};
use crate::dialects::poncho::counting::InputTokens;
use crate::dialects::shared::WithWarnings;

pub(super) fn operations() -> Vec<Operation> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let now = json!({"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}});
    let with_tools = json!({
        "model": "stub", "messages": messages, "max_tokens": 40, "tool_choice": "required", "tools": [now],
    });
    vec![
        post("/v1/chat/completions/input_tokens", "countChatTokens", "Count the tokens of a conversation.")
            .takes::<ChatRequestBody>()
            .example("one", json!({"model": "stub", "messages": messages}))
            .answers::<WithWarnings<InputTokens>>()
            .fails(COUNT),
        post("/v1/chat/completions", "createChatCompletion", "Answer a conversation.")
            .takes::<ChatRequestBody>()
            .example("whole", json!({"model": "stub", "messages": messages, "max_tokens": 4}))
            .example("streamed", json!({"model": "stub", "messages": messages, "max_tokens": 4, "stream": true}))
            .example("tools", with_tools)
            .answers::<WholeAnswer<'_, ChatChoice>>()
            .or_events()
            .fails(REPLY),
        post("/v1/completions", "createCompletion", "Go on with a prompt as it is.")
            .takes::<CompletionRequestBody>()
            .example("whole", json!({"model": "stub", "prompt": "One, two", "max_tokens": 4}))
            .answers::<WholeAnswer<'_, TextChoice>>()
            .or_events()
            .fails(REPLY),
        post("/v1/embeddings", "createEmbeddings", "Texts as vectors.")
            .takes::<EmbeddingsBody>()
            .example("one", json!({"model": "stub", "input": "a cat"}))
            .answers::<WithWarnings<EmbeddingsOut>>()
            .fails(REPLY),
        get("/v1/models", "listModels", "Every name that requests may use.").answers::<ModelList>().fails(&[401]),
        get("/v1/models/{id}", "getModel", "One of the models.")
            .text_in_path("id", "The model's name.")
            .answers::<ModelOut>()
            .fails(&[401, 404]),
    ]
}
