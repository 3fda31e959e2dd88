//! The operations of the Responses API.
//!
//! Read by `openapi.rs`. Each names the types that its handler reads and writes.

use serde_json::json;

use super::operation::{COUNT, Operation, REPLY, delete, get, post};
use crate::dialects::poncho::counting::InputTokens;
use crate::dialects::responses::object::ResponseOut;
use crate::dialects::responses::stored::{DeletedResponse, ItemList};
use crate::dialects::responses::types::ResponseRequestBody;
use crate::dialects::shared::WithWarnings;

const ID: &str = "The response's id.";

pub(super) fn operations() -> Vec<Operation> {
    let items = json!([{"role": "user", "content": "Hi"}]);
    vec![
        post("/v1/responses/input_tokens", "countResponseTokens", "Count the tokens of a response's input.")
            .takes::<ResponseRequestBody>()
            .example("one", json!({"model": "stub", "input": "Hi"}))
            .answers::<WithWarnings<InputTokens>>()
            .fails(COUNT),
        post("/v1/responses", "createResponse", "Answer, and keep the answer for the next turn.")
            .takes::<ResponseRequestBody>()
            .example("text", json!({"model": "stub", "input": "Hi", "max_output_tokens": 4}))
            .example("items", json!({"model": "stub", "input": items, "max_output_tokens": 4, "stream": true}))
            .answers::<ResponseOut>()
            .or_events()
            .fails(REPLY),
        get("/v1/responses/{id}", "getResponse", "A stored response.")
            .text_in_path("id", ID)
            .in_query("stream", "Refused if it is true: nothing runs in the background.", json!({"type": "string"}))
            .answers::<ResponseOut>()
            .fails(&[400, 401, 404]),
        delete("/v1/responses/{id}", "deleteResponse", "Forget a stored response.")
            .text_in_path("id", ID)
            .answers::<DeletedResponse>()
            .fails(&[401, 404]),
        get("/v1/responses/{id}/input_items", "listInputItems", "What a response was asked.")
            .text_in_path("id", ID)
            .in_query("limit", "Items of a page.", json!({"type": "integer", "minimum": 1, "maximum": 100}))
            .in_query("order", "Oldest or newest first.", json!({"type": "string", "enum": ["asc", "desc"]}))
            .in_query("after", "The id of the item before the page.", json!({"type": "string"}))
            .answers::<ItemList<'_>>()
            .fails(&[400, 401, 404]),
        post("/v1/responses/{id}/cancel", "cancelResponse", "Always refused: nothing runs in the background.")
            .text_in_path("id", ID)
            .fails(&[400, 401, 404]),
    ]
}
