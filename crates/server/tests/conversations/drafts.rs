//! Drafts over HTTP: the setting of a request, what the `poncho` object reports, and the metrics.

use poncho_engine::Drafts;
use poncho_engine::backend::MemoryKind;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, eventually, with};

fn drafting() -> Setup {
    Setup { drafts: Drafts::Auto, ..Setup::default() }
}

fn long(poncho: &Value) -> Value {
    with(
        asking("Tell me a story that you have told before"),
        &json!({
            "max_tokens": 60, "temperature": 0, "ignore_eos": true, "poncho": poncho,
        }),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_was_given_before_takes_fewer_steps_and_says_so() {
    let server = Server::start(drafting()).await;
    let first = server.chat(&long(&json!(true))).await;
    let model = server.model();
    eventually("an index of the reply", || model.status().drafts.index_tokens > 60).await;
    let again = server.chat(&long(&json!(true))).await;
    let content = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(content(&again), content(&first));
    let drafts = &again["poncho"]["drafts"];
    assert!(drafts["accepted"].as_u64().unwrap() > 30 && drafts["drafted"].as_u64() >= drafts["accepted"].as_u64());
    assert!(drafts["tokens_per_step"].as_f64().unwrap() > 2.0, "{again}");
    for source in ["off", "context"] {
        let without = server.chat(&long(&json!({"drafts": source}))).await;
        assert_eq!(content(&without), content(&first));
        let accepted = without["poncho"]["drafts"]["accepted"].as_u64().unwrap_or(0);
        assert!(accepted < 10, "{source}: letters that repeat by chance: {without}");
    }
    eventually("the end of all", || model.status().active == 0).await;
    let status = model.status().drafts;
    let page = server.get("/metrics").await.text;
    for (name, least) in [("drafted_tokens_total", status.drafted), ("accepted_tokens_total", status.accepted)] {
        assert!(
            least > 30 && page.contains(&format!("poncho_model_{name}{{model=\"stub\"}} {least}")),
            "{name}: {page}"
        );
    }
    assert!(!page.contains("poncho_model_drafts_off{"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_drafts_saved_is_the_same_in_all_reports() {
    let server = Server::start(drafting()).await;
    let model = server.model();
    let mut saved = 0.0;
    for time in 0..3 {
        let answer = server.chat(&long(&json!(true))).await;
        eventually("an index of the reply", || model.status().drafts.index_tokens > 60).await;
        let drafts = &answer["poncho"]["drafts"];
        saved += drafts["saved_ms"].as_f64().unwrap_or(0.0);
        assert!(time == 0 || drafts["saved_ms"].is_f64(), "{answer}");
        let recorded = server.get("/api/requests").await.json();
        assert_eq!(recorded["requests"][time]["drafts"], *drafts, "{recorded}");
    }
    let system = server.get("/api/system").await.json();
    let sums = &system["models"][0]["status"]["drafts"];
    // Replies without a guess report nothing, and may have waited for a step after one of another reply.
    let all = sums["saved_seconds"].as_f64().unwrap();
    assert!((all - saved / 1000.0).abs() < 0.001, "{saved} ms in {sums}");
    assert!(all != 0.0 && sums["off"].is_null() && sums["tokens_per_step"].as_f64().unwrap() > 1.5, "{sums}");
    let page = server.get("/metrics").await.text;
    assert!(page.contains(&format!("poncho_model_draft_saved_seconds{{model=\"stub\"}} {all}\n")), "{page}");
}

#[tokio::test]
async fn an_unknown_source_is_refused_and_a_model_without_drafts_says_why() {
    let server = Server::start(Setup { memory: MemoryKind::Recurrent, ..drafting() }).await;
    let refused = server.post("/v1/chat/completions", &long(&json!({"drafts": "most"}))).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text.contains("`auto`, `off`, `context`, `stored`"), "{}", refused.text);
    server.chat(&long(&json!({"drafts": "stored"}))).await;
    let page = server.get("/metrics").await.text;
    assert!(page.contains("poncho_model_drafts_off{model=\"stub\",reason=\"memory\"} 1"), "{page}");
    let system = server.get("/api/system").await.json();
    let reason = system["models"][0]["status"]["drafts"]["off"].as_str().unwrap();
    assert!(reason.contains("running state"), "{system}");
}
