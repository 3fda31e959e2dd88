//! JSON schemas that refer to themselves as a whole, with `"$ref": "#"`, which llama.cpp's conversion does not know.
//!
//! Used where a schema of a client comes in. The text stays as it was, because replies follow its order: only such a
//! reference gets a name, under which a copy of the schema is added. It must never touch a schema without one.

use std::borrow::Cow;

/// What the copy is called.
const NAME: &str = "poncho_root";

/// The same schema without references to all of it; `text` is a JSON object.
#[must_use]
pub fn with_named_root(text: &str) -> Cow<'_, str> {
    let Some(named) = named(text) else { return Cow::Borrowed(text) };
    match named.trim_start().strip_prefix('{') {
        Some(rest) => Cow::Owned(format!("{{\"{NAME}\":{named},{rest}")),
        None => Cow::Borrowed(text),
    }
}

/// The text with every reference to the root replaced; `None` if it has none.
fn named(text: &str) -> Option<String> {
    // Quotes inside of texts are escaped, so this is always a whole text.
    const KEY: &str = "\"$ref\"";
    const ROOT: &str = "\"#\"";
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(KEY) {
        out.push_str(before);
        out.push_str(KEY);
        rest = after;
        let value = after.trim_start().strip_prefix(':').map(str::trim_start);
        if let Some(behind) = value.and_then(|value| value.strip_prefix(ROOT)) {
            out.push_str(":\"#/");
            out.push_str(NAME);
            out.push('"');
            rest = behind;
        }
    }
    out.push_str(rest);
    (out != text).then_some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_references_to_the_root_are_named() {
        let plain = r##"{"properties": {"a": {"$ref": "#/$defs/a"}}, "description": "\"$ref\": \"#\""}"##;
        assert!(matches!(with_named_root(plain), Cow::Borrowed(text) if text == plain));
        let tree = r##"{"z": 1, "items": {"$ref" : "#"}, "a": {"$ref":"#/$defs/a"}}"##;
        let named = with_named_root(tree);
        let end = r##""z": 1, "items": {"$ref":"#/poncho_root"}, "a": {"$ref":"#/$defs/a"}}"##;
        assert!(named.ends_with(end), "{named}");
        let read: Value = serde_json::from_str(&named).unwrap();
        assert_eq!(read["poncho_root"]["items"], json!({"$ref": "#/poncho_root"}));
        assert_eq!(read["poncho_root"]["z"], 1);
    }
}
