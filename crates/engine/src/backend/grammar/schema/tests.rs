//! Schemas that would take the server's time or its stack, and schemas of real clients.

use serde_json::json;

use super::*;

fn refusal(schema: &Value) -> Option<String> {
    check(schema, &mut Used::default()).err().map(|error| error.to_string())
}

fn object(count: usize, required: bool) -> Value {
    let names: Vec<String> = (0..count).map(|at| format!("property_{at}")).collect();
    let properties: Map<String, Value> = names.iter().map(|name| (name.clone(), json!({"type": "string"}))).collect();
    if required {
        json!({"type": "object", "properties": properties, "required": names})
    } else {
        json!({"type": "object", "properties": properties})
    }
}

/// Hardening 14.2: 6,000 optional properties overflow the stack, 1,000 take seconds.
#[test]
fn objects_with_many_optional_properties_are_refused_with_their_path() {
    for count in [201, 1_000] {
        let nested = json!({"type": "object", "properties": {"inner": object(count, false)}});
        let said = refusal(&nested).unwrap_or_default();
        let expected = format!("at #/properties/inner it has {count} optional properties and 200 are allowed");
        assert!(said.contains(&expected), "{said}");
    }
    assert!(refusal(&object(6_000, false)).unwrap_or_default().contains("2000 are allowed"));
    assert_eq!(refusal(&object(200, false)), None);
    assert_eq!(refusal(&object(1_000, true)), None, "required ones cost little");
    let many: Vec<Value> = (0..12).map(|_| object(200, false)).collect();
    assert!(refusal(&json!({"anyOf": many})).unwrap_or_default().contains("units of work"), "all of them count");
}

#[test]
fn each_bound_is_named_with_its_place() {
    let deep = (0..70).fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner}));
    let words: Vec<String> = (0..4_000).map(|word| format!("word-{word}")).collect();
    let cases = [
        (json!({"properties": {"a": {"enum": words}}}), "at #/properties/a it has 4000 enum values and 1000"),
        (json!({"items": deep}), "65 levels of nesting and 64"),
        (json!({"anyOf": vec![json!({"type": "null"}); 201]}), "201 alternatives and 200"),
        (json!({"prefixItems": vec![json!({"type": "null"}); 201]}), "201 alternatives and 200"),
        (json!({"type": ["object", "object"]}), "at # a type is listed twice"),
        (json!({"pattern": format!("^{}$", "a".repeat(1_000))}), "1002 bytes in a pattern and 1000"),
        (json!({"pattern": "^\u{1b}[31m$"}), "control character"),
        (json!({"type": "string", "minLength": 2_001}), "at #/minLength it has 2001 required repetitions"),
        (json!({"type": "array", "minItems": 1_000_000}), "at #/minItems"),
        (json!({"properties": {"a".repeat(257): {}}}), "257 bytes in a property's name"),
        (json!({"default": object(2_001, true)["properties"]}), "2001 keys in one object"),
    ];
    for (schema, said) in cases {
        let refused = refusal(&schema).unwrap_or_default();
        assert!(refused.contains(said), "{said}: {refused}");
    }
    let text = format!("{{\"description\": \"{}\"}}", "a".repeat(256 << 10));
    let refused = check_text(&text, &mut Used::default());
    assert!(matches!(refused, Err(SchemaError::TooMuch { what: Counted::Bytes, .. })));
    assert!(matches!(check_text("{not json", &mut Used::default()), Err(SchemaError::NotJson { .. })));
}

/// Each definition offers the next one twice: 2 to the power of 20 ways, and llama.cpp follows each.
#[test]
fn references_that_double_at_every_step_are_refused() {
    let mut definitions = Map::new();
    for at in 0..20 {
        let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
        definitions.insert(format!("d{at}"), json!({"anyOf": [next, next]}));
    }
    definitions.insert("d20".to_owned(), json!({"type": "null"}));
    let said = refusal(&json!({"$defs": definitions, "$ref": "#/$defs/d0"})).unwrap_or_default();
    assert!(said.contains("when references are followed"), "{said}");
}

#[test]
fn copies_that_multiply_are_counted() {
    // Every level stands for itself as an object and as a string.
    let twice =
        (0..30).fold(json!({"type": "null"}), |inner, _| json!({"type": ["object", "string"], "allOf": [inner]}));
    assert!(refusal(&twice).is_some());
    // The same object, merged a hundred times.
    let merged = vec![json!({"$ref": "#/$defs/o"}); 150];
    let said = refusal(&json!({"$defs": {"o": object(400, true)}, "allOf": merged})).unwrap_or_default();
    assert!(said.contains("units of work"), "{said}");
    // Names that all become the same rule name.
    let alike = |count: usize| -> Value {
        let name = |at: usize| "名".repeat(at + 1);
        let properties: Map<String, Value> = (0..count).map(|at| (name(at), json!({"type": "null"}))).collect();
        json!({"type": "object", "properties": properties})
    };
    assert_eq!(refusal(&alike(40)), None, "as a Japanese client may send");
    assert!(refusal(&alike(85)).unwrap_or_default().contains("units of work"));
}

#[test]
fn cycles_and_tools_of_real_clients_pass() {
    let tree = json!({
        "$defs": {"node": {"type": "object", "properties": {
            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            "value": {"anyOf": [{"type": "string", "maxLength": 100_000}, {"type": "number"}, {"type": "null"}]},
        }, "required": ["value"], "additionalProperties": false}},
        "$ref": "#/$defs/node",
    });
    assert_eq!(refusal(&tree), None);
    let tools: Vec<Value> = (0..128)
        .map(|at| json!({"type": "function", "function": {"name": format!("f{at}"), "parameters": object(25, false)}}))
        .collect();
    let tools = Value::from(tools).to_string();
    assert_eq!(check_tools(&tools, &mut Used::default()), Ok(()));
    let bad = json!([{"type": "function", "function": {"name": "wide", "parameters": object(300, false)}}]).to_string();
    let (tool, error) = check_tools(&bad, &mut Used::default()).unwrap_err();
    assert_eq!(tool, "wide");
    assert!(error.to_string().contains("300 optional properties"));
}
