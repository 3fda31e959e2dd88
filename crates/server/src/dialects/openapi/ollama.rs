//! The operations of Ollama's API.
//!
//! Read by `openapi.rs`. Each names the types that its handler reads and writes.

use axum::http::StatusCode;
use serde_json::json;

use super::operation::{COUNT, MODEL, Operation, REPLY, delete, get, head, post};
use crate::dialects::ollama::embed::OldEmbedding;
use crate::dialects::ollama::library::{CopyBody, CreateBody, DeleteBody, PullBody, StatusLine};
use crate::dialects::ollama::types::{
    ChatBody, ChatSaid, EmbedAnswer, EmbedBody, EmbeddingsBody, GenerateBody, GenerateSaid, Line, ListedOut, LoadedOut,
    ModelsOut, ShowAnswer, ShowBody,
};
use crate::dialects::poncho::counting::InputTokens;
use crate::dialects::poncho::endpoints::Version;
use crate::dialects::shared::WithWarnings;

/// Errors of requests that change the library, and of those that also write to it.
const LIBRARY: &[u16] = &[400, 401, 404, 408, 413, 415, 500, 501, 503];
const WRITE: &[u16] = &[400, 401, 404, 408, 413, 415, 500, 501, 503, 507];

const DIGEST: &str = "sha256: and 64 hexadecimal digits.";

pub(super) fn operations() -> Vec<Operation> {
    let mut all = replies();
    all.extend(models());
    all
}

fn replies() -> Vec<Operation> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let few = json!({"num_predict": 4});
    vec![
        post("/api/chat/input_tokens", "countOllamaTokens", "Count the tokens of a conversation.")
            .takes::<ChatBody>()
            .example("one", json!({"model": "stub", "messages": messages}))
            .answers::<WithWarnings<InputTokens>>()
            .fails(COUNT),
        post("/api/generate", "ollamaGenerate", "Answer a prompt.")
            .takes::<GenerateBody>()
            .example("whole", json!({"model": "stub", "prompt": "Hi", "stream": false, "options": few}))
            .example("streamed", json!({"model": "stub", "prompt": "Hi", "options": few}))
            .answers::<Line<'_, GenerateSaid>>()
            .or_lines()
            .fails(REPLY),
        post("/api/chat", "ollamaChat", "Answer a conversation.")
            .takes::<ChatBody>()
            .example("whole", json!({"model": "stub", "messages": messages, "stream": false, "options": few}))
            .answers::<Line<'_, ChatSaid>>()
            .or_lines()
            .fails(REPLY),
        post("/api/embed", "ollamaEmbed", "Texts as vectors.")
            .takes::<EmbedBody>()
            .example("two", json!({"model": "stub", "input": ["a", "b"]}))
            .answers::<WithWarnings<EmbedAnswer<'_>>>()
            .fails(REPLY),
        post("/api/embeddings", "ollamaEmbeddings", "The vector of a text, for older clients.")
            .takes::<EmbeddingsBody>()
            .example("one", json!({"model": "stub", "prompt": "a"}))
            .answers::<WithWarnings<OldEmbedding>>()
            .fails(REPLY),
    ]
}

fn models() -> Vec<Operation> {
    vec![
        get("/api/tags", "ollamaTags", "Every name that requests may use.")
            .answers::<ModelsOut<ListedOut>>()
            .fails(&[401, 500]),
        get("/api/ps", "ollamaPs", "The models that are loaded.").answers::<ModelsOut<LoadedOut>>().fails(&[401]),
        post("/api/show", "ollamaShow", "All about a model.")
            .takes::<ShowBody>()
            .example("one", json!({"model": "stub"}))
            .answers::<WithWarnings<ShowAnswer>>()
            .fails(MODEL),
        get("/api/version", "version", "The server's version.").answers::<Version>().fails(&[401]),
        post("/api/pull", "ollamaPull", "Fetch a model of the catalogue or of a hub.")
            .takes::<PullBody>()
            .answers_with::<WithWarnings<StatusLine<'_>>>("What is going on, line by line, or the end of it.")
            .or_lines()
            .fails(WRITE),
        post("/api/push", "ollamaPush", "Not part of this server.").fails(&[401, 501]),
        post("/api/copy", "ollamaCopy", "Give a model a second name.")
            .takes::<CopyBody>()
            .answers_status(StatusCode::OK, "It has both names.")
            .fails(WRITE),
        post("/api/create", "ollamaCreate", "Make a model out of another one.")
            .takes::<CreateBody>()
            .answers_with::<WithWarnings<StatusLine<'_>>>("What was done, line by line, or the end of it.")
            .or_lines()
            .fails(WRITE),
        delete("/api/delete", "ollamaDelete", "Forget a model, and the files that no other name needs.")
            .takes::<DeleteBody>()
            .answers_status(StatusCode::OK, "It is gone.")
            .fails(LIBRARY),
        head("/api/blobs/{digest}", "ollamaHasBlob", "Whether an uploaded file is here.")
            .text_in_path("digest", DIGEST)
            .answers_status(StatusCode::OK, "It is.")
            .answers_status(StatusCode::NOT_FOUND, "It is not.")
            .fails(&[400, 401, 500, 501, 503]),
        post("/api/blobs/{digest}", "ollamaAddBlob", "Upload a file for a model that is to be created.")
            .text_in_path("digest", DIGEST)
            .takes_file()
            .answers_status(StatusCode::CREATED, "It is here and has that digest.")
            .fails(&[400, 401, 408, 413, 429, 500, 501, 503, 507]),
    ]
}
