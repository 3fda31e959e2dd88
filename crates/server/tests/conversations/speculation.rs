//! Verifying and drafting over HTTP: both agree with what the model says greedily, and wrong bodies are refused by field.

use poncho_engine::backend::stub::vocab;
use serde_json::{Value, json};

use crate::support::{Server, Setup};

const VERIFY: &str = "/api/verify";
const DRAFT: &str = "/api/draft";
const REPLY: &str = " upon a time";

async fn server() -> Server {
    let replies = vec![("<s>Once".to_owned(), format!("{REPLY}</s>"))];
    Server::start(Setup { replies, context: 512, ..Setup::default() }).await
}

#[tokio::test]
async fn a_draft_is_what_the_model_says_greedily_and_ends_where_it_ends() {
    let server = server().await;
    let said = json!({"model": "stub", "prompt": "Once", "temperature": 0, "max_tokens": 5});
    let said = server.ask("/v1/completions", &said).await;
    let prompts = [json!({"prompt": "Once"}), json!({"tokens": vocab::tokens("<s>Once"), "model": "stub"})];
    for mut body in prompts {
        body["count"] = 5.into();
        let drafted = server.ask(DRAFT, &body).await;
        assert_eq!(drafted, json!({"model": "stub", "tokens": vocab::tokens(" upon"), "text": " upon"}));
        assert_eq!(drafted["text"], said["choices"][0]["text"]);
    }
    let whole = server.ask(DRAFT, &json!({"prompt": "Once", "count": 256})).await;
    assert_eq!(whole["text"], format!("{REPLY}</s>"), "a text that ended has no more tokens");
}

#[tokio::test]
async fn exactly_the_tokens_that_the_model_would_draw_are_accepted() {
    let server = server().await;
    let reply = vocab::tokens(&format!("{REPLY}</s>"));
    for wrong in 0..4 {
        let mut draft = reply[..4].to_vec();
        draft[wrong] = vocab::tokens("~")[0];
        let body = json!({"tokens": vocab::tokens("<s>Once"), "draft_tokens": draft});
        let verified = server.ask(VERIFY, &body).await;
        assert_eq!((&verified["accepted"], &verified["next"]), (&json!(wrong), &json!(reply[wrong])), "{verified}");
    }
    let verified = server.ask(VERIFY, &json!({"model": "stub", "prompt": "Once", "draft": " upon"})).await;
    let expected = json!({
        "model": "stub", "accepted": 5, "next": reply[5], "next_text": " ", "draft_tokens": vocab::tokens(" upon"),
    });
    assert_eq!(verified, expected, "a draft in text goes on from the prompt, without a mark of its own");
}

#[tokio::test]
async fn a_call_changes_no_session() {
    let server = server().await;
    let body = json!({"model": "stub", "prompt": "Once", "session_id": "s", "temperature": 0, "max_tokens": 4});
    server.ask("/v1/completions", &body).await;
    let before = server.get("/api/sessions").await.json();
    assert_eq!(before["sessions"].as_array().unwrap().len(), 1, "{before}");
    server.ask(DRAFT, &json!({"prompt": "Once", "count": 9})).await;
    server.ask(VERIFY, &json!({"prompt": "Once", "draft": " upon"})).await;
    assert_eq!(server.get("/api/sessions").await.json(), before);
}

#[tokio::test]
async fn wrong_bodies_are_refused_by_field() {
    let server = server().await;
    let vocab = server.model().limits().vocab;
    let long = "x".repeat(600);
    let cases: [(&str, Value, &str); 14] = [
        (VERIFY, json!({"draft": "x"}), "prompt"),
        (VERIFY, json!({"prompt": "x"}), "draft"),
        (VERIFY, json!({"prompt": "x", "tokens": [1], "draft": "x"}), "tokens"),
        (VERIFY, json!({"prompt": "x", "draft": "x", "draft_tokens": [1]}), "draft_tokens"),
        (VERIFY, json!({"tokens": [], "draft": "x"}), "tokens"),
        (VERIFY, json!({"prompt": "x", "draft": ""}), "draft"),
        (VERIFY, json!({"tokens": [1, vocab], "draft": "x"}), "tokens[1]"),
        (VERIFY, json!({"prompt": "x", "draft_tokens": [vocab]}), "draft_tokens[0]"),
        (VERIFY, json!({"prompt": "x", "draft": "x".repeat(257)}), "draft"),
        (DRAFT, json!({"prompt": "x"}), "count"),
        (DRAFT, json!({"prompt": "x", "count": 0}), "count"),
        (DRAFT, json!({"prompt": "x", "count": 257}), "count"),
        (DRAFT, json!({"count": 1}), "prompt"),
        (DRAFT, json!({"tokens": [vocab], "count": 1}), "tokens[0]"),
    ];
    for (path, body, field) in cases {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        assert_eq!(answer.json()["error"]["param"], field, "{body}: {}", answer.text);
    }
    for (path, body) in [
        (DRAFT, json!({"prompt": long, "count": 1})),
        (DRAFT, json!({"prompt": "x".repeat(400), "count": 200})),
        (VERIFY, json!({"prompt": "x".repeat(400), "draft": "x".repeat(200)})),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded", "{path}: {}", answer.text);
    }
    let unknown = server.post(DRAFT, &json!({"model": "nobody", "prompt": "x", "count": 1})).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
}
