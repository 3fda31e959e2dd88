//! Chat completions: whole answers and streams, thinking, structured output, sampling fields, sessions, usage.

use std::time::Duration;

use poncho_engine::Reasoning;
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::DecodeFault;
use serde_json::{Value, json};

use crate::support::{Server, Setup, asking, eventually, joined, rendered, wait_until_held, with};

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_question_gets_a_whole_answer() {
    let server = Server::saying("Hi", "Hello there<|im_end|>").await;
    let answer = server.chat(&asking("Hi")).await;
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((answer["object"].as_str(), answer["model"].as_str()), (Some("chat.completion"), Some("stub")));
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("fp_"));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "Hello there", "refusal": null}));
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("stop")));
    assert_eq!(choice["logprobs"], Value::Null);
    // Byte tokens: BOS, the marks, and one token for each byte.
    let prompt = 1 + "user\nHi\n".len() + "assistant\n".len() + 3;
    assert_eq!(answer["usage"]["prompt_tokens"], prompt);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let completion = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(answer["usage"]["total_tokens"], prompt as u64 + completion);
    assert_eq!(answer.get("poncho"), None, "nobody asked for it");
}

#[tokio::test]
async fn the_second_time_the_prompt_comes_from_the_cache() {
    let server = Server::saying("Hi", "Hello<|im_end|>").await;
    let first = server.chat(&with(asking("Hi"), &json!({"poncho": true}))).await;
    assert_eq!((&first["poncho"]["hit"], &first["poncho"]["cached_tokens"]), (&json!("cold"), &json!(0)));
    assert!(first["poncho"]["prefill_ms"].is_number());
    assert_eq!(first["poncho"]["finish_key"].as_str().map(str::len), Some(64));
    let body = asking("Hi").to_string().into_bytes();
    let headers = [("content-type", "application/json"), ("x-poncho", "1")];
    let second = server.send(hyper::Method::POST, PATH, &headers, body).await.json();
    assert_ne!(second["poncho"]["hit"], "cold");
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached + 1 >= prompt && cached <= prompt, "{cached} of {prompt}");
    assert_eq!(second["choices"], first["choices"]);
}

#[tokio::test]
async fn a_stream_adds_up_to_the_whole_answer() {
    let server = Server::saying("Hi", "Héllo there<|im_end|>").await;
    let whole = server.chat(&asking("Hi")).await;
    let chunks = server.stream(PATH, &asking("Hi")).await.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(joined(&chunks, 0, "content"), whole["choices"][0]["message"]["content"].as_str().unwrap());
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!((&last["choices"][0]["finish_reason"], &last["choices"][0]["delta"]), (&json!("stop"), &json!({})));
    assert!(others.iter().all(|chunk| chunk["choices"][0]["finish_reason"].is_null()));
    for chunk in &chunks {
        assert_eq!((&chunk["object"], &chunk["id"]), (&json!("chat.completion.chunk"), &chunks[0]["id"]));
        assert_eq!((chunk.get("usage"), chunk.get("poncho")), (None, None), "nobody asked for it");
    }
}

#[tokio::test]
async fn a_stream_tells_its_usage_when_asked() {
    let server = Server::saying("Hi", "Hello<|im_end|>").await;
    let body = with(asking("Hi"), &json!({"stream_options": {"include_usage": true}, "poncho": true}));
    let chunks = server.stream(PATH, &body).await.chunks();
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(
        last["usage"]["prompt_tokens"].as_u64().unwrap() > 0
            && last["usage"]["completion_tokens"].as_u64().unwrap() > 0
    );
    assert_eq!(last["poncho"]["hit"], "cold");
    assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null) && chunk.get("poncho").is_none()));
    let without = server.stream(PATH, &with(asking("Hi"), &json!({"poncho": true}))).await.chunks();
    assert_eq!(without.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert!(without.last().unwrap()["poncho"]["cached_tokens"].as_u64().unwrap() > 0, "it comes with the last chunk");
}

#[tokio::test]
async fn thinking_is_told_apart() {
    let server = Server::start(Setup {
        replies: vec![
            (rendered("Why?"), "<think>let me see</think>Because.<|im_end|>".to_owned()),
            (rendered("Why?") + "<think>\n\n</think>\n\n", "At once.<|im_end|>".to_owned()),
        ],
        ..Setup::default()
    })
    .await;
    let message = &server.chat(&asking("Why?")).await["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("let me see"), &json!("Because.")));
    let chunks = server.stream(PATH, &asking("Why?")).await.chunks();
    assert_eq!(joined(&chunks, 0, "reasoning_content"), "let me see");
    assert_eq!(joined(&chunks, 0, "content"), "Because.");
    for off in [json!({"chat_template_kwargs": {"enable_thinking": false}}), json!({"reasoning_effort": "none"})] {
        let message = &server.chat(&with(asking("Why?"), &off)).await["choices"][0]["message"];
        assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!("At once.")));
    }
}

/// The operator's choice stands for requests that say nothing, and only for those.
#[tokio::test]
async fn the_operator_turns_thinking_off_and_a_request_turns_it_on() {
    let server = Server::start(Setup {
        replies: vec![
            (rendered("Why?"), "<think>let me see</think>Because.<|im_end|>".to_owned()),
            (rendered("Why?") + "<think>\n\n</think>\n\n", "At once.<|im_end|>".to_owned()),
        ],
        reasoning: Reasoning { is_off: true, budget: None },
        ..Setup::default()
    })
    .await;
    let message = &server.chat(&asking("Why?")).await["choices"][0]["message"];
    assert_eq!((message.get("reasoning_content"), &message["content"]), (None, &json!("At once.")));
    let on = json!({"chat_template_kwargs": {"enable_thinking": true}});
    let message = &server.chat(&with(asking("Why?"), &on)).await["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("let me see"), &json!("Because.")));
}

/// The budget of the server closes the block of a request without one.
#[tokio::test]
async fn the_operators_thinking_budget_ends_a_long_thought() {
    let server = Server::start(Setup {
        replies: vec![(rendered("Why?"), "<think>a very long thought indeed</think>Because.<|im_end|>".to_owned())],
        reasoning: Reasoning { is_off: false, budget: Some(6) },
        ..Setup::default()
    })
    .await;
    let message = &server.chat(&asking("Why?")).await["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], json!("a very"), "{message}");
}

#[tokio::test]
async fn roles_and_parts_reach_the_template() {
    let server = Server::plain().await;
    let messages = json!([
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a<|im_end|>"}, {"type": "text", "text": "b"}], "name": "Eve"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
    ]);
    let body = json!({"model": "stub", "messages": messages, "unknown_field": {"is": "ignored"}});
    let answer = server.ask("/apply-template", &body).await;
    let call = r#"{"arguments":"{\"x\": 1}","name":"f"}"#;
    let expected = format!(
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\na<|im_end|>b<|im_end|>\n<|im_start|>assistant\n\
         <tool_call>{call}</tool_call><|im_end|>\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(answer["prompt"], expected);
    let ends = answer["tokens"].as_array().unwrap().iter().filter(|token| **token == 260).count();
    assert_eq!(ends, 4, "the mark in the user's text is not a token");
    assert_eq!(answer["boundaries"], json!([]), "a model that can be cut needs none");
    server.chat(&with(body, &json!({"max_tokens": 2}))).await;
}

#[tokio::test]
async fn models_that_resume_at_boundaries_are_told_where_messages_end() {
    let server = Server::start(Setup { memory: MemoryKind::Recurrent, ..Setup::default() }).await;
    let messages = json!([{"role": "system", "content": "abc"}, {"role": "user", "content": "de"}]);
    let answer = server.ask("/apply-template", &json!({"messages": messages})).await;
    let system = 1 + 1 + "system\nabc".len() + 1 + 1;
    let user = system + 1 + "user\nde".len() + 1 + 1;
    assert_eq!(answer["boundaries"], json!([system, user]));
    // The next conversation with the same instructions starts from their end.
    let ask = |text: &str| {
        json!({"model": "stub", "temperature": 0, "max_tokens": 4, "ignore_eos": true, "poncho": true, "messages": [
            {"role": "system", "content": "Always answer in rhymes, whatever is asked."}, {"role": "user", "content": text}]})
    };
    server.chat(&ask("one")).await;
    let second = server.chat(&ask("two")).await;
    assert!(second["poncho"]["cached_tokens"].as_u64().unwrap() > 40, "{second}");
}

#[tokio::test]
async fn output_follows_a_schema() {
    let server = Server::plain().await;
    let schema = json!({"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "ok": {"type": "boolean"}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "pet", "strict": true, "schema": schema}});
    let body = with(asking("A pet, please"), &json!({"response_format": format}));
    let whole = server.chat(&body).await;
    let content = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let pet: Value = serde_json::from_str(content).unwrap();
    assert!(pet["ok"].is_boolean() && (pet["kind"] == "cat" || pet["kind"] == "dog"), "{pet}");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(joined(&server.stream(PATH, &body).await.chunks(), 0, "content"), content);
    let object = with(asking("An object"), &json!({"response_format": {"type": "json_object"}}));
    assert_eq!(server.chat(&object).await["choices"][0]["message"]["content"], "{}");
    let text = with(asking("A text"), &json!({"response_format": {"type": "text"}, "max_tokens": 3}));
    assert_eq!(server.chat(&text).await["choices"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn several_replies_run_at_once() {
    let server = Server::plain().await;
    let fields = json!({"n": 3, "seed": 11, "temperature": 1.5, "max_tokens": 12, "ignore_eos": true});
    let body = with(asking("Three, please"), &fields);
    let answer = server.chat(&body).await;
    let texts: Vec<&Value> =
        answer["choices"].as_array().unwrap().iter().map(|choice| &choice["message"]["content"]).collect();
    assert_eq!(texts.len(), 3);
    assert!(texts[0] != texts[1] && texts[1] != texts[2], "seeds differ: {texts:?}");
    assert_eq!(answer["usage"]["completion_tokens"], 36);
    assert_eq!(answer["choices"][2]["index"], 2);
    let second = server.chat(&with(body.clone(), &json!({"n": 1, "seed": 12}))).await;
    assert_eq!(&second["choices"][0]["message"]["content"], texts[1], "the second reply has the next seed");
    let chunks = server.stream(PATH, &with(body, &json!({"stream_options": {"include_usage": true}}))).await.chunks();
    for (index, text) in (0..).zip(&texts) {
        assert_eq!(joined(&chunks, index, "content"), text.as_str().unwrap());
    }
    let ends = chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"] == "length").count();
    assert_eq!((ends, &chunks.last().unwrap()["usage"]["completion_tokens"]), (3, &json!(36)));
}

#[tokio::test]
async fn log_probabilities_come_with_their_tokens() {
    let server = Server::saying("Hi", "abc<|im_end|>").await;
    let body = with(asking("Hi"), &json!({"logprobs": true, "top_logprobs": 2}));
    let whole = server.chat(&body).await;
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let tokens: Vec<&str> = content.iter().map(|entry| entry["token"].as_str().unwrap()).collect();
    assert_eq!(tokens, ["a", "b", "c"], "the end of the turn is not part of the reply");
    for entry in content {
        assert!(entry["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(entry["bytes"], json!(entry["token"].as_str().unwrap().as_bytes()));
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(entry["top_logprobs"][0]["token"], entry["token"], "greedy takes the most likely");
    }
    let chunks = server.stream(PATH, &body).await.chunks();
    let streamed: Vec<&Value> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .map(|entry| &entry["token"])
        .collect();
    assert_eq!(streamed, ["a", "b", "c"]);
    let plain = server.chat(&with(asking("Hi"), &json!({"logprobs": false}))).await;
    assert_eq!(plain["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn limits_and_sampling_are_obeyed() {
    let server = Server::saying("Hi", "one two three<|im_end|>").await;
    let cases = [
        (json!({"max_tokens": 3}), "one", "length"),
        (json!({"max_tokens": 300, "max_completion_tokens": 5}), "one t", "length"),
        (json!({"stop": " two"}), "one", "stop"),
        (json!({"stop": ["nothing", "ee"]}), "one two thr", "stop"),
        (json!({"stop": null, "user": "me", "top_p": 0.5, "top_k": 10, "min_p": 0.1}), "one two three", "stop"),
    ];
    for (fields, content, reason) in cases {
        let answer = server.chat(&with(asking("Hi"), &fields)).await;
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(content), &json!(reason)),
            "{fields}"
        );
        let chunks = server.stream(PATH, &with(asking("Hi"), &fields)).await.chunks();
        assert_eq!(joined(&chunks, 0, "content"), content, "{fields}");
    }
    let banned = with(asking("Hi"), &json!({"logit_bias": {"111": -1000}, "max_tokens": 1}));
    let text = server.chat(&banned).await["choices"][0]["message"]["content"].clone();
    assert_ne!(text, "o", "token 111 is banned");
    let hot = json!({"temperature": 2, "seed": -3, "max_tokens": 8, "ignore_eos": true, "presence_penalty": 1, "frequency_penalty": 0.5});
    let draw = async || server.chat(&with(asking("Hi"), &hot)).await["choices"][0]["message"]["content"].clone();
    assert_eq!(draw().await, draw().await, "a seed draws the same again");
}

#[tokio::test]
async fn a_session_keeps_its_place_and_takes_one_request_at_a_time() {
    let server = Server::plain().await;
    let fields = json!({"session_id": "s", "max_tokens": 6, "ignore_eos": true, "poncho": true});
    server.chat(&with(asking("Hello there"), &fields)).await;
    let next = server.chat(&with(asking("Hello there, again"), &fields)).await;
    assert_eq!(next["poncho"]["hit"], "sticky");
    let model = server.model();
    eventually("the session's rest", || model.status().sessions == 1).await;

    // One decode at a time, so that the first request cannot end before the second one arrives.
    server.faults.on_decode(1, DecodeFault::Block);
    let long = with(asking("Hello"), &json!({"max_tokens": 2000, "ignore_eos": true, "session_id": "s"}));
    let body = asking("Hello").to_string().into_bytes();
    let headers = [("content-type", "application/json"), ("x-poncho-session", "s")];
    let intruder = async {
        wait_until_held(&server).await;
        let mut second = std::pin::pin!(server.send(hyper::Method::POST, PATH, &headers, body));
        let step = async || {
            server.faults.on_decode(1, DecodeFault::Block);
            server.faults.release();
            let faults = server.faults.clone();
            // Short, because it goes on alone when the answer comes first.
            let held = move || faults.wait_until_held(Duration::from_millis(20));
            let _ = tokio::task::spawn_blocking(held).await;
        };
        let answer = loop {
            tokio::select! {
                answer = &mut second => break answer,
                () = step() => {}
            }
        };
        server.faults.clear();
        eventually("the end of the first", || {
            server.faults.release();
            model.status().queue_depth == 0
        })
        .await;
        answer
    };
    let (first, second) = tokio::join!(server.post(PATH, &long), intruder);
    assert_eq!((first.status, second.status), (200, 409), "{}", second.text);
    assert_eq!(second.json()["error"]["code"], "session_busy");
}
