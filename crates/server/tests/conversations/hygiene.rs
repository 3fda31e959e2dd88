//! Prefix hygiene over the wire: what clients change on every request costs no cached token, and replies report what was done.

use poncho_api::{ChatSettings, HygieneRule};
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, with};

/// A request as a coding agent sends it; the two numbers change every time.
fn request(number: u32, tools: &[&str]) -> Value {
    let system = format!(
        "x-anthropic-billing-header: cch={number};\nYou are an agent.\nCurrent time: 2025-11-15 06:42:{number}\nDo well."
    );
    let tools: Vec<Value> = tools.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
    let messages =
        json!([{"role": "system", "content": system}, {"role": "user", "content": "It is 2025-11-15 06:42:59."}]);
    with(
        asking(""),
        &json!({"messages": messages, "tools": tools, "poncho": true, "max_tokens": 4, "ignore_eos": true}),
    )
}

#[tokio::test]
async fn volatile_parts_cost_nothing() {
    let server = Server::plain().await;
    let first = server.chat(&request(10, &["write", "read"])).await;
    let done = json!([{"rule": "billing_header", "places": 1}, {"rule": "clock", "places": 1}, {"rule": "tool_order", "places": 2}]);
    assert_eq!(first["poncho"]["hygiene"], done);
    let second = server.chat(&request(25, &["read", "write"])).await;
    let (prompt, read) =
        (second["usage"]["prompt_tokens"].as_u64().unwrap(), second["poncho"]["cached_tokens"].as_u64().unwrap());
    assert!(read + 1 >= prompt, "{read} of {prompt}");
    let rendered = server.ask("/apply-template", &request(1, &[])).await;
    assert!(rendered["prompt"].as_str().unwrap().contains("user\nIt is 2025-11-15 06:42:59."), "{rendered}");
    let chunks = server.stream("/v1/chat/completions", &request(31, &["read"])).await.chunks();
    assert_eq!(chunks.last().unwrap()["poncho"]["hygiene"][0]["rule"], "billing_header");
    let calm = server.chat(&with(asking("Hi"), &json!({"poncho": true, "max_tokens": 1}))).await;
    assert_eq!(calm["poncho"].get("hygiene"), None);
}

#[tokio::test]
async fn rules_are_listed_and_can_be_switched_off() {
    for (on, header, clock) in
        [(vec![], true, true), (vec![HygieneRule::Clock], true, false), (HygieneRule::ALL.to_vec(), false, false)]
    {
        let chat = ChatSettings { hygiene: on.clone(), ..ChatSettings::default() };
        let server = Server::start(Setup { chat, ..Setup::default() }).await;
        let prompt = server.ask("/apply-template", &request(10, &[])).await["prompt"].as_str().unwrap().to_owned();
        assert_eq!((prompt.contains("billing"), prompt.contains("06:42:10")), (header, clock));
        let rules = server.get("/api/hygiene").await.json()["rules"].as_array().unwrap().clone();
        for rule in HygieneRule::ALL {
            let listed = rules.iter().find(|listed| listed["rule"] == rule.as_str()).unwrap();
            assert_eq!(listed["on"], on.contains(&rule));
            assert!(listed["what"].is_string() && listed["before"] != listed["after"]);
        }
    }
}
