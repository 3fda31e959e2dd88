//! What the fields of a request mean for the turn, and which values are refused.

use serde_json::{Value, json};

use super::*;
use crate::http::body::parse;

fn body(fields: &Value) -> MessagesBody {
    let mut body = json!({"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "x"}]});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    parse(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{fields}: {error}"))
}

fn read(fields: &Value) -> Asked {
    asked(&body(fields), None, &Request::default()).unwrap_or_else(|error| panic!("{fields}: {error}"))
}

const TOOL: &str = r#"{"name": "weather", "description": "Shows it", "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}}}"#;

fn tool() -> Value {
    serde_json::from_str(TOOL).unwrap()
}

#[test]
fn sampling_and_limits_are_taken_over() {
    let fields = json!({"temperature": 1, "top_p": 0.5, "top_k": 7, "stop_sequences": ["a", "b"], "session_id": "s",
        "seed": 3, "min_p": 0.1, "metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}});
    let generation = read(&fields).generate.request;
    assert_eq!((generation.max_tokens, generation.mode), (Some(64), Mode::Complete));
    assert_eq!(generation.stop, ["a", "b"]);
    let sampling = &generation.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed), (1.0, 0.5, 7, Some(3)));
    assert_eq!(generation.session_id.as_deref(), Some("s"));
    let warming = read(&json!({"max_tokens": 0})).generate.request;
    assert_eq!(warming.mode, Mode::PrefillOnly, "zero tokens only warm the cache");
}

#[test]
fn tools_keep_their_order_inside() {
    let text = format!(r#"{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{TOOL}]}}"#);
    let turn =
        asked(&parse(text.as_bytes()).unwrap(), None, &Request::default()).unwrap().generate.turn().unwrap().clone();
    let expected = r#"{"type":"function","function":{"name":"weather","description":"Shows it","parameters":{"type": "object", "properties": {"z": {}, "a": {}}}}}"#;
    assert_eq!((turn.tools[0].name.as_str(), turn.tools[0].json.as_str()), ("weather", expected));
    let custom = json!({"type": "custom", "name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral"}});
    assert_eq!(read(&json!({"tools": [custom]})).generate.turn().unwrap().clone().tools[0].name, "f");
}

#[test]
fn choices_have_four_forms() {
    let cases = [
        (json!({"type": "auto"}), Choice::Auto, true),
        (json!({"type": "any", "disable_parallel_tool_use": true}), Choice::Required, false),
        (json!({"type": "tool", "name": "weather"}), Choice::Named("weather".into()), true),
        (json!({"type": "none"}), Choice::None, true),
        (json!({"type": "auto", "disable_parallel_tool_use": false}), Choice::Auto, true),
    ];
    for (choice, expected, parallel) in cases {
        let turn = read(&json!({"tools": [tool()], "tool_choice": choice})).generate.turn().unwrap().clone();
        assert_eq!((turn.choice, turn.parallel_calls), (expected, parallel), "{choice}");
    }
    assert_eq!(read(&json!({})).generate.turn().unwrap().clone().choice, Choice::Auto);
}

#[test]
fn thinking_is_off_unless_it_is_asked_for() {
    let enabled = |display: Value| json!({"type": "enabled", "budget_tokens": 20, "display": display});
    let cases = [
        (Value::Null, Thinking::Off, None, Display::Hidden),
        (json!({"type": "disabled"}), Thinking::Off, None, Display::Hidden),
        (json!({"type": "adaptive"}), Thinking::Default, None, Display::Full),
        (enabled(Value::Null), Thinking::On, Some(20), Display::Full),
        (enabled(json!("summarized")), Thinking::On, Some(20), Display::Full),
        (enabled(json!("omitted")), Thinking::On, Some(20), Display::Omitted),
    ];
    for (thinking, expected, budget, display) in cases {
        let asked = read(&json!({"thinking": thinking}));
        assert_eq!((asked.generate.request.thinking, asked.display), (expected, display), "{thinking}");
        assert_eq!(asked.generate.request.thinking_budget, budget, "{thinking}");
    }
    let begun = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "It"}]);
    let begun = read(&json!({"thinking": {"type": "adaptive"}, "messages": begun})).generate;
    assert_eq!((begun.request.thinking, begun.turn().unwrap().reply_start.as_str()), (Thinking::Off, "It"));
}

#[test]
fn forms_and_effort_reach_the_template() {
    let format = json!({"type": "json_schema", "schema": {"type": "null"}});
    for fields in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        assert_eq!(read(&fields).generate.turn().unwrap().clone().json_schema.as_deref(), Some(r#"{"type":"null"}"#));
    }
    for (effort, known) in [("low", "low"), ("high", "high"), ("max", "high")] {
        let kwargs =
            read(&json!({"output_config": {"effort": effort}})).generate.turn().unwrap().clone().template_kwargs;
        assert_eq!(kwargs, format!(r#"{{"reasoning_effort":"{known}"}}"#));
    }
    assert_eq!(read(&json!({"output_config": {}})).generate.turn().unwrap().clone().template_kwargs, "");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let begun = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "It"}]);
    let schema = json!({"format": {"type": "json_schema", "schema": {}}});
    let long = "x".repeat(MAX_STOP_BYTES + 1);
    let cases = [
        (json!({"temperature": 1.01}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"stop_sequences": ["a", " \n"]}), "stop_sequences[1]"),
        (json!({"stop_sequences": [""]}), "stop_sequences[0]"),
        (json!({"stop_sequences": [long]}), "stop_sequences[0]"),
        (json!({"stop_sequences": vec!["a"; MAX_STOPS + 1]}), "stop_sequences"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [tool(), {"type": "bash_20250124", "name": "bash"}]}), "tools[1].type"),
        (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (json!({"tools": [{"name": "f", "input_schema": "x"}]}), "tools[0].input_schema"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice.name"),
        (json!({"tools": [tool()], "tool_choice": {"type": "tool"}}), "tool_choice.name"),
        (json!({"tools": [tool()], "tool_choice": {"type": "sometimes"}}), "tool_choice.type"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 0}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "deep"}}), "thinking.type"),
        (json!({"thinking": {"type": "adaptive", "display": "all"}}), "thinking.display"),
        (json!({"output_config": {"effort": "none"}}), "output_config.effort"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
        (json!({"output_format": {"type": "json_schema", "schema": 1}}), "output_format.schema"),
        (json!({"messages": begun, "output_config": schema}), "messages"),
        (json!({"messages": begun, "tools": [tool()], "tool_choice": {"type": "any"}}), "messages"),
    ];
    for (fields, field) in cases {
        let said = asked(&body(&fields), None, &Request::default()).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{field}: ")), "{fields}: {said}");
    }
    let said = asked(
        &body(&json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})),
        None,
        &Request::default(),
    );
    assert!(said.unwrap_err().to_string().contains("web_search"), "the tool is named");
}
