//! Forms that fields of every dialect have: one text or a list, and what only their schemas say.
//!
//! Used by the request and answer types of the dialects and by the options of a model. Nothing here knows a field, and
//! nothing but the document of the API depends on a schema.

use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value, json};

/// Makes a type that has a schema and no values: for a field that is read as any JSON and checked later.
macro_rules! form {
    ($(#[$doc:meta])+ $name:ident, $schema:expr) => {
        $(#[$doc])+
        pub(crate) enum $name {}

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}
pub(crate) use form;

/// Any object.
pub(crate) type AnyObject = Map<String, Value>;

/// A field of an answer that may be absent and may be `null`. Written with `oneOf`, which [`left_out`] lets be.
pub(crate) fn or_null<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"oneOf": [generator.subschema_for::<T>(), {"type": "null"}]})
}

/// For types of answers: what is not required is left out when it has no value, so it is never `null`. A type that
/// flattens an `Option` cannot use it if a field in there may be `null`.
pub(crate) fn left_out(schema: &mut Schema) {
    let required: Vec<Value> = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        if let Some(property) = property.as_object_mut().filter(|_| !required.contains(&json!(name))) {
            remove_null(property);
        }
    }
}

fn remove_null(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(mut forms)) = schema.remove("anyOf") {
        forms.retain(|form| *form != json!({"type": "null"}));
        match (forms.pop(), forms.is_empty()) {
            (Some(Value::Object(only)), true) => schema.extend(only),
            (last, _) => {
                forms.extend(last);
                schema.insert("anyOf".to_owned(), forms.into());
            }
        }
    }
}

/// Makes a field of a request one that may be absent or `null`.
pub(crate) fn may_be_absent<T: JsonSchema>(schema: &mut Schema, field: &str, generator: &mut SchemaGenerator) {
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| name != field);
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.insert(field.to_owned(), generator.subschema_for::<Option<T>>().into());
    }
}

/// One text or several.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(with = "Either<String>", inline)]
pub(crate) struct Texts(pub(crate) Vec<String>);

/// Reads a text or a list; both go through a visitor so that errors name the element.
pub(crate) struct TextOrList<T>(PhantomData<T>);

impl<T> Default for TextOrList<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

/// What it read.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
pub(crate) enum Either<T> {
    Text(String),
    List(Vec<T>),
}

impl<T> TextOrList<T> {
    /// Reads one.
    pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Either<T>, D::Error>
    where
        T: Deserialize<'de>,
    {
        deserializer.deserialize_any(Self(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrList<T> {
    type Value = Either<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string or a list")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Either::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Either::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = list.next_element()? {
            all.push(item);
        }
        Ok(Either::List(all))
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match TextOrList::<String>::read(deserializer)? {
            Either::Text(text) => vec![text],
            Either::List(texts) => texts,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_of_an_answer_is_never_null() {
        #[derive(serde::Serialize, JsonSchema)]
        #[schemars(transform = left_out)]
        struct Answer {
            always: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            word: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<Texts>")]
            texts: Option<Vec<String>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            #[schemars(schema_with = "or_null::<String>")]
            both: Option<Option<String>>,
        }
        let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
        let schema = settings.into_generator().into_root_schema_for::<Answer>();
        let field = |name: &str| schema.pointer(&format!("/properties/{name}")).unwrap();
        assert_eq!(schema.get("required").unwrap(), &json!(["always"]));
        assert_eq!(field("always")["type"], json!(["integer", "null"]));
        assert_eq!(*field("word"), json!({"type": "string"}));
        assert_eq!(field("texts")["anyOf"].as_array().unwrap().len(), 2);
        assert_eq!(*field("both"), json!({"oneOf": [{"type": "string"}, {"type": "null"}]}));
    }
}
