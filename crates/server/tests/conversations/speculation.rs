//! Verifying, drafting and replies with drafts over HTTP: all agree with what the model says greedily, and wrong bodies
//! are refused by field.

use std::time::Duration;

use poncho_engine::backend::stub::{DecodeFault, vocab};
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Server, Setup, load, wait_until_held};

const VERIFY: &str = "/api/verify";
const DRAFT: &str = "/api/draft";
const SPECULATE: &str = "/api/speculate";
const REPLY: &str = " upon a time";
/// The tokens that end a reply of the stub; its file names the first two.
const ENDS: [u32; 3] = [vocab::EOS, vocab::EOT, vocab::IM_END];

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
    server.ask(SPECULATE, &json!({"draft_model": "stub", "prompt": "Once"})).await;
    assert_eq!(server.get("/api/sessions").await.json(), before);
}

/// A prompt that leaves a draft model with a context of 512 tokens room for 11 of them.
fn long_prompt() -> String {
    "x".repeat(500)
}

/// A target, `twin` with the same weights, and `other`, which agrees with the target in scripted replies only. `short`
/// is a twin with half the context.
async fn with_drafters(config: ServerConfig) -> Server {
    let long = long_prompt();
    let replies = [
        ("Once", " upon a time</s>"),
        ("Bye", " now<|im_end|>"),
        ("Hi", "a<|im_start|>b<|eot|>"),
        (long.as_str(), "abcdefghijklmnopqrstuvwxyz"),
    ];
    let replies = replies.map(|(prompt, reply)| (format!("<s>{prompt}"), reply.to_owned())).to_vec();
    let models = vec!["stub", "twin"];
    let server = Server::start(Setup { replies, models, context: 1024, config, ..Setup::default() }).await;
    let other = Setup { file: "other".into(), fingerprint: [8; 32], context: 1024, ..Setup::default() };
    load(&server.engine, "other", &other);
    load(&server.engine, "short", &Setup { context: 512, ..Setup::default() });
    server
}

/// The target's greedy reply without the token that ends it, and how it ends.
async fn greedy(server: &Server, prompt: &str, most: usize) -> (Vec<u32>, &'static str) {
    let drafted = server.ask(DRAFT, &json!({"model": "stub", "prompt": prompt, "count": most})).await;
    let mut tokens: Vec<u32> = serde_json::from_value(drafted["tokens"].clone()).unwrap();
    let ended = tokens.pop_if(|token| ENDS.contains(token));
    (tokens, if ended.is_some() { "end" } else { "length" })
}

#[tokio::test]
async fn a_reply_with_drafts_is_the_greedy_one_whichever_model_drafts() {
    let server = with_drafters(ServerConfig::default()).await;
    for prompt in ["Once", "Bye", "Hi", "Tell me more", "And then?", "x"] {
        for most in [1, 2, 7, 100] {
            let (tokens, stop_reason) = greedy(&server, prompt, most).await;
            for drafter in ["twin", "other"] {
                for count in [1, 8, 64] {
                    let body = json!({"model": "stub", "draft_model": drafter, "prompt": prompt, "max_tokens": most,
                        "count": count});
                    let reply = server.ask(SPECULATE, &body).await;
                    assert_eq!(reply["tokens"], json!(tokens), "{body}: {reply}");
                    assert_eq!(reply["stop_reason"], stop_reason, "{body}: {reply}");
                    assert_eq!(reply["draft_failed"], Value::Null, "{body}: {reply}");
                    let figure = |name: &str| reply[name].as_u64().unwrap();
                    assert!(figure("accepted") <= figure("drafted"), "{body}: {reply}");
                    assert!(figure("accepted") <= tokens.len() as u64, "{body}: {reply}");
                }
            }
        }
    }
    let said = json!({"model": "stub", "prompt": "Once", "temperature": 0, "max_tokens": 100});
    let said = server.ask("/v1/completions", &said).await;
    for mut body in [json!({"prompt": "Once"}), json!({"tokens": vocab::tokens("<s>Once")})] {
        body["model"] = "stub".into();
        body["draft_model"] = "twin".into();
        // Eight tokens and one of the target's own, then the last three and the end.
        let expected = json!({
            "model": "stub", "draft_model": "twin", "tokens": vocab::tokens(REPLY), "text": REPLY, "rounds": 2,
            "drafted": 12, "accepted": 11, "stop_reason": "end",
        });
        let reply = server.ask(SPECULATE, &body).await;
        assert_eq!(reply, expected);
        assert_eq!(reply["text"], said["choices"][0]["text"]);
    }
}

#[tokio::test]
async fn every_token_that_ends_a_reply_ends_it_and_other_hidden_tokens_do_not() {
    let server = with_drafters(ServerConfig::default()).await;
    // With four tokens a draft, the end is the target's own token; with eight, it is drafted.
    for (prompt, count, tokens, text) in [
        ("Bye", 4, " now", " now"),
        ("Bye", 8, " now", " now"),
        ("Hi", 1, "a<|im_start|>b", "ab"),
        ("Hi", 8, "a<|im_start|>b", "ab"),
    ] {
        let body = json!({"model": "stub", "draft_model": "twin", "prompt": prompt, "count": count});
        let reply = server.ask(SPECULATE, &body).await;
        assert_eq!(reply["tokens"], json!(vocab::tokens(tokens)), "{body}: {reply}");
        assert_eq!((&reply["text"], &reply["stop_reason"]), (&json!(text), &json!("end")), "{body}: {reply}");
    }
}

#[tokio::test]
async fn a_reply_ends_with_the_context() {
    let server = with_drafters(ServerConfig::default()).await;
    let prompt = "y".repeat(1018);
    let (tokens, stop_reason) = greedy(&server, &prompt, 5).await;
    for drafter in ["twin", "other"] {
        let reply = server.ask(SPECULATE, &json!({"model": "stub", "draft_model": drafter, "prompt": prompt})).await;
        assert_eq!((&reply["tokens"], &reply["stop_reason"]), (&json!(tokens), &json!(stop_reason)), "{reply}");
    }
}

#[tokio::test]
async fn a_draft_model_that_fails_is_left_out_and_the_reply_is_the_same() {
    let server = with_drafters(ServerConfig::default()).await;
    let prompt = long_prompt();
    let (tokens, stop_reason) = greedy(&server, &prompt, 26).await;
    let body = |drafter: &str| json!({"model": "stub", "draft_model": drafter, "prompt": prompt, "max_tokens": 26});
    let reply = server.ask(SPECULATE, &body("twin")).await;
    assert_eq!((&reply["tokens"], &reply["draft_failed"]), (&json!(tokens), &Value::Null), "{reply}");
    // Its context is full in the middle of the reply.
    let reply = server.ask(SPECULATE, &body("short")).await;
    assert_eq!((&reply["tokens"], &reply["stop_reason"]), (&json!(tokens), &json!(stop_reason)), "{reply}");
    assert!(reply["draft_failed"].as_str().unwrap().contains("the context of short is full at 512"), "{reply}");
    assert!(reply["accepted"].as_u64().unwrap() > 0, "{reply}");
    // It cannot even read the prompt.
    server.faults.on_decode(1, DecodeFault::NoRoom);
    let reply = server.ask(SPECULATE, &body("other")).await;
    assert_eq!(reply["tokens"], json!(tokens), "{reply}");
    assert!(reply["draft_failed"].as_str().unwrap().contains("no room"), "{reply}");
    assert_eq!((&reply["drafted"], &reply["accepted"]), (&json!(0), &json!(0)), "{reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_with_drafts_may_not_take_longer_than_a_request() {
    let config = ServerConfig { request_timeout: Some(Duration::from_secs(1)), ..ServerConfig::default() };
    let server = with_drafters(config).await;
    server.faults.on_decode(1, DecodeFault::Block);
    let body = json!({"model": "stub", "draft_model": "twin", "prompt": "Once"});
    let (answer, ()) = tokio::join!(server.post(SPECULATE, &body), wait_until_held(&server));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (504, &json!("request_timeout")));
    server.faults.release();
}

#[tokio::test]
async fn wrong_bodies_are_refused_by_field() {
    let server = server().await;
    let vocab = server.model().limits().vocab;
    let long = "x".repeat(600);
    let cases: [(&str, Value, &str); 22] = [
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
        (SPECULATE, json!({"prompt": "x"}), "draft_model"),
        (SPECULATE, json!({"draft_model": "stub"}), "prompt"),
        (SPECULATE, json!({"draft_model": "stub", "tokens": []}), "tokens"),
        (SPECULATE, json!({"draft_model": "stub", "tokens": [vocab]}), "tokens[0]"),
        (SPECULATE, json!({"draft_model": "stub", "prompt": "x", "max_tokens": 0}), "max_tokens"),
        (SPECULATE, json!({"draft_model": "stub", "prompt": "x", "max_tokens": 4097}), "max_tokens"),
        (SPECULATE, json!({"draft_model": "stub", "prompt": "x", "count": 0}), "count"),
        (SPECULATE, json!({"draft_model": "stub", "prompt": "x", "count": 65}), "count"),
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
        (SPECULATE, json!({"prompt": "x".repeat(511), "draft_model": "stub"})),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded", "{path}: {}", answer.text);
    }
    for (path, body) in [
        (DRAFT, json!({"model": "nobody", "prompt": "x", "count": 1})),
        (SPECULATE, json!({"model": "nobody", "draft_model": "stub", "prompt": "x"})),
        (SPECULATE, json!({"model": "stub", "draft_model": "nobody", "prompt": "x"})),
    ] {
        let unknown = server.post(path, &body).await;
        assert_eq!(unknown.status, 404, "{body}: {}", unknown.text);
        assert!(unknown.text.contains("nobody"), "{body}: {}", unknown.text);
    }
}
