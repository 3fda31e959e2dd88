//! The request field `poncho`: `true` asks for the report, an object also says how the prompt is read.
//!
//! Read by the bodies of all dialects and applied to the request before it starts. A field of the object that is not known
//! is refused, unlike elsewhere in a body: the object is Poncho's own, so an unknown field is a typing error.

use std::borrow::Cow;
use std::fmt;

use poncho_api::{Drafts, Key, Mode, Request};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use crate::error::ApiError;
use crate::forms::form;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PonchoOptions {
    /// Whether the answer has the `poncho` object.
    pub(crate) reports: bool,
    prefill_only: bool,
    parent_key: Option<Key>,
    continues: bool,
    drafts: Option<Drafts>,
    /// Asks for cache diagnostics: the id of an earlier reply, or `None` for a first turn.
    pub(crate) previous_id: Option<Option<String>>,
}

/// Where a prompt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PromptOrigin {
    /// The client wrote all of it.
    Written,
    /// The server makes it out of messages, a template or the texts around a gap.
    Composed,
}

impl PonchoOptions {
    /// Changes a request as the object says.
    pub(crate) fn apply(&self, request: &mut Request, origin: PromptOrigin) -> Result<(), ApiError> {
        if self.continues {
            self.check_continues(origin)?;
            request.mode = Mode::Continue;
        }
        if self.prefill_only {
            request.mode = Mode::PrefillOnly;
        }
        request.parent_key = self.parent_key;
        request.drafts = self.drafts.unwrap_or(request.drafts);
        Ok(())
    }

    fn check_continues(&self, origin: PromptOrigin) -> Result<(), ApiError> {
        let reason = match (origin, self.prefill_only, self.parent_key) {
            (PromptOrigin::Composed, ..) => {
                "only a prompt that is used as written can be appended to a session; send it to /v1/completions without \
                 suffix, or to /api/generate with raw"
            }
            (PromptOrigin::Written, true, _) => "it cannot be combined with prefill_only; leave one of them out",
            (PromptOrigin::Written, false, Some(_)) => {
                "it goes on from the session and not from a row; leave parent_key out"
            }
            (PromptOrigin::Written, false, None) => return Ok(()),
        };
        Err(ApiError::field("poncho.continue", reason))
    }
}

/// Says how the prompt is read.
#[derive(serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct Fields {
    /// Read the prompt, keep its state, generate nothing.
    prefill_only: Option<bool>,
    /// The row that the prompt builds on: the finish_key of an earlier reply.
    #[schemars(with = "Option<String>", regex(pattern = "^[0-9a-f]{64}$"))]
    parent_key: Option<Key>,
    /// Append a prompt that is used as written to the session.
    #[serde(rename = "continue")]
    continues: Option<bool>,
    /// Which tokens the reply may be guessed from, at most what the server allows.
    #[schemars(with = "Option<DraftsWord>")]
    drafts: Option<Drafts>,
    /// Asks what changed since an earlier reply, which it names; null on the first turn.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    previous_id: Option<Option<String>>,
}

form! {
    /// Which tokens drafts may come from.
    DraftsWord, json_schema!({"type": "string", "enum": Drafts::ALL.map(Drafts::as_str)})
}

impl JsonSchema for PonchoOptions {
    fn schema_name() -> Cow<'static, str> {
        "PonchoOptions".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "boolean"}, generator.subschema_for::<Fields>(), {"type": "null"}]})
    }
}

/// A field that is there, `null` or not.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for PonchoOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OptionsVisitor)
    }
}

struct OptionsVisitor;

impl<'de> Visitor<'de> for OptionsVisitor {
    type Value = PonchoOptions;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a boolean or an object with prefill_only, parent_key, continue or previous_id")
    }

    fn visit_bool<E: de::Error>(self, reports: bool) -> Result<PonchoOptions, E> {
        Ok(PonchoOptions { reports, ..PonchoOptions::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PonchoOptions, A::Error> {
        let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
        let Fields { prefill_only, parent_key, continues, drafts, previous_id } = fields;
        Ok(PonchoOptions {
            reports: true,
            prefill_only: prefill_only.unwrap_or(false),
            parent_key,
            continues: continues.unwrap_or(false),
            drafts,
            previous_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PonchoOptions, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    fn applied(text: &str, origin: PromptOrigin) -> Result<Request, String> {
        let mut request = Request::default();
        read(text)?.apply(&mut request, origin).map_err(|error| error.to_string())?;
        Ok(request)
    }

    #[test]
    fn an_object_implies_the_report_and_a_boolean_is_only_that() {
        assert_eq!(read("false").unwrap(), PonchoOptions::default());
        assert_eq!(read("true").unwrap(), read("{}").unwrap());
        assert!(read(r#"{"prefill_only": false, "parent_key": null}"#).unwrap().reports);
        assert_eq!(read("{}").unwrap().previous_id, None);
        assert_eq!(read(r#"{"previous_id": null}"#).unwrap().previous_id, Some(None));
        assert_eq!(read(r#"{"previous_id": "a"}"#).unwrap().previous_id, Some(Some("a".to_owned())));
    }

    #[test]
    fn each_field_changes_the_request() {
        let key = Key::from_bytes([0xab; 32]);
        let parent = applied(&format!(r#"{{"parent_key": "{key}"}}"#), PromptOrigin::Composed).unwrap();
        assert_eq!((parent.parent_key, parent.mode), (Some(key), Mode::Complete));
        let drafts = applied(r#"{"drafts": "context"}"#, PromptOrigin::Composed).unwrap();
        assert_eq!((drafts.drafts, parent.drafts), (Drafts::Context, Drafts::Auto));
        let prefill = applied(r#"{"prefill_only": true}"#, PromptOrigin::Composed).unwrap();
        assert_eq!(prefill.mode, Mode::PrefillOnly);
        assert_eq!(applied(r#"{"continue": true}"#, PromptOrigin::Written).unwrap().mode, Mode::Continue);
        assert_eq!(applied("true", PromptOrigin::Composed).unwrap(), Request::default());
    }

    #[test]
    fn a_mode_that_a_dialect_set_stays_unless_the_object_names_one() {
        let mut request = Request { mode: Mode::PrefillOnly, ..Request::default() };
        read("true").unwrap().apply(&mut request, PromptOrigin::Composed).unwrap();
        assert_eq!(request.mode, Mode::PrefillOnly);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let key = Key::from_bytes([1; 32]);
        let short = r#"{"parent_key": "abc"}"#;
        for (text, words) in [
            ("3", "a boolean or an object"),
            (r#""yes""#, "a boolean or an object"),
            ("[true]", "a boolean or an object"),
            (r#"{"prefil_only": true}"#, "unknown field `prefil_only`, expected one of `prefill_only`"),
            (short, "64 lower-case hexadecimal digits"),
        ] {
            assert!(read(text).unwrap_err().contains(words), "{text}: {:?}", read(text));
        }
        let with_key = format!(r#"{{"continue": true, "parent_key": "{key}"}}"#);
        for (text, origin, words) in [
            (r#"{"continue": true}"#, PromptOrigin::Composed, "/v1/completions"),
            (r#"{"continue": true, "prefill_only": true}"#, PromptOrigin::Written, "prefill_only"),
            (&with_key, PromptOrigin::Written, "parent_key"),
        ] {
            let refused = applied(text, origin).unwrap_err();
            assert!(refused.starts_with("poncho.continue: ") && refused.contains(words), "{refused}");
        }
    }
}
