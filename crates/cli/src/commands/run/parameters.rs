//! How replies are made: sampling, length and format, as flags and `/set` set them.
//!
//! Sent with every request. A wrong value is refused here, before a request carries it. No input or output but the file
//! of a schema.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use poncho_cache::{Links, open_regular};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::RunArgs;

/// The word that removes a value.
const DEFAULT: &str = "default";
/// The field of a request for the form of its reply.
const FORMAT: &str = "response_format";
/// Maximum size of a schema.
const LONGEST_SCHEMA: u64 = 1 << 20;

/// The values that a parameter may have.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Range {
    Number(f64, f64),
    Whole(i64, i64),
}

/// A parameter: the name that people type, the field of a request, its values.
struct Parameter {
    name: &'static str,
    field: &'static str,
    range: Range,
}

const fn number(name: &'static str, field: &'static str, least: f64, most: f64) -> Parameter {
    Parameter { name, field, range: Range::Number(least, most) }
}

const fn whole(name: &'static str, field: &'static str, least: i64, most: i64) -> Parameter {
    Parameter { name, field, range: Range::Whole(least, most) }
}

/// All parameters, in the order of `/set`. The names are those of Modelfiles.
const PARAMETERS: [Parameter; 9] = [
    number("temperature", "temperature", 0.0, 2.0),
    number("top_p", "top_p", 0.0, 1.0),
    whole("top_k", "top_k", 0, 1_000_000),
    number("min_p", "min_p", 0.0, 1.0),
    number("repeat_penalty", "repetition_penalty", 0.1, 10.0),
    number("presence_penalty", "presence_penalty", -2.0, 2.0),
    number("frequency_penalty", "frequency_penalty", -2.0, 2.0),
    whole("seed", "seed", i64::MIN, i64::MAX),
    whole("num_predict", "max_tokens", 1, 1_000_000_000),
];

/// The form of a reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Format {
    /// A JSON object.
    Json,
    /// JSON that follows a schema.
    Schema(Value),
}

impl Format {
    /// Reads `json`, a schema, or the file of a schema.
    pub(crate) fn read(text: &str) -> anyhow::Result<Self> {
        if text == "json" {
            return Ok(Self::Json);
        }
        let schema = if text.trim_start().starts_with('{') { text.to_owned() } else { schema_of(Path::new(text))? };
        let schema: Value =
            serde_json::from_str(&schema).with_context(|| format!("the schema `{text}` is not valid JSON"))?;
        ensure!(schema.is_object(), "the schema `{text}` is not a JSON object");
        Ok(Self::Schema(schema))
    }

    fn field(&self) -> Value {
        match self {
            Self::Json => json!({"type": "json_object"}),
            Self::Schema(schema) => {
                json!({"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}})
            }
        }
    }
}

fn schema_of(path: &Path) -> anyhow::Result<String> {
    let cannot =
        || format!("cannot read the schema {}; write `json`, or name a file with a JSON schema", path.display());
    let mut text = String::new();
    let file = open_regular(path, Links::Follow).with_context(cannot)?;
    file.take(LONGEST_SCHEMA).read_to_string(&mut text).with_context(cannot)?;
    Ok(text)
}

/// The values that were set; the server has defaults for all others.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Parameters {
    fields: Map<String, Value>,
}

impl Parameters {
    /// The values of the flags.
    pub(crate) fn new(args: &RunArgs) -> anyhow::Result<Self> {
        // Not a float of 32 bits, which JSON would show with the digits of one of 64.
        let temperature = args.temperature.and_then(|number| number.to_string().parse::<f64>().ok());
        let flags = [
            ("temperature", temperature.map(Value::from)),
            ("seed", args.seed.map(Value::from)),
            ("max_tokens", args.max_tokens.map(Value::from)),
        ];
        let fields = flags.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?))).collect();
        let mut parameters = Self { fields };
        if let Some(text) = &args.format {
            parameters.set_format(Some(&Format::read(text)?));
        }
        Ok(parameters)
    }

    /// Sets a parameter, or removes it with the word `default`. Returns a message.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> anyhow::Result<String> {
        // Requests have other names for some.
        let meant = match name {
            "max_tokens" => "num_predict",
            "repetition_penalty" => "repeat_penalty",
            "num_ctx" => {
                bail!("the context is fixed while a model is loaded; set it with `poncho run --ctx-size TOKENS`")
            }
            other => other,
        };
        let Some(parameter) = PARAMETERS.iter().find(|parameter| parameter.name == meant) else {
            bail!("unknown parameter {name}; the parameters are {}", names());
        };
        if value == DEFAULT {
            self.fields.remove(parameter.field);
            return Ok(format!("{meant} has its default value again"));
        }
        let value = parameter.range.read(value).with_context(|| {
            format!("`{value}` is not a valid {meant}; write {}, or {DEFAULT}", parameter.range.words())
        })?;
        let message = format!("{meant} is {value} from the next reply on");
        self.fields.insert(parameter.field.to_owned(), value);
        Ok(message)
    }

    pub(crate) fn set_format(&mut self, format: Option<&Format>) {
        match format {
            Some(format) => self.fields.insert(FORMAT.to_owned(), format.field()),
            None => self.fields.remove(FORMAT),
        };
    }

    /// `temperature 0.5, seed 3`; `None` if everything has its default.
    pub(crate) fn line(&self) -> Option<String> {
        let set = PARAMETERS.iter().filter_map(|parameter| {
            self.fields.get(parameter.field).map(|value| format!("{} {value}", parameter.name))
        });
        let format = self.fields.get(FORMAT).map(|format| {
            let is_json = format.get("type").and_then(Value::as_str) == Some("json_object");
            format!("format {}", if is_json { "json" } else { "by a schema" })
        });
        let all: Vec<String> = set.chain(format).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Why the same prompt gets the same reply; `None` if it varies.
    pub(crate) fn repeats_because(&self) -> Option<&'static str> {
        let is_zero = self.fields.get("temperature").and_then(Value::as_f64) == Some(0.0);
        let has_seed = self.fields.contains_key("seed");
        if is_zero { Some("temperature is 0") } else { has_seed.then_some("seed is set") }
    }
}

/// The names of all parameters, for messages.
pub(crate) fn names() -> String {
    PARAMETERS.map(|parameter| parameter.name).join(", ")
}

impl Range {
    fn read(self, text: &str) -> Option<Value> {
        match self {
            Self::Number(least, most) => {
                let number: f64 = text.parse().ok()?;
                (least..=most).contains(&number).then(|| Value::from(number))
            }
            Self::Whole(least, most) => {
                let number: i64 = text.parse().ok()?;
                (least..=most).contains(&number).then(|| Value::from(number))
            }
        }
    }

    fn words(self) -> String {
        match self {
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Whole(i64::MIN, _) => "a whole number".to_owned(),
            Self::Whole(least, _) => format!("a whole number of at least {least}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_and_removed() {
        let mut parameters = Parameters::default();
        assert_eq!(parameters.line(), None);
        parameters.set("temperature", "0.5").unwrap();
        parameters.set("seed", "-3").unwrap();
        parameters.set("max_tokens", "7").unwrap();
        parameters.set_format(Some(&Format::Json));
        assert_eq!(parameters.line().as_deref(), Some("temperature 0.5, seed -3, num_predict 7, format json"));
        let sent = json!({"temperature": 0.5, "seed": -3, "max_tokens": 7, "response_format": {"type": "json_object"}});
        assert_eq!(serde_json::to_value(&parameters).unwrap(), sent);
        assert_eq!(parameters.repeats_because(), Some("seed is set"));
        parameters.set("seed", "default").unwrap();
        parameters.set("temperature", "0").unwrap();
        assert_eq!(parameters.repeats_because(), Some("temperature is 0"));
        parameters.set("temperature", "default").unwrap();
        parameters.set_format(None);
        assert_eq!((parameters.line().as_deref(), parameters.repeats_because()), (Some("num_predict 7"), None));
    }

    #[test]
    fn wrong_values_are_refused_with_the_right_ones() {
        let mut parameters = Parameters::default();
        for (name, value, part) in [
            ("temperature", "3", "a number from 0 to 2"),
            ("temperature", "NaN", "a number from 0 to 2"),
            ("top_p", "", "a number from 0 to 1"),
            ("seed", "1.5", "a whole number"),
            ("num_predict", "0", "at least 1"),
            ("num_ctx", "4096", "--ctx-size"),
            ("colour", "red", "temperature, top_p"),
        ] {
            let error = parameters.set(name, value).unwrap_err().to_string();
            assert!(error.contains(part), "{name} {value}: {error}");
        }
        assert_eq!(parameters, Parameters::default());
    }

    #[test]
    fn a_format_is_json_or_a_schema() {
        assert_eq!(Format::read("json").unwrap(), Format::Json);
        assert_eq!(Format::read(r#"{"type":"object"}"#).unwrap(), Format::Schema(json!({"type": "object"})));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schema.json");
        for (text, part) in [("{", "not valid JSON"), ("[]", "not a JSON object")] {
            std::fs::write(&path, text).unwrap();
            assert!(Format::read(path.to_str().unwrap()).unwrap_err().to_string().contains(part), "{text}");
        }
        assert!(Format::read("no/such/file").unwrap_err().to_string().contains("write `json`"));
    }
}
