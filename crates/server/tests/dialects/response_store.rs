//! Stored responses: read, listed, deleted, gone on from; and those that are not stored.

use hyper::Method;
use serde_json::{Value, json};

use crate::dialects::responses::{PATH, asking};
use crate::support::{Server, Setup, rendered, with};

/// A conversation of two turns, scripted.
async fn server() -> Server {
    let second =
        format!("{}Hi.<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n", rendered("Hello"));
    let changed = second.replace("<s>", "<s><|im_start|>system\nBe rude.<|im_end|>\n");
    let third = format!("{second}Bye.<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n");
    let kind = rendered("Hello").replace("<s>", "<s><|im_start|>system\nBe kind.<|im_end|>\n");
    let replies = [
        (rendered("Hello"), "Hi.<|im_end|>"),
        (kind, "Hi.<|im_end|>"),
        (second, "Bye.<|im_end|>"),
        (changed, "Go.<|im_end|>"),
        (third, "Nothing.<|im_end|>"),
    ];
    let replies = replies.map(|(prompt, reply)| (prompt, reply.to_owned())).to_vec();
    Server::start(Setup { replies, ..Setup::default() }).await
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

fn path(response: &Value, rest: &str) -> String {
    format!("{PATH}/{}{rest}", response["id"].as_str().unwrap())
}

fn after(response: &Value, input: &str) -> Value {
    with(asking(&json!(input)), &json!({"previous_response_id": response["id"]}))
}

#[tokio::test]
async fn a_response_is_read_again_as_it_was_sent_until_it_is_deleted() {
    let server = server().await;
    let made = server.ask(PATH, &asking(&json!("Hello"))).await;
    assert_eq!(server.get(&path(&made, "?include[]=message.output_text.logprobs")).await.json(), made);
    let streamed =
        server.stream(PATH, &asking(&json!("Hello"))).await.named_events().pop().unwrap()["response"].clone();
    assert_eq!(server.get(&path(&streamed, "")).await.json(), streamed);
    let again = server.get(&path(&made, "?stream=true")).await;
    assert_eq!((again.status, &again.json()["error"]["param"]), (400, &json!("stream")));
    let deleted = server.send(Method::DELETE, &path(&made, ""), &[], Vec::new()).await;
    assert_eq!(
        (deleted.status, deleted.json()),
        (200, json!({"id": made["id"], "object": "response", "deleted": true}))
    );
    let gone = [
        server.get(&path(&made, "")).await,
        server.get(&path(&made, "/input_items")).await,
        server.send(Method::DELETE, &path(&made, ""), &[], Vec::new()).await,
        server.send(Method::POST, &path(&made, "/cancel"), &[], Vec::new()).await,
    ];
    for answer in gone {
        assert_eq!(answer.status, 404, "{}", answer.text);
        let error = &answer.json()["error"];
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &json!("id")));
        assert!(error["message"].as_str().unwrap().contains(made["id"].as_str().unwrap()), "{error}");
    }
    let cancelled = server.send(Method::POST, &path(&streamed, "/cancel"), &[], Vec::new()).await;
    assert_eq!(cancelled.status, 400);
    assert!(cancelled.text.contains("background"), "{}", cancelled.text);
}

#[tokio::test]
async fn a_conversation_goes_on_from_what_is_stored() {
    let server = server().await;
    let first = server.ask(PATH, &with(asking(&json!("Hello")), &json!({"instructions": "Be kind."}))).await;
    assert_eq!(text(&first), "Hi.");
    let second = server.ask(PATH, &after(&first, "And now?")).await;
    assert_eq!(
        (text(&second), &second["previous_response_id"]),
        ("Bye.", &first["id"]),
        "instructions are not carried over"
    );
    let rude = server.ask(PATH, &with(after(&first, "And now?"), &json!({"instructions": "Be rude."}))).await;
    assert_eq!(text(&rude), "Go.");
    // An earlier response can go without breaking the later ones.
    server.send(Method::DELETE, &path(&first, ""), &[], Vec::new()).await;
    let third = server.ask(PATH, &after(&second, "What?")).await;
    assert_eq!(text(&third), "Nothing.");
    assert!(third["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 40, "{}", third["usage"]);
    let streamed = server.stream(PATH, &after(&second, "What?")).await.named_events().pop().unwrap();
    assert_eq!(text(&streamed["response"]), "Nothing.");
}

#[tokio::test]
async fn what_is_not_stored_is_not_found() {
    let server = server().await;
    let made = server.ask(PATH, &with(asking(&json!("Hello")), &json!({"store": false}))).await;
    assert_eq!((&made["store"], server.get(&path(&made, "")).await.status), (&json!(false), 404));
    for body in [after(&made, "And now?"), with(asking(&json!("x")), &json!({"previous_response_id": "../etc/passwd"}))]
    {
        let refused = server.post(PATH, &body).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (400, &json!("previous_response_not_found")), "{}", refused.text);
        assert_eq!(error["param"], "previous_response_id");
    }
    let item = json!([{"type": "item_reference", "id": made["output"][0]["id"]}]);
    let refused = server.post(PATH, &asking(&item)).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (404, &json!("input")), "{}", refused.text);
}

#[tokio::test]
async fn the_items_of_the_input_are_listed_page_by_page() {
    let server = server().await;
    let first = server.ask(PATH, &asking(&json!("Hello"))).await;
    let made = server.ask(PATH, &after(&first, "And now?")).await;
    let list = async |query: &str| server.get(&path(&made, &format!("/input_items{query}"))).await;
    let all = list("?order=asc").await.json();
    assert_eq!((&all["object"], &all["has_more"]), (&json!("list"), &json!(false)));
    let items = all["data"].as_array().unwrap();
    assert_eq!(items.len(), 3, "the earlier turn, and the new message");
    let message = json!({"id": items[0]["id"], "type": "message", "role": "user", "status": "completed",
        "content": [{"type": "input_text", "text": "Hello"}]});
    assert_eq!((&items[0], &items[1]), (&message, &first["output"][0]));
    assert_eq!((&all["first_id"], &all["last_id"]), (&items[0]["id"], &items[2]["id"]));
    let newest = list("?limit=1").await.json();
    assert_eq!((&newest["data"][0], &newest["has_more"]), (&items[2], &json!(true)));
    let next = list(&format!("?limit=2&after={}", newest["last_id"].as_str().unwrap())).await.json();
    assert_eq!((&next["data"], &next["has_more"]), (&json!([items[1], items[0]]), &json!(false)));
    let end = list(&format!("?after={}", items[0]["id"].as_str().unwrap())).await.json();
    assert_eq!((&end["data"], &end["first_id"], &end["has_more"]), (&json!([]), &Value::Null, &json!(false)));
    for (query, param) in
        [("?limit=0", "limit"), ("?limit=101", "limit"), ("?order=up", "order"), ("?after=x", "after")]
    {
        let refused = list(query).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)), "{}", refused.text);
    }
}

#[tokio::test]
async fn a_conversation_that_is_too_long_is_refused_or_loses_its_oldest_turns() {
    let system = "<s><|im_start|>system\nBe kind.<|im_end|>\n";
    let last = format!("{system}<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    let middle = format!("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\nm<|im_end|>\n", "m".repeat(1500));
    let both = last.replace(system, &format!("{system}{middle}"));
    let replies = vec![(both, "Two.<|im_end|>".to_owned()), (last, "One.<|im_end|>".to_owned())];
    let server = Server::start(Setup { replies, ..Setup::default() }).await;
    let turns = |letters: &[(char, usize)]| {
        let mut items = Vec::new();
        for (letter, count) in letters {
            items.push(json!({"role": "user", "content": letter.to_string().repeat(*count)}));
            items.push(json!({"role": "assistant", "content": letter.to_string()}));
        }
        items.push(json!({"role": "user", "content": "Hello"}));
        with(asking(&json!(items)), &json!({"instructions": "Be kind."}))
    };
    let long = turns(&[('a', 1500), ('b', 2700), ('m', 1500)]);
    let refused = server.post(PATH, &long).await;
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    let auto = |body: Value| with(body, &json!({"truncation": "auto"}));
    assert_eq!(text(&server.ask(PATH, &auto(long)).await), "Two.", "no more is left out than must be");
    assert_eq!(text(&server.ask(PATH, &auto(turns(&[('a', 4000), ('b', 4090)]))).await), "One.");
    let hopeless = with(auto(asking(&json!("x".repeat(5000)))), &json!({}));
    assert_eq!(server.post(PATH, &hopeless).await.status, 400);
}
