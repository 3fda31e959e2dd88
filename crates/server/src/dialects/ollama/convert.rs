//! From Ollama's messages to those of OpenAI's shape, which templates want, and the other fields of a turn.
//!
//! Every refusal names the field. Messages are rebuilt field by field. A call without an id gets one that depends
//! on its place only: the same conversation must give the same prompt, or nothing of it is found in the cache.

use std::collections::VecDeque;

use poncho_api::{ANY_OBJECT, Thinking};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::types::{CallBody, MessageBody, Think};
use crate::error::{ApiError, NO_IMAGES};
use crate::http::body::Object;

/// The schema that `format` asks for.
pub(crate) fn schema(format: Option<&RawValue>) -> Result<Option<String>, ApiError> {
    let Some(format) = format else { return Ok(None) };
    match serde_json::from_str::<&str>(format.get()) {
        Ok("") => Ok(None),
        Ok("json") => Ok(Some(ANY_OBJECT.to_owned())),
        _ if format.get().starts_with('{') => Ok(Some(poncho_api::with_named_root(format.get()).into_owned())),
        _ => Err(ApiError::field("format", "it must be \"json\" or a JSON schema, which is an object")),
    }
}

/// What the engine and the template hear about thinking.
pub(crate) fn thinking(think: Option<Think>) -> (Thinking, String) {
    match think {
        None => (Thinking::Default, String::new()),
        Some(Think::Off) => (Thinking::Off, String::new()),
        Some(Think::On) => (Thinking::On, String::new()),
        Some(Think::Level(level)) => (Thinking::On, json!({"reasoning_effort": level}).to_string()),
    }
}

/// Refuses images: no model of this server sees.
pub(crate) fn check_images(field: &str, images: Option<&[String]>) -> Result<(), ApiError> {
    match images {
        None | Some([]) => Ok(()),
        Some(_) => Err(ApiError::field(field, NO_IMAGES)),
    }
}

/// The conversation in OpenAI's shape.
pub(crate) fn messages(bodies: &[Object<MessageBody>]) -> Result<Vec<Value>, ApiError> {
    let mut calls = Calls::default();
    bodies.iter().enumerate().map(|(at, body)| message(at, body, &mut calls)).collect()
}

/// Calls that no tool has answered yet, and how many there were.
#[derive(Default)]
struct Calls {
    open: VecDeque<(String, String)>,
    count: usize,
}

impl Calls {
    fn fresh_id(&mut self) -> String {
        self.count += 1;
        // Some templates insist on nine digits or letters.
        format!("{:09}", self.count)
    }

    /// The call that a tool's message answers: the one it names, else the oldest.
    fn answered(&mut self, body: &MessageBody) -> (String, Option<String>) {
        let by_id = |(id, _): &(String, String)| body.tool_call_id.as_ref() == Some(id);
        let by_name = |(_, name): &(String, String)| body.tool_name.as_ref() == Some(name);
        let place = self.open.iter().position(by_id).or_else(|| self.open.iter().position(by_name));
        let found = match place {
            Some(place) => self.open.remove(place),
            None if body.tool_call_id.is_none() => self.open.pop_front(),
            None => None,
        };
        let (id, name) = found.unzip();
        let id = body.tool_call_id.clone().or(id).unwrap_or_else(|| self.fresh_id());
        (id, body.tool_name.clone().or(name))
    }
}

fn message(at: usize, body: &MessageBody, calls: &mut Calls) -> Result<Value, ApiError> {
    let field = |name: &str| format!("messages[{at}].{name}");
    let lower = body.role.to_lowercase();
    let role = ["system", "user", "assistant", "tool"].into_iter().find(|role| *role == lower);
    let role = role.ok_or_else(|| {
        ApiError::field(field("role"), format!("it is {:?} and must be system, user, assistant or tool", body.role))
    })?;
    check_images(&field("images"), body.images.as_deref())?;
    let content = body.content.as_deref().unwrap_or_default();
    let mut written = Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content.into())]);
    match role {
        "assistant" => {
            let made = body.tool_calls.iter().flatten().enumerate();
            let made = made.map(|(place, call)| call_json(&field(&format!("tool_calls[{place}]")), call, calls));
            let made = made.collect::<Result<Vec<Value>, ApiError>>()?;
            if content.is_empty() && !made.is_empty() {
                written.insert("content".to_owned(), Value::Null);
            }
            if !made.is_empty() {
                written.insert("tool_calls".to_owned(), made.into());
            }
            if let Some(thinking) = body.thinking.as_deref().filter(|thinking| !thinking.is_empty()) {
                written.insert("reasoning_content".to_owned(), thinking.into());
            }
        }
        "tool" => {
            let (id, name) = calls.answered(body);
            written.insert("tool_call_id".to_owned(), id.into());
            written.extend(name.map(|name| ("name".to_owned(), name.into())));
        }
        _ => {}
    }
    Ok(Value::Object(written))
}

fn call_json(field: &str, call: &CallBody, calls: &mut Calls) -> Result<Value, ApiError> {
    let arguments = match &call.function.arguments {
        None => "{}".to_owned(),
        Some(raw) if raw.get().starts_with('{') => raw.get().to_owned(),
        Some(_) => return Err(ApiError::field(format!("{field}.function.arguments"), "it must be an object")),
    };
    let id = call.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(|| calls.fresh_id());
    let name = call.function.name.clone();
    calls.open.push_back((id.clone(), name.clone()));
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(messages_json: &Value) -> Result<Vec<Value>, ApiError> {
        let bodies: Vec<Object<MessageBody>> = serde_json::from_str(&messages_json.to_string()).unwrap();
        messages(&bodies)
    }

    #[test]
    fn messages_take_openais_shape() {
        let read = converted(&json!([
            {"role": "System", "content": "Be kind.", "name": "ignored"},
            {"role": "user", "content": "Hi", "images": []},
            {"role": "assistant", "content": "Hm", "thinking": "so", "tool_calls": []},
            {"role": "user"},
        ]));
        let expected = json!([
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hm", "reasoning_content": "so"},
            {"role": "user", "content": ""},
        ]);
        assert_eq!(Value::Array(read.unwrap()), expected);
    }

    #[test]
    fn calls_and_their_answers_find_each_other() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"b": 1, "a": 2}}});
        let read = converted(&json!([
            {"role": "assistant", "content": "", "tool_calls": [call("one"), call("two"), {"id": "x", "function": {"name": "three"}}]},
            {"role": "tool", "content": "2", "tool_name": "two"},
            {"role": "tool", "content": "3", "tool_call_id": "x"},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "?", "tool_name": "four"},
        ]))
        .unwrap();
        assert_eq!(read[0]["content"], Value::Null);
        let ids: Vec<&Value> = read[0]["tool_calls"].as_array().unwrap().iter().map(|call| &call["id"]).collect();
        assert_eq!(ids, ["000000001", "000000002", "x"]);
        assert_eq!(read[0]["tool_calls"][2]["function"], json!({"name": "three", "arguments": "{}"}));
        let answers: Vec<(&str, &str)> = read[1..]
            .iter()
            .map(|message| (message["tool_call_id"].as_str().unwrap(), message["name"].as_str().unwrap()))
            .collect();
        assert_eq!(answers, [("000000002", "two"), ("x", "three"), ("000000001", "one"), ("000000003", "four")]);
    }

    #[test]
    fn the_order_of_arguments_is_kept() {
        let text =
            r#"[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"z":1,"a":2}}}]}]"#;
        let bodies: Vec<Object<MessageBody>> = serde_json::from_str(text).unwrap();
        let read = messages(&bodies).unwrap();
        assert_eq!(read[0]["tool_calls"][0]["function"]["arguments"], r#"{"z":1,"a":2}"#);
    }

    #[test]
    fn wrong_messages_are_named() {
        for (wrong, field) in [
            (json!([{"role": "king", "content": "x"}]), "messages[0].role: "),
            (json!([{"role": "user"}, {"role": "user", "images": ["aGk="]}]), "messages[1].images: "),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]),
                "messages[0].tool_calls[0].function.arguments: ",
            ),
        ] {
            let said = converted(&wrong).unwrap_err().to_string();
            assert!(said.starts_with(field), "{said}");
        }
    }

    #[test]
    fn formats_are_json_or_a_schema() {
        let read = |json: &str| {
            let raw = RawValue::from_string(json.to_owned()).unwrap();
            schema(Some(&raw)).map_err(|error| error.to_string())
        };
        assert_eq!(schema(None).unwrap(), None);
        assert_eq!(read(r#""""#), Ok(None));
        assert_eq!(read(r#""json""#), Ok(Some(ANY_OBJECT.to_owned())));
        assert_eq!(read(r#"{"z":1,"a":2}"#), Ok(Some(r#"{"z":1,"a":2}"#.to_owned())));
        for wrong in [r#""xml""#, "5", "[]", "true"] {
            assert!(read(wrong).unwrap_err().starts_with("format: "), "{wrong}");
        }
    }
}
