//! The operations of Anthropic's API.
//!
//! Read by `openapi.rs`. Each names the types that its handler reads and writes.

use serde_json::json;

use super::operation::{COUNT, Operation, REPLY, post};
use crate::dialects::anthropic::types::{CountedBody, MessageOut, MessagesBody, TokenCount};
use crate::dialects::shared::WithWarnings;

pub(super) fn operations() -> Vec<Operation> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    vec![
        post("/v1/messages", "createMessage", "Answer a conversation.")
            .takes::<MessagesBody>()
            .example("whole", json!({"model": "stub", "max_tokens": 4, "messages": messages}))
            .example("streamed", json!({"model": "stub", "max_tokens": 4, "messages": messages, "stream": true}))
            .answers::<MessageOut<'_>>()
            .or_events()
            .fails(REPLY),
        post("/v1/messages/count_tokens", "countTokens", "Count the tokens of a conversation.")
            .takes::<CountedBody>()
            .example("one", json!({"model": "stub", "messages": messages}))
            .answers::<WithWarnings<TokenCount>>()
            .fails(COUNT),
    ]
}
