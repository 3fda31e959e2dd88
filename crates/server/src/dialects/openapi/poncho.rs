//! The operations of Poncho's own API, without those of the cache.
//!
//! Read by `openapi.rs`. Each names the types that its handler reads and writes.

use axum::http::StatusCode;
use serde_json::json;

use super::operation::{COMPUTE, MODEL, Operation, delete, get, patch, post};
use crate::dialects::poncho::adapters::{self, AdapterOut, AdaptersOut, ScaleBody};
use crate::dialects::poncho::endpoints::{Health, HygieneRules, NotReady, Ready};
use crate::dialects::poncho::models::{LoadBody, Loaded, UnloadBody, UnloadedOut};
use crate::dialects::poncho::requests::{Cancelled, Requests, Why};
use crate::dialects::poncho::sessions::{EndedSession, Sessions};
use crate::dialects::poncho::speculation::{
    DraftAnswer, DraftBody, SpeculateAnswer, SpeculateBody, VerifyAnswer, VerifyBody,
};
use crate::dialects::poncho::system::System;
use crate::forms::AnyObject;
use crate::telemetry::savings::SavingsOut;

const REQUEST: &str = "The number of the request.";
const ADAPTER: &str = "The adapter's number.";
const FILE: &str = "The file.";

pub(super) fn operations() -> Vec<Operation> {
    [probes(), models(), requests(), drafts(), adapters()].into_iter().flatten().collect()
}

fn probes() -> Vec<Operation> {
    vec![
        get("/", "running", "The console for browsers, which accept HTML; a line for Ollama's clients.")
            .answers_text("A page or a word.", &["text/plain", "text/html"]),
        get("/console/app.js", "consoleScript", "The script of the console.").answers_text(FILE, &["text/javascript"]),
        get("/console/app.css", "consoleStyle", "The style sheet of the console.").answers_text(FILE, &["text/css"]),
        get("/console/icon.svg", "consoleIcon", "The icon of the console.").answers_text(FILE, &["image/svg+xml"]),
        get("/health", "health", "The process is up.").answers::<Health>(),
        get("/health/ready", "ready", "A request would be taken.")
            .answers::<Ready>()
            .or_answers::<NotReady>(StatusCode::SERVICE_UNAVAILABLE, "Not now."),
        get("/openapi.json", "openapi", "This document.").answers::<AnyObject>(),
        get("/metrics", "metrics", "Counters for Prometheus.")
            .answers_text("The answer.", &["text/plain"])
            .fails(&[401]),
    ]
}

fn models() -> Vec<Operation> {
    vec![
        post("/api/models/load", "loadModel", "Load a model, and say when it is there.")
            .takes::<LoadBody>()
            .example("one", json!({"model": "stub"}))
            .answers::<Loaded>()
            .fails(MODEL),
        post(
            "/api/models/unload",
            "unloadModel",
            "Save what a model holds and unload it, at once or after its last request.",
        )
        .takes::<UnloadBody>()
        .answers::<UnloadedOut>()
        .fails(MODEL),
        get("/api/hygiene", "hygiene", "The rules of prefix hygiene.").answers::<HygieneRules>().fails(&[401]),
        get(
            "/api/savings",
            "savings",
            "What the cache saved, by day and model, the newest day first. Seconds are an estimate.",
        )
        .answers::<SavingsOut>()
        .fails(&[401, 403, 500]),
        get(
            "/api/system",
            "system",
            "The loaded models with their plans, devices, nodes, the settings with their sources and the last \
             warnings. With several keys, for an admin only.",
        )
        .answers::<System>()
        .fails(&[401, 403, 500]),
    ]
}

fn requests() -> Vec<Operation> {
    vec![
        get(
            "/api/requests",
            "listRequests",
            "The last requests, oldest first, with their progress. Each key sees its own; an admin sees the figures of \
             all. With ?follow=1 a stream of server-sent events: all requests, then those that change.",
        )
        .stream_parameters(&["follow"])
        .answers::<Requests>()
        .fails(&[400, 401, 500]),
        delete(
            "/api/requests/{id}",
            "cancelRequest",
            "Cancel a request that has not ended. Its client gets the error `cancelled`.",
        )
        .number_in_path("id", REQUEST)
        .answers::<Cancelled>()
        .fails(&[400, 401, 404, 500]),
        get(
            "/api/requests/{id}/why",
            "whyRequest",
            "What differed between the prompt of a request and the most similar cached one. Only for the key that sent \
             it. Never loads a model.",
        )
        .number_in_path("id", REQUEST)
        .answers_with::<Why>("The answer, and what was found and made equal when the request ran.")
        .fails(&[400, 401, 404, 409, 500, 503]),
        get(
            "/api/sessions",
            "listSessions",
            "The idle sessions, and the requests that have not ended, with their progress. Never waits for a model.",
        )
        .answers::<Sessions>()
        .fails(&[401]),
        delete("/api/sessions/{id}", "endSession", "Forget a session.")
            .text_in_path("id", "The session's name.")
            .answers::<EndedSession>()
            .fails(&[401, 404, 500, 503]),
    ]
}

fn drafts() -> Vec<Operation> {
    let speculate = json!({"model": "stub", "draft_model": "stub", "prompt": "Hi", "max_tokens": 8, "count": 4});
    vec![
        post("/api/verify", "verifyDraft", "How many tokens of a draft the model would draw itself, greedily.")
            .takes::<VerifyBody>()
            .where_body("One of prompt and tokens, and one of draft and draft_tokens.")
            .example("one", json!({"prompt": "Hi", "draft": " there"}))
            .answers::<VerifyAnswer>()
            .fails(COMPUTE),
        post("/api/draft", "draft", "The model's own next tokens, greedily.")
            .takes::<DraftBody>()
            .where_body("One of prompt and tokens.")
            .example("one", json!({"prompt": "Hi", "count": 4}))
            .answers_with::<DraftAnswer>("The answer; it has fewer tokens if the model ends its text.")
            .fails(COMPUTE),
        post(
            "/api/speculate",
            "speculate",
            "The model's greedy reply, drafted by another model with the same vocabulary.",
        )
        .takes::<SpeculateBody>()
        .where_body("One of prompt and tokens.")
        .example("one", speculate)
        .answers_with::<SpeculateAnswer>("The answer. The token that ends a reply is not part of it.")
        .fails(COMPUTE),
    ]
}

fn adapters() -> Vec<Operation> {
    vec![
        get("/api/adapters", "listAdapters", "The adapters of the loaded models.")
            .in_query("model", "Only those of this model.", json!({"type": "string"}))
            .answers::<AdaptersOut>()
            .fails(&[400, 401, 404, 500, 503]),
        post("/api/adapters", "loadAdapter", "Attach an uploaded LoRA adapter to a model.")
            .takes::<adapters::LoadBody>()
            .answers_with::<AdapterOut>("The adapter.")
            .fails(&[400, 401, 404, 408, 413, 415, 500, 501, 503]),
        patch("/api/adapters/{id}", "scaleAdapter", "Change the strength of an adapter for requests that come after.")
            .number_in_path("id", ADAPTER)
            .takes::<ScaleBody>()
            .example("half", json!({"scale": 0.5}))
            .answers_with::<AdapterOut>("The adapter.")
            .fails(MODEL),
        delete("/api/adapters/{id}", "unloadAdapter", "Detach an adapter.")
            .number_in_path("id", ADAPTER)
            .answers_with::<AdapterOut>("The adapter as it was.")
            .fails(&[400, 401, 404, 500, 503]),
    ]
}
