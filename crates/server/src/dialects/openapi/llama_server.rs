//! The operations that llama.cpp's server has too.
//!
//! Read by `openapi.rs`. Each names the types that its handler reads and writes.

use serde_json::json;

use super::operation::{MODEL, Operation, REPLY, get, post};
use crate::dialects::llama_server::infill::{InfillAnswer, InfillBody};
use crate::dialects::llama_server::properties::{Props, Slot};
use crate::dialects::llama_server::rerank::{RerankBody, Reranked};
use crate::dialects::openai::types::ConversationBody;
use crate::dialects::poncho::endpoints::{DetokenizeBody, Detokenized, TemplateApplied, TokenizeBody, Tokenized};
use crate::dialects::shared::WithWarnings;

const MODEL_NAME: &str = "The model; without it, the only one that is loaded.";

pub(super) fn operations() -> Vec<Operation> {
    let text = || json!({"type": "string"});
    let rerank = |path, id| {
        post(path, id, "Rank documents by how well they answer a query.")
            .takes::<RerankBody>()
            .example("one", json!({"query": "Hi", "documents": ["Hello", "Bye"]}))
            .answers::<WithWarnings<Reranked>>()
            .fails(REPLY)
    };
    vec![
        rerank("/rerank", "rerank"),
        rerank("/v1/rerank", "rerankV1"),
        post("/infill", "infill", "Fill the gap between two texts.")
            .takes::<InfillBody>()
            .example("one", json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 4}))
            .answers::<InfillAnswer<'_>>()
            .or_events()
            .fails(REPLY),
        get("/props", "properties", "The context, the template and the defaults of a model.")
            .in_query("model", MODEL_NAME, text())
            .answers::<WithWarnings<Props<'_>>>()
            .fails(&[400, 401, 404, 500, 503]),
        get("/slots", "slots", "What the sequences of a model do.")
            .in_query("model", MODEL_NAME, text())
            .answers::<Vec<Slot>>()
            .fails(&[400, 401, 404, 500, 503]),
        post("/tokenize", "tokenize", "The tokens of a text.")
            .takes::<TokenizeBody>()
            .example("one", json!({"content": "Hi", "with_pieces": true}))
            .answers::<WithWarnings<Tokenized>>()
            .fails(MODEL),
        post("/detokenize", "detokenize", "The text of some tokens.")
            .takes::<DetokenizeBody>()
            .example("one", json!({"tokens": [72]}))
            .answers::<WithWarnings<Detokenized>>()
            .fails(MODEL),
        post("/apply-template", "applyTemplate", "A conversation as the model reads it.")
            .takes::<ConversationBody>()
            .example("one", json!({"messages": [{"role": "user", "content": "Hi"}]}))
            .answers::<WithWarnings<TemplateApplied>>()
            .fails(MODEL),
    ]
}
