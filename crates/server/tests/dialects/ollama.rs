//! Ollama's generate and chat: whole answers and lines, templates, gaps, contexts, thinking, tools, formats, sessions.

use poncho_engine::backend::stub::vocab;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, rendered, with};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const TIMINGS: [&str; 6] =
    ["eval_count", "eval_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "total_duration"];

fn chatting(user: &str) -> Value {
    json!({"model": "stub", "messages": [{"role": "user", "content": user}], "options": {"temperature": 0}})
}

fn generating(prompt: &str) -> Value {
    json!({"model": "stub", "prompt": prompt, "options": {"temperature": 0}})
}

async fn whole(server: &Server, path: &str, body: &Value) -> Value {
    server.ask(path, &with(body.clone(), &json!({"stream": false}))).await
}

/// The lines of a stream that ended well.
async fn lines(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let answer = server.post(path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.lines()
}

fn joined(lines: &[Value], pointer: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(pointer)?.as_str()).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

async fn scripted(replies: &[(&str, &str)]) -> Server {
    let replies = replies.iter().map(|(prompt, reply)| ((*prompt).to_owned(), (*reply).to_owned())).collect();
    Server::start(Setup { replies, ..Setup::default() }).await
}

#[tokio::test]
async fn a_conversation_gets_a_whole_answer() {
    let server = Server::saying("Hi", "Hello there<|im_end|>").await;
    let answer = whole(&server, CHAT, &chatting("Hi")).await;
    assert_eq!(answer["message"], json!({"role": "assistant", "content": "Hello there"}));
    assert_eq!(
        (&answer["model"], &answer["done"], &answer["done_reason"]),
        (&json!("stub"), &json!(true), &json!("stop"))
    );
    let mut expected = vec!["created_at", "done", "done_reason", "message", "model"];
    expected.extend(TIMINGS);
    expected.sort_unstable();
    assert_eq!(keys(&answer), expected);
    assert_eq!(answer["prompt_eval_count"], 1 + "user\nHi\n".len() + "assistant\n".len() + 3);
    assert_eq!(answer["eval_count"], "Hello there".len() + 1);
    for name in ["total_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(answer[name].as_u64().unwrap() > 0, "{name}");
    }
    assert!(answer["total_duration"].as_u64().unwrap() >= answer["eval_duration"].as_u64().unwrap());
    let created = answer["created_at"].as_str().unwrap();
    assert!(created.starts_with("20") && created.ends_with('Z') && created.len() == 27, "{created}");
}

#[tokio::test]
async fn streams_are_the_default_and_add_up() {
    let server = scripted(&[(&rendered("Hi"), "Héllo there<|im_end|>")]).await;
    for (path, body, text) in [(CHAT, chatting("Hi"), "/message/content"), (GENERATE, generating("Hi"), "/response")] {
        let lines = lines(&server, path, &body).await;
        assert_eq!(joined(&lines, text), "Héllo there");
        let (last, pieces) = lines.split_last().unwrap();
        assert!(!pieces.is_empty());
        for piece in pieces {
            let said = if path == CHAT { "message" } else { "response" };
            let mut expected = ["created_at", "done", "model", said];
            expected.sort_unstable();
            assert_eq!(keys(piece), expected);
            assert_eq!((&piece["done"], &piece["model"]), (&json!(false), &json!("stub")));
            assert_ne!(piece.pointer(text).unwrap(), "", "no line says nothing");
        }
        assert_eq!(last.pointer(text).unwrap(), "", "the last line has only the facts");
        assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
        assert!(TIMINGS.iter().all(|name| last[*name].is_u64()), "{last}");
        assert_eq!(last.get("context").is_some(), path == GENERATE);
    }
    assert_eq!(whole(&server, GENERATE, &generating("Hi")).await["response"], "Héllo there");
}

#[tokio::test]
async fn a_prompt_can_bring_a_system_message() {
    let prompt = format!("<s><|im_start|>system\nBe kind.<|im_end|>\n{}", &rendered("Hi")[3..]);
    let server = scripted(&[(&prompt, "Dear!<|im_end|>")]).await;
    let body = with(generating("Hi"), &json!({"system": "Be kind.", "unknown": {"is": "ignored"}, "shift": true}));
    assert_eq!(whole(&server, GENERATE, &body).await["response"], "Dear!");
}

#[tokio::test]
async fn a_context_is_gone_on_with() {
    let first = rendered("Hi") + "Hello<|im_end|>";
    let second = first.clone() + &rendered("Again")[3..];
    let server = scripted(&[(&rendered("Hi"), "Hello<|im_end|>"), (&second, "Hello again<|im_end|>")]).await;
    let answer = whole(&server, GENERATE, &generating("Hi")).await;
    assert_eq!(answer["context"], json!(vocab::tokens(&first)));
    let streamed = lines(&server, GENERATE, &generating("Hi")).await;
    assert_eq!(streamed.last().unwrap()["context"], answer["context"]);
    let body = with(generating("Again"), &json!({"context": answer["context"], "poncho": true}));
    let next = whole(&server, GENERATE, &body).await;
    assert_eq!(next["response"], "Hello again", "there is one start of the text");
    assert_eq!(next["prompt_eval_count"], vocab::tokens(&second).len());
    assert!(next["poncho"]["cached_tokens"].as_u64().unwrap() > 0, "the state of the first reply is used: {next}");
    let wrong = server.post(GENERATE, &with(generating("x"), &json!({"context": [97, 9999]}))).await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.json()["error"].as_str().unwrap().starts_with("context[1]: "), "{}", wrong.text);
}

#[tokio::test]
async fn a_raw_prompt_is_used_as_it_is() {
    let server = scripted(&[("<s><|im_start|>Once", " upon</s>")]).await;
    let body = with(generating("<|im_start|>Once"), &json!({"raw": true}));
    let answer = whole(&server, GENERATE, &body).await;
    assert_eq!((&answer["response"], answer.get("context")), (&json!(" upon"), None));
    for (field, value) in [("system", json!("x")), ("template", json!("{{ .Prompt }}")), ("context", json!([97]))] {
        let refused = server.post(GENERATE, &with(body.clone(), &json!({field: value}))).await;
        assert_eq!(refused.status, 400, "{field}");
        let said = refused.json()["error"].as_str().unwrap().to_owned();
        assert_eq!(said, format!("{field}: raw mode does not support template, system, or context"));
    }
}

#[tokio::test]
async fn a_template_of_the_request_is_used() {
    let server = scripted(&[("<s><|im_start|>S|Q: <|eot|>", "fine</s>")]).await;
    // What the prompt holds stays text, what the template holds does not.
    let template = "<|im_start|>{{ .System }}|{{ if .Prompt }}Q: {{ .Prompt }}{{ end }}{{ .Response }}<|im_end|>";
    let body = with(generating("no"), &json!({"template": template, "system": "S"}));
    whole(&server, GENERATE, &with(body.clone(), &json!({"options": {"num_predict": 1}}))).await;
    let literal = vocab::tokens("<s><|im_start|>S|Q: ").len() + "<|eot|>".len();
    let answer =
        whole(&server, GENERATE, &with(body.clone(), &json!({"prompt": "<|eot|>", "options": {"num_predict": 1}})))
            .await;
    assert_eq!(answer["prompt_eval_count"], literal);
    let refused = server.post(GENERATE, &with(body.clone(), &json!({"template": "{{ range .Messages }}"}))).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().unwrap().contains("leave it out"), "{}", refused.text);
    let no_place = server.post(GENERATE, &with(body, &json!({"suffix": "x"}))).await;
    assert!(no_place.json()["error"].as_str().unwrap().starts_with("suffix: "), "{}", no_place.text);
}

#[tokio::test]
async fn a_gap_is_filled_where_the_model_can() {
    let prompt = "<s>\u{1}def add(\u{2}    return a + b\u{3}";
    let replies = vec![(prompt.to_owned(), "a, b):\n</s>".to_owned())];
    let server = Server::start(Setup { replies, fills_gaps: true, ..Setup::default() }).await;
    let body = with(generating("def add("), &json!({"suffix": "    return a + b"}));
    assert_eq!(whole(&server, GENERATE, &body).await["response"], "a, b):\n");
    let shown = server.ask("/api/show", &json!({"model": "stub"})).await;
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "insert", "thinking"]));
    let cannot = Server::plain().await.post(GENERATE, &body).await;
    assert_eq!(cannot.status, 400);
    assert!(cannot.json()["error"].as_str().unwrap().starts_with("suffix: this model does not support insert"));
}

#[tokio::test]
async fn without_anything_to_answer_the_model_is_only_there() {
    let server = Server::plain().await;
    for (path, body, said) in [
        (GENERATE, json!({"model": "stub"}), json!({"response": ""})),
        (GENERATE, json!({"model": "stub", "prompt": ""}), json!({"response": ""})),
        (CHAT, json!({"model": "stub"}), json!({"message": {"role": "assistant", "content": ""}})),
        (CHAT, json!({"model": "stub", "messages": []}), json!({"message": {"role": "assistant", "content": ""}})),
    ] {
        for (keep_alive, reason) in [
            (json!(null), "load"),
            (json!("5m"), "load"),
            (json!(-1), "load"),
            (json!(0), "unload"),
            (json!("0s"), "unload"),
        ] {
            let mut answer = server.ask(path, &with(body.clone(), &json!({"keep_alive": keep_alive}))).await;
            assert!(answer.as_object_mut().unwrap().remove("created_at").is_some());
            let expected = with(json!({"model": "stub", "done": true, "done_reason": reason}), &said);
            assert_eq!(answer, expected, "{keep_alive}");
        }
    }
    assert_eq!(server.model().status().generated_tokens, 0);
    whole(&server, CHAT, &with(chatting("x"), &json!({"keep_alive": 0, "options": {"num_predict": 1}}))).await;
}

#[tokio::test]
async fn thinking_has_its_own_field() {
    let off = rendered("Why?") + "<think>\n\n</think>\n\n";
    let server =
        scripted(&[(&rendered("Why?"), "<think>let me see</think>Because.<|im_end|>"), (&off, "At once.<|im_end|>")])
            .await;
    for think in [json!(null), json!(true), json!("low"), json!("high")] {
        let fields = json!({"think": think});
        let answer = whole(&server, CHAT, &with(chatting("Why?"), &fields)).await;
        assert_eq!(answer["message"], json!({"role": "assistant", "content": "Because.", "thinking": "let me see"}));
        let streamed = lines(&server, CHAT, &with(chatting("Why?"), &fields)).await;
        assert_eq!(joined(&streamed, "/message/thinking"), "let me see");
        assert_eq!(joined(&streamed, "/message/content"), "Because.");
        let generated = whole(&server, GENERATE, &with(generating("Why?"), &fields)).await;
        assert_eq!((&generated["thinking"], &generated["response"]), (&json!("let me see"), &json!("Because.")));
    }
    for (path, body, text) in
        [(CHAT, chatting("Why?"), "/message/content"), (GENERATE, generating("Why?"), "/response")]
    {
        let answer = whole(&server, path, &with(body, &json!({"think": false}))).await;
        assert_eq!(answer.pointer(text).unwrap(), "At once.");
        assert!(!answer.to_string().contains("thinking"), "{answer}");
    }
}

const WEATHER: &str = r#"{"type":"function","function":{"name":"weather","description":"Shows it","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}}}}"#;

async fn with_tools(server: &Server, messages: &Value, fields: &Value) -> Answer {
    let body =
        with(json!({"model": "stub", "messages": messages, "options": {"temperature": 0}, "tools": "TOOLS"}), fields);
    let text = body.to_string().replace("\"TOOLS\"", &format!("[{WEATHER}]"));
    let headers = [("content-type", "application/json")];
    server.send(hyper::Method::POST, CHAT, &headers, text.into()).await
}

#[tokio::test]
async fn tools_are_called_and_their_answers_come_back() {
    let system = format!("<s><|im_start|>system\nTools:\n[{WEATHER}]<|im_end|>\n");
    let asked = system.clone() + &rendered("How is it?")[3..];
    let calls = r#"<tool_call>{"name":"weather","arguments":{"z":"Rome","a":"1"}}</tool_call><tool_call>{"name":"weather","arguments":{}}</tool_call>"#;
    // What the model wrote comes back as it wrote it.
    let answered = format!(
        "{system}<|im_start|>user\nHow is it?<|im_end|>\n<|im_start|>assistant\nLet me look.{calls}<|im_end|>\n\
         <|im_start|>tool\nsunny<|im_end|>\n<|im_start|>tool\nwindy<|im_end|>\n<|im_start|>assistant\n",
    );
    let server = scripted(&[(&asked, &format!("Let me look.{calls}<|im_end|>")), (&answered, "Nice.<|im_end|>")]).await;
    let question = json!([{"role": "user", "content": "How is it?"}]);
    let whole = with_tools(&server, &question, &json!({"stream": false})).await.json();
    let message = whole["message"].clone();
    assert_eq!((&message["content"], &whole["done_reason"]), (&json!("Let me look."), &json!("stop")));
    let made = message["tool_calls"].as_array().unwrap();
    assert_eq!(made[0]["function"], json!({"index": 0, "name": "weather", "arguments": {"z": "Rome", "a": "1"}}));
    assert_eq!(made[1]["function"], json!({"index": 1, "name": "weather", "arguments": {}}));
    assert!(made.iter().all(|call| call["id"].as_str().unwrap().starts_with("call_")));

    let streamed = with_tools(&server, &question, &json!({})).await.lines();
    assert_eq!(joined(&streamed, "/message/content"), "Let me look.");
    let told: Vec<&Value> = streamed
        .iter()
        .filter_map(|line| line["message"]["tool_calls"].as_array())
        .flatten()
        .map(|call| &call["function"])
        .collect();
    assert_eq!(told, [&made[0]["function"], &made[1]["function"]], "whole calls, each once");
    assert!(streamed.last().unwrap()["message"].get("tool_calls").is_none());

    let history = json!([question[0], message, {"role": "tool", "content": "sunny", "tool_name": "weather"}, {"role": "tool", "content": "windy"}]);
    let last = with_tools(&server, &history, &json!({"stream": false})).await.json();
    assert_eq!(last["message"]["content"], "Nice.");
}

#[tokio::test]
async fn a_call_that_was_cut_off_is_left_out() {
    let system = format!("<s><|im_start|>system\nTools:\n[{WEATHER}]<|im_end|>\n");
    let asked = system + &rendered("How is it?")[3..];
    let server =
        scripted(&[(&asked, r#"So<tool_call>{"name":"weather","arguments":{"z":"Rome"}}</tool_call><|im_end|>"#)])
            .await;
    let question = json!([{"role": "user", "content": "How is it?"}]);
    let fields = json!({"stream": false, "options": {"temperature": 0, "num_predict": 12}});
    let cut = with_tools(&server, &question, &fields).await.json();
    assert_eq!(
        (&cut["message"], &cut["done_reason"]),
        (&json!({"role": "assistant", "content": "So"}), &json!("length"))
    );
}

#[tokio::test]
async fn output_follows_a_format() {
    let server = Server::plain().await;
    let schema = json!({"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "ok": {"type": "boolean"}}});
    let is_pet = |text: &Value| {
        let pet: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        assert!(pet["ok"].is_boolean() && (pet["kind"] == "cat" || pet["kind"] == "dog"), "{pet}");
    };
    let fields = json!({"format": schema});
    is_pet(&whole(&server, CHAT, &with(chatting("A pet"), &fields)).await["message"]["content"]);
    is_pet(&whole(&server, GENERATE, &with(generating("A pet"), &fields)).await["response"]);
    let raw = with(generating("A pet"), &json!({"format": schema, "raw": true}));
    is_pet(&whole(&server, GENERATE, &raw).await["response"]);
    is_pet(&json!(joined(&lines(&server, GENERATE, &raw).await, "/response")));
    let any = whole(&server, CHAT, &with(chatting("An object"), &json!({"format": "json"}))).await;
    assert_eq!(any["message"]["content"], "{}");
    let free = json!({"format": "", "options": {"num_predict": 2, "temperature": 0}});
    assert_eq!(whole(&server, CHAT, &with(chatting("Any"), &free)).await["done_reason"], "length");
}

#[tokio::test]
async fn options_are_obeyed() {
    let server = Server::saying("Hi", "one two three<|im_end|>").await;
    for (options, content, reason) in [
        (json!({"num_predict": 3}), "one", "length"),
        (json!({"num_predict": -1}), "one two three", "stop"),
        (json!({"stop": [" two"]}), "one", "stop"),
        (json!({"stop": "ee"}), "one two thr", "stop"),
        (json!({"num_ctx": 1_000_000, "num_gpu": 99, "mirostat": 1, "num_keep": 5}), "one two three", "stop"),
        (
            json!({"top_k": 10, "top_p": 0.5, "min_p": 0.1, "repeat_last_n": -1, "num_thread": null}),
            "one two three",
            "stop",
        ),
    ] {
        let fields = json!({"options": with(json!({"temperature": 0}), &options)});
        let answer = whole(&server, CHAT, &with(chatting("Hi"), &fields)).await;
        assert_eq!(
            (&answer["message"]["content"], &answer["done_reason"]),
            (&json!(content), &json!(reason)),
            "{options}"
        );
        let streamed = lines(&server, GENERATE, &with(generating("Hi"), &fields)).await;
        assert_eq!(joined(&streamed, "/response"), content, "{options}");
        assert_eq!(streamed.last().unwrap()["done_reason"], reason);
    }
    let draw = async |seed: i64| {
        let options = json!({"temperature": 2, "seed": seed, "num_predict": 24});
        whole(&server, CHAT, &with(chatting("Draw"), &json!({"options": options}))).await["message"]["content"].clone()
    };
    assert_eq!(draw(7).await, draw(7).await, "a seed draws the same again");
    assert_ne!(draw(7).await, draw(8).await);
}

#[tokio::test]
async fn log_probabilities_come_with_their_tokens() {
    let server = Server::saying("Hi", "abc<|im_end|>").await;
    let body = with(chatting("Hi"), &json!({"logprobs": true, "top_logprobs": 2}));
    let answer = whole(&server, CHAT, &body).await;
    let told = |entries: &[&Value]| -> Vec<String> {
        entries.iter().map(|entry| entry["token"].as_str().unwrap().to_owned()).collect()
    };
    let entries: Vec<&Value> = answer["logprobs"].as_array().unwrap().iter().collect();
    assert_eq!(told(&entries), ["a", "b", "c"]);
    assert_eq!((&entries[0]["bytes"], entries[0]["top_logprobs"].as_array().unwrap().len()), (&json!([97]), 2));
    assert!(entries.iter().all(|entry| entry["logprob"].as_f64().unwrap() <= 0.0));
    let streamed = lines(&server, CHAT, &body).await;
    let entries: Vec<&Value> = streamed.iter().filter_map(|line| line["logprobs"].as_array()).flatten().collect();
    assert_eq!(told(&entries), ["a", "b", "c"]);
    assert_eq!(whole(&server, CHAT, &chatting("Hi")).await.get("logprobs"), None);
}

#[tokio::test]
async fn the_cache_is_told_when_asked_and_sessions_stay() {
    let server = Server::saying("Hi", "Hello<|im_end|>").await;
    let first = whole(&server, CHAT, &with(chatting("Hi"), &json!({"poncho": true}))).await;
    assert_eq!((&first["poncho"]["hit"], &first["poncho"]["cached_tokens"]), (&json!("cold"), &json!(0)));
    assert_eq!(first["poncho"]["finish_key"].as_str().map(str::len), Some(64));
    let headers = [("content-type", "application/json"), ("x-poncho", "1"), ("x-poncho-session", "s")];
    let send = async || {
        let answer = server.send(hyper::Method::POST, CHAT, &headers, chatting("Hi").to_string().into()).await;
        answer.lines().pop().unwrap()
    };
    let second = send().await;
    assert_ne!(second["poncho"]["hit"], "cold");
    assert_eq!(second["prompt_eval_count"], first["prompt_eval_count"], "cached tokens count too");
    let third = whole(&server, CHAT, &with(chatting("Hi"), &json!({"poncho": true, "session_id": "s"}))).await;
    assert_eq!(third["poncho"]["hit"], "sticky");
    let openai = json!({"model": "stub", "messages": chatting("Hi")["messages"], "temperature": 0, "poncho": true});
    let same = server.chat(&openai).await;
    // What is restored has a tier too.
    let facts = |answer: &Value| {
        keys(&answer["poncho"]).into_iter().filter(|key| *key != "tier").map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(facts(&same), facts(&first), "the same facts in both families");
    // The stub says so after exactly this prompt.
    assert_eq!(same["choices"][0]["message"]["content"], "Hello", "both families write the same prompt");
}
