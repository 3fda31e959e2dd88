//! Responses: whole answers, exact sequences of events, thinking, tools, and how things end.

use hyper::Method;
use poncho_engine::backend::stub::{DecodeFault, vocab};
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, read, rendered, wait_until_held, with};

pub(crate) const PATH: &str = "/v1/responses";

/// A greedy request.
pub(crate) fn asking(input: &Value) -> Value {
    json!({"model": "stub", "temperature": 0, "input": input})
}

/// The names of a stream's events; runs of the same one count once.
fn names(events: &[Value]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    names.dedup();
    names
}

/// The names of the events of an item with one part.
fn item(part: &str, text: &str) -> [String; 6] {
    let [added, done] = ["added", "done"].map(|step| format!("{part}.{step}"));
    let [more, whole] = ["delta", "done"].map(|step| format!("{text}.{step}"));
    ["output_item.added", &added, &more, &whole, &done, "output_item.done"].map(|name| format!("response.{name}"))
}

/// The names of the events of a reply with these items.
fn whole(items: &[[String; 6]]) -> Vec<String> {
    let begins = ["response.created", "response.in_progress"].map(str::to_owned);
    [&begins[..], &items.concat(), &["response.completed".to_owned()]].concat()
}

/// The events of a stream, checked for their numbers.
fn numbered(answer: &Answer) -> Vec<Value> {
    let events = answer.named_events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
    }
    events
}

/// What the pieces of one kind add up to.
fn joined(events: &[Value], name: &str) -> String {
    events.iter().filter(|event| event["type"] == name).map(|event| event["delta"].as_str().unwrap()).collect()
}

/// An object without what is different each time.
fn timeless(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let random = ["id", "call_id", "created_at", "completed_at", "usage"];
            let kept = fields.iter().filter(|(name, _)| !random.contains(&name.as_str()));
            kept.map(|(name, value)| (name.clone(), timeless(value))).collect::<serde_json::Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(timeless).collect(),
        other => other.clone(),
    }
}

#[tokio::test]
async fn a_whole_answer_has_every_field() {
    let server = Server::saying("Hello", "Hi there.<|im_end|>").await;
    let answer = server.ask(PATH, &asking(&json!("Hello"))).await;
    let id = |value: &Value, prefix: &str| value.as_str().unwrap().starts_with(prefix);
    assert!(id(&answer["id"], "resp_") && id(&answer["output"][0]["id"], "msg_"));
    assert!(answer["created_at"].as_u64().unwrap() > 1_700_000_000 && answer["completed_at"].is_u64());
    let message = json!({"type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Hi there.", "annotations": [], "logprobs": []}]});
    let expected = json!({
        "object": "response", "status": "completed", "background": false, "error": null, "incomplete_details": null,
        "instructions": null, "max_output_tokens": null, "max_tool_calls": null, "model": "stub", "output": [message],
        "parallel_tool_calls": true, "previous_response_id": null, "prompt_cache_key": null,
        "prompt_cache_retention": null, "reasoning": {"effort": null, "summary": null}, "safety_identifier": null,
        "service_tier": "default", "store": true, "temperature": 0.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto", "tools": [],
        "top_logprobs": 0, "top_p": answer["top_p"], "truncation": "disabled", "user": null, "metadata": {},
    });
    assert_eq!(timeless(&answer), expected);
    let prompt = vocab::tokens(&rendered("Hello")).len();
    assert_eq!(answer["usage"]["input_tokens"], prompt);
    let details = json!({"cached_tokens": 0, "cache_write_tokens": prompt});
    assert_eq!(answer["usage"]["input_tokens_details"], details);
    assert_eq!(answer["usage"]["output_tokens"], 10);
    assert_eq!(answer["usage"]["output_tokens_details"], json!({"reasoning_tokens": 0}));
    assert_eq!(answer["usage"]["total_tokens"], prompt + 10);
    let again = server.ask(PATH, &with(asking(&json!("Hello")), &json!({"poncho": true}))).await;
    assert!(again["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 8, "{again}");
    assert_ne!(again["poncho"]["hit"], "cold");
}

#[tokio::test]
async fn what_was_asked_is_repeated_in_the_answer() {
    let server = Server::plain().await;
    let tool = json!({"type": "function", "name": "f", "description": null, "parameters": {"type": "object"}, "strict": false});
    let asked = json!({
        "instructions": "Be kind.", "max_output_tokens": 3, "max_tool_calls": 2, "parallel_tool_calls": false,
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "store": false, "temperature": 0.5,
        "top_p": 0.25, "top_logprobs": 2, "truncation": "auto", "user": "u", "metadata": {"a": "b"},
        "tool_choice": {"type": "function", "name": "f"}, "tools": [tool], "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "null"}, "strict": true}, "verbosity": "low"},
    });
    let extra = json!({"service_tier": "flex", "stream_options": {"include_obfuscation": true}, "unheard_of": [1],
        "include": ["reasoning.encrypted_content"], "background": false});
    let answer = server.ask(PATH, &with(with(asking(&json!("x")), &asked), &extra)).await;
    for (name, value) in asked.as_object().unwrap() {
        assert_eq!(&answer[name], value, "{name}");
    }
}

#[tokio::test]
async fn a_text_is_streamed_event_by_event() {
    let server = Server::saying("Hello", "Hi there.<|im_end|>").await;
    let stream = server.stream(PATH, &asking(&json!("Hello"))).await;
    assert!(!stream.text.contains("[DONE]"), "the last event ends the stream");
    let events = numbered(&stream);
    assert_eq!(names(&events), whole(&[item("content_part", "output_text")]));
    let of = |name: &str| events.iter().find(|event| event["type"] == name).unwrap();
    assert_eq!(of("response.created")["response"]["status"], "in_progress");
    assert_eq!(of("response.created")["response"]["output"], json!([]));
    assert_eq!(of("response.created")["response"]["usage"], Value::Null);
    let added = &of("response.output_item.added")["item"];
    assert_eq!((&added["status"], &added["content"]), (&json!("in_progress"), &json!([])));
    let empty = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
    assert_eq!(of("response.content_part.added")["part"], empty);
    for event in events.iter().filter(|event| event["item_id"].is_string()) {
        assert_eq!((&event["item_id"], &event["output_index"]), (&added["id"], &json!(0)), "{event}");
        assert_eq!(event["content_index"], 0);
    }
    assert_eq!(joined(&events, "response.output_text.delta"), "Hi there.");
    assert_eq!(of("response.output_text.done")["text"], "Hi there.");
    assert_eq!(of("response.output_text.done")["logprobs"], json!([]));
    assert_eq!(of("response.content_part.done")["part"]["text"], "Hi there.");
    let completed = &of("response.completed")["response"];
    assert_eq!(completed["output"][0], of("response.output_item.done")["item"]);
    assert_eq!(completed["id"], of("response.created")["response"]["id"]);
    let whole = server.ask(PATH, &asking(&json!("Hello"))).await;
    assert_eq!(timeless(completed), timeless(&whole), "both ways say the same");
}

#[tokio::test]
async fn thinking_is_content_unless_a_summary_is_wanted() {
    let reply = "<think>hm so</think>Yes.<|im_end|>";
    let server = Server::saying("Really?", reply).await;
    let events = numbered(&server.stream(PATH, &asking(&json!("Really?"))).await);
    let items = [item("content_part", "reasoning_text"), item("content_part", "output_text")];
    assert_eq!(names(&events), whole(&items));
    assert_eq!(joined(&events, "response.reasoning_text.delta"), "hm so");
    let output = &events.last().unwrap()["response"]["output"];
    assert!(output[0]["id"].as_str().unwrap().starts_with("rs_"));
    assert_eq!((&output[0]["summary"], &output[0]["status"]), (&json!([]), &json!("completed")));
    assert_eq!(output[0]["content"], json!([{"type": "reasoning_text", "text": "hm so"}]));
    assert_eq!(output[1]["content"][0]["text"], "Yes.");
    let indexes: Vec<&Value> = events.iter().filter_map(|event| event.get("output_index")).collect();
    assert!(indexes.is_sorted_by_key(|index| index.as_u64()) && indexes.last() == Some(&&json!(1)));
    assert_eq!(events.last().unwrap()["response"]["usage"]["output_tokens_details"]["reasoning_tokens"], 5);

    let asked = json!({"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]});
    let events = numbered(&server.stream(PATH, &with(asking(&json!("Really?")), &asked)).await);
    assert_eq!(names(&events)[2..8], item("reasoning_summary_part", "reasoning_summary_text"));
    assert_eq!(joined(&events, "response.reasoning_summary_text.delta"), "hm so");
    let part = events.iter().find(|event| event["type"] == "response.reasoning_summary_part.done").unwrap();
    assert_eq!((&part["summary_index"], &part["part"]), (&json!(0), &json!({"type": "summary_text", "text": "hm so"})));
    let item = events.last().unwrap()["response"]["output"][0].clone();
    assert_eq!(item["summary"], json!([{"type": "summary_text", "text": "hm so"}]));
    assert!(item.get("content").is_none() && item["encrypted_content"].as_str().unwrap().len() > 5);
}

const WEATHER: &str = r#"{"type":"function","name":"weather","description":"Shows it","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}}}"#;
/// The same as a template sees it, in the order of their names.
const IN_PROMPT: &str = r#"{"type":"function","function":{"name":"clock"}},{"type":"function","function":{"name":"weather","description":"Shows it","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}}}}"#;
const CALLS: &str = r#"Let me look.<tool_call>{"name":"weather","arguments":{"z":"Rome"}}</tool_call><tool_call>{"name":"clock","arguments":{}}</tool_call><|im_end|>"#;

fn tool_prompt(rest: &str) -> String {
    format!("<s><|im_start|>system\nTools:\n[{IN_PROMPT}]<|im_end|>\n{rest}<|im_start|>assistant\n")
}

/// Sends with the tools as written above: a parsed one would lose the order inside.
async fn send(server: &Server, body: &Value) -> Answer {
    let mut body = body.clone();
    body["tools"] = json!("TOOLS");
    let tools = format!(
        r#"[{WEATHER}, {{"type": "web_search", "search_context_size": "low"}}, {{"type": "function", "name": "clock"}}]"#
    );
    let text = body.to_string().replace("\"TOOLS\"", &tools);
    server.send(Method::POST, PATH, &[("content-type", "application/json")], text.into()).await
}

#[tokio::test]
async fn calls_go_out_and_their_outputs_come_back() {
    let user = "<|im_start|>user\nHow is it?<|im_end|>\n";
    // What the model wrote comes back as it wrote it.
    let called = format!(
        "<|im_start|>assistant\n{CALLS}\n<|im_start|>tool\nSunny<|im_end|>\n<|im_start|>tool\nNoon<|im_end|>\n"
    );
    let replies = vec![
        (tool_prompt(user), CALLS.to_owned()),
        (tool_prompt(&format!("{user}{called}")), "Sunny at noon.<|im_end|>".to_owned()),
    ];
    let server = Server::start(Setup { replies, ..Setup::default() }).await;
    let first = send(&server, &asking(&json!("How is it?"))).await;
    assert_eq!(first.status, 200, "{}", first.text);
    assert!(first.text.contains(r#""properties":{"z":{"type":"string"},"a":"#), "the order of a schema is kept");
    let first = first.json();
    let output = first["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "function_call", "function_call"]);
    assert_eq!((&output[1]["name"], &output[1]["arguments"]), (&json!("weather"), &json!("{\"z\":\"Rome\"}")));
    for call in &output[1..] {
        assert!(
            call["id"].as_str().unwrap().starts_with("fc_") && call["call_id"].as_str().unwrap().starts_with("call_")
        );
        assert_eq!(call["status"], "completed");
    }
    let result = |call: &Value, text: &Value| json!({"type": "function_call_output", "call_id": call["call_id"], "output": text});
    let results =
        [result(&output[1], &json!("Sunny")), result(&output[2], &json!([{"type": "input_text", "text": "Noon"}]))];
    // The client keeps the conversation, or the server does, or the client refers to what the server has.
    let mut whole = vec![json!({"role": "user", "content": "How is it?"})];
    whole.extend(output.iter().cloned().chain(results.clone()));
    let references = output.iter().map(|item| json!({"type": "item_reference", "id": item["id"]}));
    let mut referring =
        vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "How is it?"}]})];
    referring.extend(references.chain(results.clone()));
    let previous = with(asking(&json!(results)), &json!({"previous_response_id": first["id"]}));
    for body in [asking(&json!(whole)), asking(&json!(referring)), previous] {
        let second = send(&server, &body).await;
        assert_eq!(second.json()["output"][0]["content"][0]["text"], "Sunny at noon.", "{}", second.text);
    }
}

#[tokio::test]
async fn calls_are_streamed_event_by_event() {
    let user = "<|im_start|>user\nHow is it?<|im_end|>\n";
    let replies = vec![(tool_prompt(user), CALLS.to_owned())];
    let server = Server::start(Setup { replies, ..Setup::default() }).await;
    let events = numbered(&send(&server, &with(asking(&json!("How is it?")), &json!({"stream": true}))).await);
    assert_eq!(
        names(&events)[4..],
        [
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let output = &events.last().unwrap()["response"]["output"];
    let done: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "response.function_call_arguments.done").collect();
    for (index, event) in done.iter().enumerate() {
        let item = &output[index + 1];
        assert_eq!((&event["arguments"], &event["name"]), (&item["arguments"], &item["name"]));
        assert_eq!((&event["item_id"], &event["output_index"]), (&item["id"], &json!(index + 1)));
    }
    let begun: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.added" && event["item"]["type"] == "function_call")
        .map(|event| &event["item"])
        .collect();
    assert_eq!(begun.len(), 2);
    assert!(begun.iter().all(|item| item["arguments"] == "" && item["status"] == "in_progress"));
    assert_eq!(begun[0]["call_id"], output[1]["call_id"]);
}

#[tokio::test]
async fn functions_in_a_namespace_have_one_name_for_the_model_and_two_for_the_client() {
    let tools = json!([{"type": "namespace", "name": "crew", "description": "Others", "tools":
        [{"type": "function", "name": "spawn", "strict": false}]}]);
    let in_prompt = r#"[{"type":"function","function":{"name":"crew__spawn"}}]"#;
    let prompt = |rest: &str| {
        format!(
            "<s><|im_start|>system\nTools:\n{in_prompt}<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n{rest}<|im_start|>assistant\n"
        )
    };
    let call = r#"<tool_call>{"name":"crew__spawn","arguments":{}}</tool_call>"#;
    let replies = vec![
        (prompt(""), format!("{call}<|im_end|>")),
        (
            prompt(&format!("<|im_start|>assistant\n{call}<|im_end|>\n<|im_start|>tool\nup<|im_end|>\n")),
            "All up.<|im_end|>".to_owned(),
        ),
    ];
    let server = Server::start(Setup { replies, ..Setup::default() }).await;
    let body = with(asking(&json!("Go")), &json!({"tools": tools}));
    let first = server.post(PATH, &body).await;
    let called = first.json()["output"][0].clone();
    assert_eq!((&called["name"], &called["namespace"]), (&json!("spawn"), &json!("crew")), "{}", first.text);
    let events = numbered(&server.post(PATH, &with(body, &json!({"stream": true}))).await);
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!((&done["item"]["name"], &done["item"]["namespace"]), (&json!("spawn"), &json!("crew")));
    let result = json!({"type": "function_call_output", "call_id": called["call_id"], "output": "up"});
    let whole = json!([{"role": "user", "content": "Go"}, called, result]);
    let second = server.post(PATH, &with(asking(&whole), &json!({"tools": tools}))).await;
    assert_eq!(second.json()["output"][0]["content"][0]["text"], "All up.", "{}", second.text);

    for (tool, field) in [
        (json!({"type": "namespace", "tools": []}), "tools[0].name"),
        (
            json!({"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "x"}]}),
            "tools[0].tools[0].type",
        ),
        (json!({"type": "namespace", "name": "n", "tools": [{"type": "function"}]}), "tools[0].tools[0].name"),
    ] {
        let refused = server.post(PATH, &with(asking(&json!("Go")), &json!({"tools": [tool]}))).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)), "{}", refused.text);
    }
}

#[tokio::test]
async fn the_choice_of_a_tool_is_followed_or_refused() {
    let user = "<|im_start|>user\nHow is it?<|im_end|>\n";
    let fine =
        ("<s><|im_start|>user\nHow is it?<|im_end|>\n<|im_start|>assistant\n".to_owned(), "Fine.<|im_end|>".to_owned());
    let replies = vec![(tool_prompt(user), CALLS.to_owned()), fine];
    let server = Server::start(Setup { replies, ..Setup::default() }).await;
    let ask =
        async |choice: Value| send(&server, &with(asking(&json!("How is it?")), &json!({"tool_choice": choice}))).await;
    let clock = json!({"type": "function", "name": "clock"});
    let auto = ask(json!("auto")).await.json();
    assert_eq!((&auto["output"][1]["name"], &auto["tool_choice"]), (&json!("weather"), &json!("auto")));
    for (choice, allowed, must_call) in [
        (json!("required"), vec!["weather", "clock"], true),
        (clock.clone(), vec!["clock"], true),
        (
            json!({"type": "allowed_tools", "mode": "auto", "tools": [clock, {"type": "web_search"}]}),
            vec!["clock"],
            false,
        ),
        (json!({"type": "allowed_tools", "mode": "required", "tools": [clock]}), vec!["clock"], true),
    ] {
        let answer = ask(choice.clone()).await.json();
        assert_eq!(answer["tool_choice"], choice);
        let output = answer["output"].as_array().unwrap();
        let calls = output.iter().filter(|item| item["type"] == "function_call");
        let names: Vec<&str> = calls.map(|call| call["name"].as_str().unwrap()).collect();
        // The stub's grammar waits for nothing: it holds from the first token or not at all.
        assert!(!must_call || names.iter().all(|name| allowed.contains(name)), "{choice}: {names:?}");
        assert!(!must_call || (!names.is_empty() && output[0]["type"] == "function_call"), "{choice}: {output:?}");
    }
    assert_eq!(ask(json!("none")).await.json()["output"][0]["content"][0]["text"], "Fine.");
    for (choice, param) in [
        (json!("sometimes"), "tool_choice"),
        (json!(5), "tool_choice"),
        (json!({}), "tool_choice"),
        (json!({"type": "file_search"}), "tool_choice"),
        (json!({"type": "function", "name": "moon"}), "tool_choice.name"),
        (json!({"type": "function"}), "tool_choice.name"),
        (json!({"type": "allowed_tools", "tools": []}), "tool_choice.mode"),
        (json!({"type": "allowed_tools", "mode": "auto"}), "tool_choice.tools"),
        (
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "moon"}]}),
            "tool_choice.tools[0].name",
        ),
    ] {
        let answer = ask(choice).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{}", answer.text);
    }
}

#[tokio::test]
async fn a_reply_that_is_cut_is_incomplete() {
    let server = Server::saying("Hello", "<think>hm</think>Hi there.<|im_end|>").await;
    let cut = with(asking(&json!("Hello")), &json!({"max_output_tokens": 6}));
    let answer = server.ask(PATH, &cut).await;
    assert_eq!((&answer["status"], &answer["completed_at"]), (&json!("incomplete"), &Value::Null));
    assert_eq!(answer["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(
        (&answer["output"][0]["status"], &answer["output"][1]["status"]),
        (&json!("completed"), &json!("incomplete"))
    );
    assert_eq!(answer["output"][1]["content"][0]["text"], "Hi");
    let events = numbered(&server.stream(PATH, &cut).await);
    assert_eq!(names(&events).last(), Some(&"response.incomplete"));
    assert_eq!(timeless(&events.last().unwrap()["response"]), timeless(&answer));
    let in_thinking = server.ask(PATH, &with(asking(&json!("Hello")), &json!({"max_output_tokens": 2}))).await;
    assert_eq!(in_thinking["output"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&in_thinking["output"][0]["type"], &in_thinking["output"][0]["status"]),
        (&json!("reasoning"), &json!("incomplete"))
    );
}

#[tokio::test]
async fn log_probabilities_belong_to_the_text_alone() {
    let server = Server::saying("Hello", "<think>hm</think>Hi.<|im_end|>").await;
    for asked in [json!({"top_logprobs": 2}), json!({"include": ["message.output_text.logprobs"]})] {
        let answer = server.ask(PATH, &with(asking(&json!("Hello")), &asked)).await;
        let logprobs = answer["output"][1]["content"][0]["logprobs"].as_array().unwrap().clone();
        let tokens: Vec<&str> = logprobs.iter().map(|token| token["token"].as_str().unwrap()).collect();
        assert_eq!(tokens, ["H", "i", "."]);
        let top = asked["top_logprobs"].as_u64().unwrap_or(0);
        assert!(logprobs.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() as u64 == top));
        assert!(logprobs.iter().all(|token| token["logprob"].as_f64().unwrap() <= 0.0 && token["bytes"].is_array()));
        let events = numbered(&server.stream(PATH, &with(asking(&json!("Hello")), &asked)).await);
        let streamed: Vec<Value> = events
            .iter()
            .filter(|event| event["type"] == "response.output_text.delta")
            .flat_map(|event| event["logprobs"].as_array().unwrap().clone())
            .collect();
        assert_eq!(streamed, logprobs);
        let done = events.iter().find(|event| event["type"] == "response.output_text.done").unwrap();
        assert_eq!(done["logprobs"], json!(logprobs));
    }
    let without = server.ask(PATH, &asking(&json!("Hello"))).await;
    assert_eq!(without["output"][1]["content"][0]["logprobs"], json!([]));
}

#[tokio::test]
async fn formats_constrain_the_text() {
    let server = Server::plain().await;
    let object =
        with(asking(&json!("x")), &json!({"text": {"format": {"type": "json_object"}}, "max_output_tokens": 200}));
    let text = server.ask(PATH, &object).await["output"][0]["content"][0]["text"].clone();
    assert!(text.as_str().unwrap().starts_with('{'), "{text}");
    let schema = json!({"type": "json_schema", "name": "nothing", "schema": {"type": "null"}});
    let null = server.ask(PATH, &with(asking(&json!("x")), &json!({"text": {"format": schema}}))).await;
    assert_eq!(null["output"][0]["content"][0]["text"], "null");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_in_the_middle_is_an_event() {
    let server = Server::saying("Hello", "Hi there.<|im_end|>").await;
    // Held in the middle, so that the stream has begun when it fails.
    server.faults.on_decode(4, DecodeFault::Block);
    let body = with(asking(&json!("Hello")), &json!({"stream": true}));
    let response =
        server.open(Method::POST, PATH, &[("content-type", "application/json")], body.to_string().into()).await;
    assert_eq!(response.status(), 200);
    wait_until_held(&server).await;
    server.faults.on_decode(1, DecodeFault::Panic);
    server.faults.release();
    let events = numbered(&read(response).await);
    assert_eq!(
        names(&events)[..4],
        ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    );
    let tail = &names(&events)[names(&events).len() - 2..];
    assert_eq!(tail, ["error", "response.failed"]);
    let error = &events[events.len() - 2];
    assert!(error["message"].as_str().unwrap().len() > 10 && error["code"].is_string(), "{error}");
    assert!(error.as_object().unwrap().contains_key("param"));
    let failed = &events.last().unwrap()["response"];
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("server_error")));
    let stored = server.get(&format!("{PATH}/{}", failed["id"].as_str().unwrap())).await;
    assert_eq!(stored.json(), *failed);
}

#[tokio::test]
async fn a_session_is_named_in_the_body_or_a_header() {
    let server = Server::plain().await;
    let body = with(asking(&json!("Hello")), &json!({"max_output_tokens": 4, "ignore_eos": true}));
    server.ask(PATH, &with(body.clone(), &json!({"session_id": "mine"}))).await;
    let headers = [("content-type", "application/json"), ("x-poncho-session", "other"), ("x-poncho", "1")];
    let answer = server.send(Method::POST, PATH, &headers, body.to_string().into()).await;
    assert!(answer.json()["poncho"]["hit"].is_string(), "{}", answer.text);
    let model = server.model();
    let sessions = model.sessions();
    let mut names: Vec<String> = sessions.into_iter().map(|session| session.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["mine", "other"]);
}
