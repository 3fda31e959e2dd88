//! What a schema is, decided by the same keywords and in the same order as llama.cpp decides it.
//!
//! Asked by the check for every schema it walks. What llama.cpp refuses is `Plain` here: the conversion says why.

use serde_json::{Map, Value};

/// See the module.
pub(super) enum SchemaKind<'s> {
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
pub(super) fn kind<'s>(schema: &'s Value, as_type: Option<&'s str>) -> SchemaKind<'s> {
    let Value::Object(fields) = schema else { return SchemaKind::Plain };
    let list = |key: &str| fields.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if let Some(reference) = fields.get("$ref") {
        return reference.as_str().map_or(SchemaKind::Plain, SchemaKind::Reference);
    }
    for key in ["oneOf", "anyOf"] {
        if fields.contains_key(key) {
            return SchemaKind::Any(key, list(key));
        }
    }
    let own_type = as_type.or_else(|| fields.get("type").and_then(Value::as_str));
    if as_type.is_none()
        && let Some(Value::Array(types)) = fields.get("type")
    {
        return SchemaKind::Types(types);
    }
    if let Some(value) = fields.get("const") {
        return SchemaKind::Constant(value);
    }
    if fields.contains_key("enum") {
        return SchemaKind::Enum(list("enum"));
    }
    let has_all = fields.contains_key("allOf");
    let has_properties = fields.contains_key("properties")
        || fields.get("additionalProperties").is_some_and(|additional| *additional != Value::Bool(true));
    match own_type.unwrap_or_default() {
        "" if has_properties => SchemaKind::Object(fields),
        "" if has_all => SchemaKind::All(list("allOf")),
        "" if fields.contains_key("items") || fields.contains_key("prefixItems") => array(fields),
        "" => SchemaKind::Text(fields),
        "object" if !has_properties && has_all => SchemaKind::All(list("allOf")),
        "object" => SchemaKind::Object(fields),
        "string" if has_all => SchemaKind::All(list("allOf")),
        "string" => SchemaKind::Text(fields),
        "array" => array(fields),
        _ => SchemaKind::Plain,
    }
}

fn array(fields: &Map<String, Value>) -> SchemaKind<'_> {
    for key in ["items", "prefixItems"] {
        match fields.get(key) {
            Some(Value::Array(items)) => return SchemaKind::Tuple(key, items),
            Some(items) => return SchemaKind::Array(fields, Some((key, items))),
            None => {}
        }
    }
    SchemaKind::Array(fields, None)
}
