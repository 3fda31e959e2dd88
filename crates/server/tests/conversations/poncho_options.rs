//! The request field `poncho` as an object, in every dialect: prompts that are only read, rows that a prompt builds on, and
//! texts that are appended to a session.

use std::time::Duration;

use poncho_engine::backend::stub::vocab;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Server, Setup, eventually, with};

const COMPLETIONS: &str = "/v1/completions";

/// A request of each dialect for four tokens.
fn calls(text: &str) -> [(&'static str, Value); 7] {
    let messages = json!([{"role": "user", "content": text}]);
    let short = json!({"num_predict": 4, "temperature": 0});
    [
        ("/v1/chat/completions", json!({"model": "stub", "messages": messages, "max_tokens": 4, "temperature": 0})),
        (COMPLETIONS, json!({"model": "stub", "prompt": text, "max_tokens": 4, "temperature": 0})),
        ("/v1/responses", json!({"model": "stub", "input": text, "max_output_tokens": 4, "temperature": 0})),
        ("/v1/messages", json!({"model": "stub", "messages": messages, "max_tokens": 4, "temperature": 0})),
        ("/api/chat", json!({"model": "stub", "messages": messages, "stream": false, "options": short})),
        ("/api/generate", json!({"model": "stub", "prompt": text, "stream": false, "options": short})),
        ("/api/generate", json!({"model": "stub", "prompt": text, "raw": true, "stream": false, "options": short})),
    ]
}

/// Whether a request takes `poncho.continue`.
fn is_written(path: &str, body: &Value) -> bool {
    path == COMPLETIONS || body["raw"] == true
}

/// Tokens of the reply, where each dialect says it.
fn generated(answer: &Value) -> u64 {
    let usage = &answer["usage"];
    let counts = [&usage["completion_tokens"], &usage["output_tokens"], &answer["eval_count"]];
    counts.into_iter().find_map(Value::as_u64).unwrap_or(0)
}

fn counted(answer: &Value, what: &str) -> u64 {
    answer["poncho"][what].as_u64().unwrap_or_else(|| panic!("{what}: {answer}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_is_only_read_is_found_by_the_next_request_in_every_dialect() {
    let server = Server::plain().await;
    for (number, _) in calls("").iter().enumerate() {
        let (path, body) = calls(&format!("{number} is the number of a prompt that is read ahead"))[number].clone();
        let wish = json!({"poncho": {"prefill_only": true}});
        let read = server.ask(path, &with(body.clone(), &wish)).await;
        assert_eq!(generated(&read), 0, "{path}: {read}");
        // Prompts of one template begin alike; the rest of this one is new.
        assert!(counted(&read, "new_tokens") > 20, "{path}: {read}");
        let prompt = counted(&read, "cached_tokens") + counted(&read, "new_tokens");
        assert_eq!(read["poncho"]["finish_key"].as_str().unwrap().len(), 64, "{path}: {read}");
        let reply = server.ask(path, &with(body, &json!({"poncho": true}))).await;
        assert_eq!(generated(&reply), 4, "{path}: {reply}");
        assert!(counted(&reply, "cached_tokens") + 1 >= prompt, "{path}: {reply}");
        assert!(counted(&reply, "new_tokens") <= 1, "{path}: only the reply is computed: {reply}");
    }
}

#[tokio::test]
async fn a_prompt_that_is_only_read_streams_its_report() {
    let server = Server::plain().await;
    let body = json!({"model": "stub", "prompt": "A prompt that is only read", "poncho": {"prefill_only": true}});
    let chunks = server.stream(COMPLETIONS, &body).await.chunks();
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "");
    assert!(counted(chunks.last().unwrap(), "new_tokens") > 20, "{chunks:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_the_row_that_it_builds_on() {
    let server = Server::start(Setup { parent_wait: PATIENCE, ..Setup::default() }).await;
    let first = vocab::tokens("<s>A first turn that somebody else is about to send");
    let second = [first.as_slice(), &vocab::tokens(" and a second one")].concat();
    let parent = server.model().key_of(&first).to_string();
    let body = |tokens: &[u32]| json!({"model": "stub", "prompt": tokens, "max_tokens": 4, "temperature": 0});
    let child = with(body(&second), &json!({"poncho": {"parent_key": parent}}));
    let waiting = server.ask(COMPLETIONS, &child);
    let row = async {
        eventually("the child is waiting", || server.model().status().queue_depth == 1).await;
        server.ask(COMPLETIONS, &with(body(&first), &json!({"poncho": {"prefill_only": true}}))).await
    };
    let (child, row) = tokio::join!(waiting, row);
    assert_eq!(row["poncho"]["finish_key"], parent.as_str(), "the row has the name that the child knew");
    assert_eq!(row["poncho"]["cached_tokens"], 0, "the child was not computed before: {row}");
    assert!(counted(&child, "cached_tokens") >= u64::try_from(first.len()).unwrap() - 1, "{child}");
    let plain = Server::plain().await.ask(COMPLETIONS, &body(&second)).await;
    assert_eq!(child["choices"][0]["text"], plain["choices"][0]["text"]);
}

#[tokio::test]
async fn a_row_that_never_comes_delays_a_request_and_nothing_else() {
    let wait = Duration::from_millis(50);
    let server = Server::start(Setup { parent_wait: wait, ..Setup::default() }).await;
    for (path, body) in calls("Nobody has sent what comes before this") {
        let started = std::time::Instant::now();
        let orphan = with(body.clone(), &json!({"poncho": {"parent_key": "0".repeat(64)}}));
        let orphan = server.ask(path, &orphan).await;
        assert!(started.elapsed() >= wait, "{path}: it did not wait");
        assert_eq!(generated(&orphan), 4, "{path}: {orphan}");
        assert!(orphan["poncho"]["hit"].is_string(), "{path}: an object implies the report: {orphan}");
    }
}

async fn storyteller() -> Server {
    let replies = [("<s>Once", " upon a day"), ("<s>Once upon a day, said", " the fox</s>")];
    let replies = replies.map(|(prompt, reply)| (prompt.to_owned(), reply.to_owned())).to_vec();
    Server::start(Setup { replies, ..Setup::default() }).await
}

#[tokio::test]
async fn a_text_is_appended_to_what_its_session_holds() {
    let reply = u64::try_from(" upon a day".len()).unwrap();
    let completion = |prompt: Value, poncho: Value| json!({"model": "stub", "prompt": prompt, "temperature": 0, "max_tokens": reply, "session_id": "s", "poncho": poncho});
    let raw = |prompt: &str, poncho: Value| {
        json!({"model": "stub", "prompt": prompt, "raw": true, "stream": false, "session_id": "s", "poncho": poncho,
            "options": {"temperature": 0, "num_predict": reply}})
    };
    let text = |answer: &Value| {
        let texts = [&answer["choices"][0]["text"], &answer["response"]];
        texts.into_iter().find_map(Value::as_str).unwrap().to_owned()
    };
    let appends = json!({"continue": true});
    let tokens = json!(vocab::tokens(", said"));
    for (path, first, second) in [
        (COMPLETIONS, completion(json!("Once"), json!(true)), completion(json!(", said"), appends.clone())),
        (COMPLETIONS, completion(json!("Once"), json!(true)), completion(tokens, appends.clone())),
        ("/api/generate", raw("Once", json!(true)), raw(", said", appends.clone())),
    ] {
        let server = storyteller().await;
        let begun = server.ask(path, &first).await;
        assert_eq!(text(&begun), " upon a day", "{path}: {begun}");
        let held = u64::try_from(vocab::tokens("<s>Once upon a day").len()).unwrap();
        // The reply exists for exactly this text: a mark in its middle, or a missing token, would give another one.
        let appended = server.ask(path, &second).await;
        assert_eq!(text(&appended), " the fox", "{path}: {appended}");
        assert_eq!(appended["poncho"]["hit"], "continuation", "{path}: {appended}");
        assert!(counted(&appended, "cached_tokens") + 1 >= held, "{path}: {appended}");
        let prompt = held + u64::try_from(", said".len()).unwrap();
        let told = [&appended["usage"]["prompt_tokens"], &appended["prompt_eval_count"]];
        assert!(told.into_iter().any(|count| *count == prompt), "{path}: {appended}");
    }
}

#[tokio::test]
async fn a_session_may_be_named_by_the_header() {
    let server = storyteller().await;
    let headers = [("content-type", "application/json"), ("x-poncho-session", "s")];
    let mut texts = Vec::new();
    for (prompt, poncho) in [("Once", json!(false)), (", said", json!({"continue": true}))] {
        let body = json!({"model": "stub", "prompt": prompt, "temperature": 0, "max_tokens": 11, "poncho": poncho});
        let answer = server.send(hyper::Method::POST, COMPLETIONS, &headers, body.to_string().into()).await.json();
        texts.push(answer["choices"][0]["text"].as_str().unwrap().to_owned());
    }
    assert_eq!(texts, [" upon a day", " the fox"]);
}

#[tokio::test]
async fn a_conversation_cannot_be_appended_and_says_so_in_its_dialect() {
    let server = Server::plain().await;
    for (path, body) in calls("Hello") {
        let body = with(body, &json!({"session_id": "s", "poncho": {"continue": true}}));
        let answer = server.post(path, &body).await;
        if is_written(path, &body) {
            assert_eq!(answer.status, 404, "{path}: the session holds nothing: {}", answer.text);
            continue;
        }
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        let error = &answer.json()["error"];
        let message = error.as_str().or(error["message"].as_str()).unwrap();
        assert!(message.starts_with("poncho.continue: ") && message.contains(COMPLETIONS), "{path}: {message}");
        match path {
            "/v1/messages" => assert_eq!(error["type"], "invalid_request_error"),
            path if path.starts_with("/api/") => assert!(error.is_string(), "{path}: {error}"),
            _ => assert_eq!(error["param"], "poncho.continue", "{path}"),
        }
    }
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_by_name() {
    let server = Server::start(Setup { fills_gaps: true, ..Setup::default() }).await;
    let body = json!({"model": "stub", "prompt": "Once", "session_id": "s"});
    for (fields, status, said) in [
        (json!({"poncho": {"prefil_only": true}}), 400, "`prefil_only`, expected one of `prefill_only`, `parent_key`"),
        (json!({"poncho": {"prefill_only": "yes"}}), 400, "poncho.prefill_only"),
        (json!({"poncho": {"parent_key": "abc"}}), 400, "64 lower-case hexadecimal digits"),
        (json!({"poncho": "true"}), 400, "a boolean or an object"),
        (json!({"poncho": {"continue": true}, "session_id": null}), 400, "continue needs a session_id"),
        (json!({"poncho": {"continue": true}}), 404, "holds no state to continue"),
        (json!({"poncho": {"continue": true, "prefill_only": true}}), 400, "prefill_only"),
        (json!({"poncho": {"continue": true, "parent_key": "0".repeat(64)}}), 400, "leave parent_key out"),
        (json!({"poncho": {"continue": true}, "suffix": "end"}), 400, "without suffix"),
    ] {
        let answer = server.post(COMPLETIONS, &with(body.clone(), &fields)).await;
        assert_eq!(answer.status, status, "{fields}: {}", answer.text);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(said), "{fields}: {message}");
    }
    for (path, body) in calls("Hello") {
        let answer = server.post(path, &with(body, &json!({"poncho": {"parent": "x"}}))).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        assert!(answer.text.contains("parent_key"), "{path}: {}", answer.text);
    }
}
