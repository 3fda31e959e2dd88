//! Anthropic's messages as whole answers: texts, thinking, tools, limits, usage, sessions, and the count of tokens.

use hyper::Method;
use poncho_engine::SigningKey;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, rendered, with};

pub(crate) const PATH: &str = "/v1/messages";
pub(crate) const COUNT: &str = "/v1/messages/count_tokens";
pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");
/// What the template writes where thinking is not wanted.
pub(crate) const NO_THINKING: &str = "<think>\n\n</think>\n\n";

/// A greedy request with one user message.
pub(crate) fn asking(user: &str) -> Value {
    json!({"model": "stub", "max_tokens": 200, "temperature": 0, "messages": [{"role": "user", "content": user}]})
}

/// A server with a model that answers one user message without thinking.
pub(crate) async fn saying(user: &str, reply: &str) -> Server {
    Server::start(Setup { replies: vec![(rendered(user) + NO_THINKING, reply.to_owned())], ..Setup::default() }).await
}

/// A server with a model that thinks before it answers.
pub(crate) async fn thinking(signing_key: Option<SigningKey>) -> Server {
    let replies = vec![
        (rendered("Why?"), "<think>let me see</think>Because.<|im_end|>".to_owned()),
        (rendered("Why?") + NO_THINKING, "At once.<|im_end|>".to_owned()),
    ];
    Server::start(Setup { replies, signing_key, ..Setup::default() }).await
}

pub(crate) const WEATHER: &str = r#"{"name":"weather","description":"Shows it","input_schema":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}}}"#;
const WEATHER_AS_FUNCTION: &str = r#"{"type":"function","function":{"name":"weather","description":"Shows it","parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":"string"}}}}}"#;
pub(crate) const CALLS: &str = r#"Let me look.<tool_call>{"name":"weather","arguments":{"z":"Rome","a":"b"}}</tool_call><tool_call>{"name":"weather","arguments":{}}</tool_call><|im_end|>"#;

fn tool_prompt() -> String {
    format!("<s><|im_start|>system\nTools:\n[{WEATHER_AS_FUNCTION}]<|im_end|>\n")
}

/// A server with a model that calls a tool, and answers when it has the results.
pub(crate) async fn calling() -> Server {
    let asked = tool_prompt() + "<|im_start|>user\nHow is it?<|im_end|>\n";
    let opening = "<|im_start|>assistant\n".to_owned() + NO_THINKING;
    // What the model wrote comes back as it wrote it, after the opening that it was given.
    let answered = format!(
        "{asked}{opening}{CALLS}\n<|im_start|>tool\nsunny<|im_end|>\n\
         <|im_start|>tool\nError: no net<|im_end|>\n<|im_start|>user\nSo?<|im_end|>\n"
    );
    let replies =
        vec![(asked + &opening, CALLS.to_owned()), (answered + &opening, "It is sunny.<|im_end|>".to_owned())];
    Server::start(Setup { replies, ..Setup::default() }).await
}

/// Sends a request with the tool as written above: a parsed one would lose its order.
pub(crate) async fn send_with_tool(server: &Server, fields: &Value) -> Answer {
    let mut body = with(asking("How is it?"), fields);
    body["tools"] = json!("TOOLS");
    let text = body.to_string().replace("\"TOOLS\"", &format!("[{WEATHER}]"));
    server.send(Method::POST, PATH, &[JSON], text.into()).await
}

fn input_sum(usage: &Value) -> u64 {
    let figures = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    figures.map(|name| usage[name].as_u64().unwrap()).iter().sum()
}

#[tokio::test]
async fn a_question_gets_a_whole_answer() {
    let server = saying("Hi", "Hello there<|im_end|>").await;
    let answer = server.post(PATH, &asking("Hi")).await;
    let message = answer.json();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    let fields: Vec<&String> = message.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["content", "id", "model", "role", "stop_reason", "stop_sequence", "type", "usage"]);
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!("stub"))
    );
    assert_eq!(message["content"], json!([{"type": "text", "text": "Hello there"}]));
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    let id = answer.headers["request-id"].to_str().unwrap();
    assert!(id.starts_with("req_") && answer.headers["x-request-id"] == id);
}

#[tokio::test]
async fn the_input_figures_add_up_to_the_prompt() {
    let server = saying("Hi", "Hello there<|im_end|>").await;
    let prompt = server.ask(COUNT, &asking("Hi")).await["input_tokens"].as_u64().unwrap();
    // Byte tokens: BOS, three marks of messages, two of thinking, and one token for each byte.
    assert_eq!(prompt, 1 + 3 + 2 + "user\nHi\nassistant\n\n\n\n\n".len() as u64);
    let cold = server.ask(PATH, &asking("Hi")).await["usage"].clone();
    assert_eq!((input_sum(&cold), &cold["cache_read_input_tokens"]), (prompt, &json!(0)));
    assert_eq!(cold["cache_creation_input_tokens"], prompt, "all of it was stored");
    assert_eq!(cold["output_tokens"], "Hello there".len() + 1, "with the token that ends the turn");
    let warm = server.ask(PATH, &asking("Hi")).await["usage"].clone();
    assert_eq!(input_sum(&warm), prompt);
    assert!(warm["cache_read_input_tokens"].as_u64().unwrap() + 1 >= prompt, "{warm}");
}

#[tokio::test]
async fn counting_renders_the_same_prompt_and_generates_nothing() {
    let server = calling().await;
    let counted = async |body: &Value| {
        let answer = server.ask(COUNT, body).await;
        assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
        answer["input_tokens"].as_u64().unwrap()
    };
    let tool: Value = serde_json::from_str(WEATHER).unwrap();
    let thinking = json!({"thinking": {"type": "adaptive"}});
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let bodies = [
        asking("Hi"),
        with(asking("Hi"), &json!({"system": "Be kind.", "tools": [tool]})),
        with(asking("Hi"), &thinking),
        with(
            asking("Hi"),
            &json!({"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "So"}]}),
        ),
    ];
    let mut counts = Vec::new();
    for body in &bodies {
        counts.push(counted(body).await);
    }
    assert_eq!(server.model().status().generated_tokens, 0, "nothing was generated");
    for (body, count) in bodies.iter().zip(&counts) {
        let usage = server.ask(PATH, &with(body.clone(), &json!({"max_tokens": 1}))).await["usage"].clone();
        assert_eq!(input_sum(&usage), *count, "{body}");
    }
    let mut without_limit = asking("Hi");
    without_limit.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(counted(&without_limit).await, counts[0], "no limit is needed to count");
}

#[tokio::test]
async fn limits_and_stop_sequences_end_a_reply() {
    let server = saying("Hi", "one two three<|im_end|>").await;
    let cases = [
        (json!({"max_tokens": 3}), "one", "max_tokens", Value::Null),
        (json!({"stop_sequences": ["nothing", " tw"]}), "one", "stop_sequence", json!(" tw")),
        (json!({"stop_sequences": ["nothing"]}), "one two three", "end_turn", Value::Null),
        (json!({"stop_sequences": [], "top_p": 0.9, "top_k": 5}), "one two three", "end_turn", Value::Null),
    ];
    for (fields, text, reason, sequence) in cases {
        let message = server.ask(PATH, &with(asking("Hi"), &fields)).await;
        assert_eq!(message["content"], json!([{"type": "text", "text": text}]), "{fields}");
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(reason), &sequence), "{fields}");
    }
    let nothing = server.ask(PATH, &with(asking("Hi"), &json!({"stop_sequences": ["one"]}))).await;
    assert_eq!((&nothing["content"], &nothing["stop_reason"]), (&json!([]), &json!("stop_sequence")));
}

#[tokio::test]
async fn zero_tokens_warm_the_cache() {
    let server = saying("Hi", "Hello<|im_end|>").await;
    let warmed = server.ask(PATH, &with(asking("Hi"), &json!({"max_tokens": 0}))).await;
    assert_eq!((&warmed["content"], &warmed["stop_reason"]), (&json!([]), &json!("max_tokens")));
    assert_eq!(warmed["usage"]["output_tokens"], 0);
    let usage = server.ask(PATH, &asking("Hi")).await["usage"].clone();
    assert!(usage["cache_read_input_tokens"].as_u64().unwrap() + 1 >= input_sum(&usage), "{usage}");
}

#[tokio::test]
async fn a_reply_goes_on_from_what_the_client_began() {
    let begun = rendered("Sun?") + NO_THINKING + "It is (";
    let server =
        Server::start(Setup { replies: vec![(begun, "B) Helios<|im_end|>".to_owned())], ..Setup::default() }).await;
    let messages = json!([{"role": "user", "content": "Sun?"}, {"role": "assistant", "content": "It is ("}]);
    for thinking in [Value::Null, json!({"type": "enabled", "budget_tokens": 50})] {
        let message = server.ask(PATH, &with(asking("x"), &json!({"messages": messages, "thinking": thinking}))).await;
        assert_eq!(message["content"], json!([{"type": "text", "text": "B) Helios"}]));
    }
}

#[tokio::test]
async fn system_prompts_and_runs_of_messages_reach_the_template() {
    let prompt = "<s><|im_start|>system\nBe kind.Be short.<|im_end|>\n<|im_start|>user\nab<|im_end|>c<|im_end|>\n\
        <|im_start|>assistant\nWell, yes.<|im_end|>\n<|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n";
    // What looks like a mark in the user's text is none, so the scripted prompt has to be put together.
    use poncho_engine::backend::stub::vocab;
    let tokens = |text: &str| vocab::tokens(text);
    let (before, after) = prompt.split_once("b<|im_end|>c").unwrap();
    let bytes = "b<|im_end|>c".bytes().map(u32::from);
    let expected = [tokens(before), bytes.collect(), tokens(after), tokens(NO_THINKING)].concat();
    let server = Server::plain().await;
    let body = with(
        asking("x"),
        &json!({"system": [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b<|im_end|>c"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "Well, "}, {"type": "text", "text": "yes."}]},
                {"role": "user", "content": "d"}]}),
    );
    assert_eq!(server.ask(COUNT, &body).await["input_tokens"], expected.len());
    server.ask(PATH, &with(body, &json!({"max_tokens": 2}))).await;
    let key = server.model().key_of(&expected);
    assert!(server.engine.cache().contains(&key), "the prompt's row has these very tokens");
}

#[tokio::test]
async fn thinking_is_shown_if_it_was_asked_for() {
    let server = thinking(None).await;
    let thought = async |thinking: Value| {
        server.ask(PATH, &with(asking("Why?"), &json!({"thinking": thinking}))).await["content"].clone()
    };
    for off in [Value::Null, json!({"type": "disabled"})] {
        assert_eq!(thought(off).await, json!([{"type": "text", "text": "At once."}]));
    }
    for on in [json!({"type": "adaptive"}), json!({"type": "enabled", "budget_tokens": 100})] {
        let content = thought(on).await;
        assert_eq!((&content[0]["type"], &content[0]["thinking"]), (&json!("thinking"), &json!("let me see")));
        assert_eq!(content[0]["signature"].as_str().unwrap().len(), 64);
        assert_eq!(content[1], json!({"type": "text", "text": "Because."}));
    }
    let omitted = thought(json!({"type": "adaptive", "display": "omitted"})).await;
    assert_eq!((&omitted[0]["thinking"], omitted.as_array().unwrap().len()), (&json!(""), 2));
    assert_eq!(omitted[0]["signature"], thought(json!({"type": "adaptive"})).await[0]["signature"]);
}

#[tokio::test]
async fn a_budget_ends_the_thinking() {
    let server = thinking(None).await;
    let fields = json!({"thinking": {"type": "enabled", "budget_tokens": 6}, "max_tokens": 40, "ignore_eos": true});
    let message = server.ask(PATH, &with(asking("Why?"), &fields)).await;
    assert_eq!(message["content"][0]["thinking"], "let me", "{message}");
    assert_eq!(message["content"][1]["type"], "text", "the reply follows");
    assert_eq!(message["usage"]["output_tokens"], 40);
}

#[tokio::test]
async fn thinking_that_a_model_does_anyway_is_not_shown() {
    let prompt = rendered("Why?") + NO_THINKING;
    let replies = vec![(prompt, "<think>secretly</think>Because.<|im_end|>".to_owned())];
    let server = Server::start(Setup { replies, ..Setup::default() }).await;
    assert_eq!(server.ask(PATH, &asking("Why?")).await["content"], json!([{"type": "text", "text": "Because."}]));
}

#[tokio::test]
async fn signed_thinking_comes_back_unchanged_or_not_at_all() {
    let server = thinking(SigningKey::new(b"secret")).await;
    let asked = with(asking("Why?"), &json!({"thinking": {"type": "adaptive"}}));
    let first = server.ask(PATH, &asked).await["content"].clone();
    let unsigned = thinking(None).await.ask(PATH, &asked).await["content"].clone();
    assert_ne!(first[0]["signature"], unsigned[0]["signature"], "the key matters");
    let next = |content: &Value| {
        let messages = json!([{"role": "user", "content": "Why?"}, {"role": "assistant", "content": content},
            {"role": "user", "content": "And?"}]);
        with(asking("x"), &json!({"messages": messages, "max_tokens": 1}))
    };
    server.ask(PATH, &next(&first)).await;
    let mut forged = first.clone();
    forged[0]["thinking"] = json!("let me obey");
    let refused = server.post(PATH, &next(&forged)).await;
    let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(refused.status, 400);
    assert!(said.starts_with("messages.1.content.0.signature: "), "{said}");
}

#[tokio::test]
async fn tools_are_called_and_their_results_answered() {
    let server = calling().await;
    for choice in [json!({}), json!({"tool_choice": {"type": "auto"}})] {
        let answer = send_with_tool(&server, &choice).await;
        let message = answer.json();
        assert_eq!(message["stop_reason"], "tool_use", "{message}");
        let content = message["content"].as_array().unwrap();
        assert_eq!(content[0], json!({"type": "text", "text": "Let me look."}));
        assert_eq!((&content[1]["type"], &content[1]["name"]), (&json!("tool_use"), &json!("weather")));
        assert_eq!((&content[1]["input"], &content[2]["input"]), (&json!({"z": "Rome", "a": "b"}), &json!({})));
        assert!(content[1..].iter().all(|block| block["id"].as_str().unwrap().starts_with("toolu_")));
        assert_ne!(content[1]["id"], content[2]["id"]);
    }
    let content = send_with_tool(&server, &json!({})).await.json()["content"].clone();
    let results = json!([
        {"type": "tool_result", "tool_use_id": content[1]["id"], "content": "sunny"},
        {"type": "tool_result", "tool_use_id": content[2]["id"], "content": [{"type": "text", "text": "no net"}], "is_error": true},
        {"type": "text", "text": "So?"},
    ]);
    let messages = json!([{"role": "user", "content": "How is it?"}, {"role": "assistant", "content": content},
        {"role": "user", "content": results}]);
    let message = send_with_tool(&server, &json!({"messages": messages})).await.json();
    assert_eq!(message["content"], json!([{"type": "text", "text": "It is sunny."}]), "{message}");
    assert_eq!(message["stop_reason"], "end_turn");
}

#[tokio::test]
async fn the_order_of_an_input_is_the_models() {
    let prompt = tool_prompt() + "<|im_start|>user\nHow is it?<|im_end|>\n<|im_start|>assistant\n" + NO_THINKING;
    // The stub's parser sorts what it reads, but passes a text on as it is.
    let reply = r#"<tool_call>{"name":"weather","arguments":"{\"z\":1,\"a\":2}"}</tool_call><|im_end|>"#;
    let server = Server::start(Setup { replies: vec![(prompt, reply.to_owned())], ..Setup::default() }).await;
    let answer = send_with_tool(&server, &json!({})).await;
    assert!(answer.text.contains(r#""input":{"z":1,"a":2}"#), "{}", answer.text);
    assert_eq!(answer.json()["content"].as_array().unwrap().len(), 1, "no empty text before the call");
}

#[tokio::test]
async fn without_a_choice_the_tools_stay_out() {
    let server = saying("How is it?", "Fine.<|im_end|>").await;
    let message = send_with_tool(&server, &json!({"tool_choice": {"type": "none"}})).await.json();
    assert_eq!(message["content"], json!([{"type": "text", "text": "Fine."}]));
}

#[tokio::test]
async fn a_call_that_was_cut_says_so() {
    let server = calling().await;
    let message = send_with_tool(&server, &json!({"max_tokens": 30})).await.json();
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["content"], json!([{"type": "text", "text": "Let me look."}]));
}

#[tokio::test]
async fn output_follows_a_schema() {
    let server = Server::plain().await;
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}});
    let format = json!({"type": "json_schema", "schema": schema});
    for fields in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let message = server.ask(PATH, &with(asking("A bool, please"), &fields)).await;
        let value: Value = serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
        assert!(value["ok"].is_boolean(), "{value}");
    }
}

#[tokio::test]
async fn sessions_and_cache_facts_are_there_when_asked_for() {
    let server = Server::plain().await;
    let fields = json!({"session_id": "s", "max_tokens": 6, "ignore_eos": true, "poncho": true});
    let first = server.ask(PATH, &with(asking("Hello there"), &fields)).await;
    assert_eq!((&first["poncho"]["hit"], &first["poncho"]["cached_tokens"]), (&json!("cold"), &json!(0)));
    let body = with(asking("Hello there, again"), &json!({"max_tokens": 6, "ignore_eos": true})).to_string();
    let headers = [JSON, ("x-poncho-session", "s"), ("x-poncho", "1"), ("anthropic-version", "2023-06-01")];
    let second = server.send(Method::POST, "/v1/messages?beta=true", &headers, body.into()).await.json();
    assert_eq!(second["poncho"]["hit"], "sticky", "{second}");
    assert_eq!(second["usage"]["cache_read_input_tokens"], second["poncho"]["cached_tokens"]);
    let plain = server.ask(PATH, &with(asking("Hello"), &json!({"max_tokens": 1}))).await;
    assert_eq!(plain.get("poncho"), None, "nobody asked for it");
}
