//! What clients ask a server before and beside their prompts: context length, capabilities, slots, counts, gaps, ranks.

use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, read, wait_until_held, with};

#[tokio::test]
async fn every_family_finds_the_context_length_of_a_model() {
    let server = Server::plain().await;
    let list = server.get("/v1/models").await.json();
    let model = &list["data"][0];
    for field in ["context_length", "max_context_length", "max_model_len", "max_input_tokens"] {
        assert_eq!(model[field], 4096, "{field}: {model}");
    }
    assert_eq!(model["meta"]["n_ctx"], 4096);
    assert_eq!(
        (&list["has_more"], &list["first_id"], &model["type"]),
        (&json!(false), &json!("stub"), &json!("model"))
    );
    let can: Vec<&str> = model["capabilities"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(can.contains(&"completion") && can.contains(&"tools"), "{can:?}");
    let shown = server.ask("/api/show", &json!({"model": "stub"})).await;
    assert_eq!(model["capabilities"], shown["capabilities"], "the same words in both families");
    let parameters = model["supported_parameters"].as_array().unwrap();
    assert!(parameters.contains(&json!("tools")), "{parameters:?}");
    let props = server.get("/props").await.json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 4096);
    assert_eq!((&props["total_slots"], &props["model_path"]), (&json!(8), &json!("stub")));
    assert_eq!(props["modalities"], json!({"vision": false, "audio": false}));
    assert!(props["chat_template"].as_str().is_some_and(|template| !template.is_empty()));
    assert_eq!(server.get("/props?model=missing").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_shows_how_far_its_request_is() {
    let server = Server::plain().await;
    let idle = server.get("/slots").await.json();
    assert_eq!(idle.as_array().unwrap().len(), 8);
    assert!(idle.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false && slot["n_ctx"] == 4096));
    server.faults.on_decode(2, DecodeFault::Block);
    let body = with(asking(&"long prompt ".repeat(100)), &json!({"max_tokens": 2, "stream": true})).to_string();
    let headers = [("content-type", "application/json")];
    let (response, ()) = tokio::join!(
        server.open(Method::POST, "/v1/chat/completions", &headers, body.into()),
        wait_until_held(&server)
    );
    let busy = server.get("/slots").await.json();
    assert_eq!((busy.as_array().unwrap().len(), &busy[0]["is_processing"]), (8, &json!(true)), "{busy}");
    assert!(busy[0]["n_prompt_tokens"].as_u64().unwrap() > 512, "{busy}");
    server.faults.release();
    read(response).await;
}

#[tokio::test]
async fn every_dialect_counts_what_it_would_send() {
    let server = Server::plain().await;
    let (messages, limit) = (json!([{"role": "user", "content": "How long is this?"}]), 1);
    let chat = json!({"model": "stub", "messages": messages, "max_tokens": limit});
    let response = json!({"model": "stub", "input": "How long is this?", "max_output_tokens": limit});
    let count = |answer: &Value| answer["input_tokens"].as_u64().unwrap();
    let used = server.chat(&chat).await["usage"]["prompt_tokens"].as_u64().unwrap();
    let counted = server.ask("/v1/chat/completions/input_tokens", &chat).await;
    assert_eq!((count(&counted), &counted["context_length"]), (used, &json!(4096)));
    let used = server.ask("/v1/responses", &response).await["usage"]["input_tokens"].as_u64().unwrap();
    let counted = server.ask("/v1/responses/input_tokens", &response).await;
    assert_eq!((count(&counted), &counted["object"]), (used, &json!("response.input_tokens")));
    let body = json!({"model": "stub", "messages": messages, "stream": false, "options": {"num_predict": 1}});
    let used = server.ask("/api/chat", &body).await["prompt_eval_count"].as_u64().unwrap();
    assert_eq!(count(&server.ask("/api/chat/input_tokens", &body).await), used);
    let usage = server.ask("/v1/messages", &chat).await["usage"].clone();
    let parts = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let used: u64 = parts.iter().map(|part| usage[part].as_u64().unwrap()).sum();
    assert_eq!(count(&server.ask("/v1/messages/count_tokens", &chat).await), used);
    let refused = server.post("/api/chat/input_tokens", &json!({"model": "stub", "messages": [5]})).await;
    assert_eq!((refused.status, refused.json()["error"].is_string()), (400, true), "Ollama's error: {}", refused.text);
}

#[tokio::test]
async fn documents_come_back_in_the_order_of_their_scores() {
    let server = Server::plain().await;
    let body = json!({"query": "alpha", "documents": ["beta", "alpha", {"text": "gamma"}], "return_documents": true});
    for path in ["/rerank", "/v1/rerank"] {
        let answer = server.ask(path, &body).await;
        let results = answer["results"].as_array().unwrap();
        assert_eq!((results.len(), &results[0]["index"]), (3, &json!(1)), "{answer}");
        assert!((results[0]["relevance_score"].as_f64().unwrap() - 1.0).abs() < 1e-3, "the query itself: {answer}");
        let scores: Vec<f64> = results.iter().map(|result| result["relevance_score"].as_f64().unwrap()).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        assert_eq!(results[0]["document"], json!({"text": "alpha"}));
        assert!(answer["usage"]["total_tokens"].as_u64().unwrap() > 0);
    }
    let best = server.ask("/v1/rerank", &with(body.clone(), &json!({"top_n": 1, "return_documents": false}))).await;
    assert_eq!(best["results"].as_array().unwrap().len(), 1);
    assert!(best["results"][0].get("document").is_none());
    for wrong in [json!({"documents": []}), json!({"query": ""}), json!({"documents": ["a", ""]})] {
        assert_eq!(server.post("/rerank", &with(body.clone(), &wrong)).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn a_gap_is_filled_as_editors_ask_for_it() {
    let server = Server::start(Setup { fills_gaps: true, ..Setup::default() }).await;
    let body = json!({
        "input_prefix": "fn a() {", "prompt": "  ", "input_suffix": "}", "n_predict": 3, "temperature": 0,
        "input_extra": [{"filename": "b.rs", "text": "fn b() {}"}], "cache_prompt": true, "samplers": ["top_k"]
    });
    let whole = server.ask("/infill", &body).await;
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["tokens_predicted"]),
        (&json!(true), &json!("limit"), &json!(3))
    );
    assert_eq!(whole["generation_settings"]["n_ctx"], 4096);
    assert_eq!(whole["poncho"]["warnings"][0]["field"], "samplers", "{whole}");
    let events: Vec<Value> =
        server.stream("/infill", &body).await.events().iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(json!(text), whole["content"], "the pieces add up");
    assert_eq!(events.last().unwrap()["stop"], true);
    let warming = json!({"input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "input_extra": [
        {"filename": "c.rs", "text": "fn c() { a(); b(); a(); b(); a(); b(); }"}]});
    for stream in [false, true] {
        let answer = server.post("/infill", &with(warming.clone(), &json!({"stream": stream}))).await;
        assert_eq!(answer.status, 200, "editors warm the cache like this: {}", answer.text);
    }
    let warmed = server.ask("/infill", &warming).await;
    assert_eq!((&warmed["content"], &warmed["tokens_predicted"]), (&json!(""), &json!(0)));
    assert!(warmed["timings"]["cache_n"].as_u64().unwrap() > 40, "{warmed}");
    let without = Server::plain().await.post("/infill", &body).await;
    assert_eq!(without.status, 400, "a model without marks refuses: {}", without.text);
}
