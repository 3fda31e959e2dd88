//! What a schema is, decided by the same keywords and in the same order as llama.cpp decides it.
//!
//! Asked by the check for every schema it walks. What llama.cpp refuses is `Plain` here: the conversion says why.

use serde_json::{Map, Value};

/// See the module.
pub(super) enum Kind<'s> {
    Reference(&'s str),
    /// The keyword, and the alternatives.
    Any(&'static str, &'s [Value]),
    All(&'s [Value]),
    Types(&'s [Value]),
    Constant(&'s Value),
    Enum(&'s [Value]),
    Object(&'s Map<String, Value>),
    /// The keyword, and one schema for each place.
    Tuple(&'static str, &'s [Value]),
    /// With the keyword and the schema of its items, if it has one.
    Array(&'s Map<String, Value>, Option<(&'static str, &'s Value)>),
    Text(&'s Map<String, Value>),
    Plain,
}

/// What a schema is; `as_type` stands for its own list of types.
pub(super) fn kind<'s>(schema: &'s Value, as_type: Option<&'s str>) -> Kind<'s> {
    let Value::Object(fields) = schema else { return Kind::Plain };
    let list = |key: &str| fields.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if let Some(reference) = fields.get("$ref") {
        return reference.as_str().map_or(Kind::Plain, Kind::Reference);
    }
    for key in ["oneOf", "anyOf"] {
        if fields.contains_key(key) {
            return Kind::Any(key, list(key));
        }
    }
    let own_type = as_type.or_else(|| fields.get("type").and_then(Value::as_str));
    if as_type.is_none()
        && let Some(Value::Array(types)) = fields.get("type")
    {
        return Kind::Types(types);
    }
    if let Some(value) = fields.get("const") {
        return Kind::Constant(value);
    }
    if fields.contains_key("enum") {
        return Kind::Enum(list("enum"));
    }
    let has_all = fields.contains_key("allOf");
    let has_properties = fields.contains_key("properties")
        || fields.get("additionalProperties").is_some_and(|additional| *additional != Value::Bool(true));
    match own_type.unwrap_or_default() {
        "" if has_properties => Kind::Object(fields),
        "" if has_all => Kind::All(list("allOf")),
        "" if fields.contains_key("items") || fields.contains_key("prefixItems") => array(fields),
        "" => Kind::Text(fields),
        "object" if !has_properties && has_all => Kind::All(list("allOf")),
        "object" => Kind::Object(fields),
        "string" if has_all => Kind::All(list("allOf")),
        "string" => Kind::Text(fields),
        "array" => array(fields),
        _ => Kind::Plain,
    }
}

fn array(fields: &Map<String, Value>) -> Kind<'_> {
    for key in ["items", "prefixItems"] {
        match fields.get(key) {
            Some(Value::Array(items)) => return Kind::Tuple(key, items),
            Some(items) => return Kind::Array(fields, Some((key, items))),
            None => {}
        }
    }
    Kind::Array(fields, None)
}
