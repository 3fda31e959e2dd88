//! The schemas of the document, made from the types that the handlers read and write.
//!
//! Asked by `operation.rs` for the schema of each body. A request has the schema of what its type reads, an answer that of
//! what its type writes. Comments of fields become descriptions; comments of types are for those who read the source and
//! stay there. A schema must never forbid what the server takes.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::{RecursiveTransform, ReplaceBoolSchemas, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Number, Value};

/// Where the document keeps the schemas that have a name.
const PLACE: &str = "/components/schemas";

/// See the module.
pub(super) struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    pub(super) fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.meta_schema = None;
                settings.definitions_path = PLACE.into();
                settings.transforms.push(Box::new(any_value()));
            })
        };
        let requests = settings().for_deserialize().with_transform(RecursiveTransform(bound));
        let answers = settings().for_serialize();
        let plain = |settings: SchemaSettings| settings.with_transform(RecursiveTransform(plain)).into_generator();
        Self { requests: plain(requests), answers: plain(answers) }
    }

    /// What a request is read as.
    pub(super) fn request<T: JsonSchema>(&mut self) -> Value {
        of::<T>(&mut self.requests)
    }

    /// What an answer is written as.
    pub(super) fn answer<T: JsonSchema>(&mut self) -> Value {
        of::<T>(&mut self.answers)
    }

    /// The schemas with a name. What is read and written has the schema of the request, which both obey.
    pub(super) fn named(mut self) -> Map<String, Value> {
        let mut named = self.answers.take_definitions(true);
        named.extend(self.requests.take_definitions(true));
        for schema in named.values_mut().filter_map(Value::as_object_mut) {
            schema.remove("description");
        }
        named
    }
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    let mut schema = generator.subschema_for::<T>();
    for transform in generator.transforms_mut() {
        transform.transform(&mut schema);
    }
    schema.into()
}

/// Some programs that read OpenAPI do not know that a schema may be `true`.
fn any_value() -> impl Transform + Clone + Send {
    let mut transform = ReplaceBoolSchemas::default();
    transform.skip_additional_properties = true;
    transform
}

/// Writes the range of a wide integer out: a number outside of it is refused.
fn bound(schema: &mut Schema) {
    let (least, most): (Number, Number) = match schema.get("format").and_then(Value::as_str) {
        Some("uint" | "uint64") => (0.into(), u64::MAX.into()),
        Some("int64") => (i64::MIN.into(), i64::MAX.into()),
        _ => return,
    };
    let fields = schema.ensure_object();
    fields.entry("minimum").or_insert(least.into());
    fields.entry("maximum").or_insert(most.into());
}

/// Writes a schema as programs that make clients read it best, without formats that are names of Rust types.
fn plain(schema: &mut Schema) {
    if schema.remove("format").is_some_and(|format| format == "uint32") {
        schema.ensure_object().entry("maximum").or_insert(u32::MAX.into());
    }
    if schema.get("additionalProperties").is_some_and(|more| *more == true) {
        schema.remove("additionalProperties");
    }
    if let Some(words) = schema.get("oneOf").and_then(words) {
        schema.remove("oneOf");
        schema.insert("type".to_owned(), "string".into());
        schema.insert("enum".to_owned(), words.into());
    }
    if let Some(Value::Array(forms)) = schema.get_mut("anyOf") {
        *forms = std::mem::take(forms).into_iter().flat_map(alternatives).collect();
    }
}

/// The words of a choice among words, which may be commented one by one.
fn words(forms: &Value) -> Option<Vec<Value>> {
    let of_form = |form: &Value| match (form.get("const"), form.get("enum")) {
        (Some(word @ Value::String(_)), None) => Some(vec![word.clone()]),
        (None, Some(Value::Array(words))) => Some(words.clone()),
        _ => None,
    };
    Some(forms.as_array()?.iter().map(of_form).collect::<Option<Vec<_>>>()?.concat())
}

/// The alternatives of a form that is nothing but a choice, else the form.
fn alternatives(form: Value) -> Vec<Value> {
    match form {
        Value::Object(mut fields) if fields.len() == 1 => match fields.remove("anyOf") {
            Some(Value::Array(forms)) => forms,
            Some(other) => vec![other],
            None => vec![fields.into()],
        },
        other => vec![other],
    }
}

#[cfg(test)]
mod tests {
    use super::super::operations;
    use super::*;

    /// Two types with one name would hide each other in the document.
    #[test]
    fn every_name_belongs_to_one_type() {
        let (mut paths, mut schemas) = (Map::new(), Schemas::new());
        operations().into_iter().for_each(|operation| operation.write(&mut paths, &mut schemas));
        let (requests, answers) = (schemas.requests.definitions(), schemas.answers.definitions());
        assert!(requests.len() > 30 && answers.len() > 50, "{} and {}", requests.len(), answers.len());
        for name in requests.keys().chain(answers.keys()) {
            assert!(!name.ends_with(|end: char| end.is_ascii_digit()), "{name}: another type has this name too");
        }
        // A request that is repeated in an answer may leave a secret out, and has no field more.
        for (name, request) in requests {
            let fields = |schema: &Value| schema["properties"].as_object().cloned().unwrap_or_default();
            let known = fields(request);
            let more = answers.get(name).map(|answer| fields(answer).keys().any(|field| !known.contains_key(field)));
            assert_ne!(more, Some(true), "{name}: a request and an answer of two types");
        }
    }
}
