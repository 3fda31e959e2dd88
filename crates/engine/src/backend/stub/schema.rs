//! JSON schemas as grammars of the stub: objects, arrays, strings, numbers, booleans, null, `enum` and `const`.
//!
//! Called by the stub's model. Objects have all their properties, in the order of their names and without spaces, which
//! is a part of what the schema allows and enough for tests. It must never allow what the schema forbids.

use serde_json::Value;

use crate::backend::GrammarError;

/// Deeper schemas are refused.
const DEEPEST: usize = 16;

/// The grammar's text.
pub(super) fn to_grammar(schema: &str) -> Result<String, GrammarError> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| bad(error.to_string()))?;
    Ok(format!("root ::= {}\n", rule(&schema, 0)?))
}

fn rule(schema: &Value, depth: usize) -> Result<String, GrammarError> {
    if depth > DEEPEST {
        return Err(bad(format!("it nests more than {DEEPEST} levels deep")));
    }
    if let Some(value) = schema.get("const") {
        return Ok(literal(value));
    }
    if let Some(Value::Array(values)) = schema.get("enum") {
        return Ok(format!("({})", values.iter().map(literal).collect::<Vec<_>>().join(" | ")));
    }
    let kind = schema.get("type").and_then(Value::as_str);
    Ok(match kind.ok_or_else(|| bad(format!("the stub needs a type in {schema}")))? {
        "string" => r#"("\"" [a-zA-Z0-9 ]* "\"")"#.to_owned(),
        "integer" => r#"("-"? ("0" | [1-9] [0-9]*))"#.to_owned(),
        "number" => r#"("-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?)"#.to_owned(),
        "boolean" => r#"("true" | "false")"#.to_owned(),
        "null" => r#""null""#.to_owned(),
        "array" => {
            let items = schema.get("items").ok_or_else(|| bad("an array needs items".to_owned()))?;
            let item = rule(items, depth + 1)?;
            format!(r#"("[" ({item} ("," {item})*)? "]")"#)
        }
        "object" => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let mut parts = Vec::new();
            for (name, property) in properties.into_iter().flatten() {
                let name = literal(&Value::String(name.clone()));
                parts.push(format!(r#"{name} ":" {}"#, rule(property, depth + 1)?));
            }
            format!(r#"("{{" {} "}}")"#, parts.join(r#" "," "#))
        }
        other => return Err(bad(format!("the stub knows no type {other}"))),
    })
}

/// A JSON value as a literal of the grammar.
fn literal(value: &Value) -> String {
    let text = value.to_string().replace('\\', r"\\").replace('"', "\\\"");
    format!("\"{text}\"")
}

fn bad(reason: String) -> GrammarError {
    GrammarError::BadSchema { reason }
}
