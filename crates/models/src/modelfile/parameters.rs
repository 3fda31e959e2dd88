//! The PARAMETER values of a model: defaults for requests that do not say otherwise.
//!
//! Read from Modelfiles, from the server's create requests and from manifests. Each value has the type of its name, so
//! that a wrong value is refused when it is set and not when it is used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::name::printable;
use crate::suggestions::{did_you_mean, nearest};

/// What a parameter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Float,
    Switch,
    /// May be given several times.
    Texts,
}

/// Every parameter that a Modelfile may set, in Ollama's spelling; what Ollama does not have is named as the setting of the
/// server.
const KNOWN: [(&str, Kind); 22] = [
    ("frequency_penalty", Kind::Float),
    ("main_gpu", Kind::Integer),
    ("min_p", Kind::Float),
    ("num_batch", Kind::Integer),
    ("num_ctx", Kind::Integer),
    ("num_gpu", Kind::Integer),
    ("num_predict", Kind::Integer),
    ("num_thread", Kind::Integer),
    ("presence_penalty", Kind::Float),
    ("reasoning", Kind::Switch),
    ("reasoning_budget", Kind::Integer),
    ("repeat_last_n", Kind::Integer),
    ("repeat_penalty", Kind::Float),
    ("rope_freq_base", Kind::Float),
    ("rope_freq_scale", Kind::Float),
    ("seed", Kind::Integer),
    ("stop", Kind::Texts),
    ("temperature", Kind::Float),
    ("top_k", Kind::Integer),
    ("top_p", Kind::Float),
    ("use_mlock", Kind::Switch),
    ("use_mmap", Kind::Switch),
];

const AT_LOADING: &str =
    "models are loaded with the settings of the server; remove the line and see `poncho serve --help`";
const OTHER_SAMPLER: &str =
    "this sampler does not exist here; remove the line and use temperature, top_k, top_p or min_p";

/// Parameters that Ollama has and that would have no effect, with what to do.
const WITHOUT_EFFECT: [(&str, &str); 11] = [
    ("f16_kv", AT_LOADING),
    ("low_vram", AT_LOADING),
    ("mirostat", OTHER_SAMPLER),
    ("mirostat_eta", OTHER_SAMPLER),
    ("mirostat_tau", OTHER_SAMPLER),
    ("num_keep", "a prompt that is too long is refused and never shortened; remove the line"),
    ("numa", AT_LOADING),
    ("penalize_newline", OTHER_SAMPLER),
    ("tfs_z", OTHER_SAMPLER),
    ("typical_p", OTHER_SAMPLER),
    ("vocab_only", AT_LOADING),
];

/// One value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Parameter {
    Bool(bool),
    Integer(i64),
    Float(f64),
    Texts(Vec<String>),
}

/// Parameters by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parameters(BTreeMap<String, Parameter>);

/// Why a parameter is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParameterError {
    /// No parameter of that name.
    #[error("there is no parameter `{name}`{}", did_you_mean(.near))]
    Unknown {
        /// The name, made printable.
        name: String,
        /// Names that may have been meant.
        near: Vec<String>,
    },
    /// A parameter that would have no effect.
    #[error("parameter `{name}` has no effect: {advice}")]
    WithoutEffect {
        /// The parameter.
        name: &'static str,
        /// Why, and what to do.
        advice: &'static str,
    },
    /// A value of another type.
    #[error("parameter `{name}` must be {wanted}, not `{got}`")]
    WrongType {
        /// The parameter.
        name: &'static str,
        /// What it wants.
        wanted: &'static str,
        /// What was given.
        got: String,
    },
}

impl Parameters {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets a parameter from the text of a Modelfile. A `stop` is added to those that are there.
    ///
    /// # Errors
    /// When the name is unknown or the text does not parse as its type.
    pub fn set_text(&mut self, name: &str, text: &str) -> Result<(), ParameterError> {
        let (name, kind) = known(name)?;
        let value = match kind {
            Kind::Integer => text.parse().ok().map(Parameter::Integer),
            Kind::Float => text.parse().ok().filter(|number: &f64| number.is_finite()).map(Parameter::Float),
            Kind::Switch => match text.to_ascii_lowercase().as_str() {
                "true" | "1" => Some(Parameter::Bool(true)),
                "false" | "0" => Some(Parameter::Bool(false)),
                _ => None,
            },
            Kind::Texts => {
                if let Parameter::Texts(texts) = self.0.entry(name.to_owned()).or_insert(Parameter::Texts(Vec::new())) {
                    texts.push(text.to_owned());
                }
                return Ok(());
            }
        };
        let value = value.ok_or_else(|| wrong_type(name, kind, text))?;
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    /// Sets a parameter from JSON, as create requests bring it. A list of texts replaces those that are there.
    ///
    /// # Errors
    /// When the name is unknown or the value has another type.
    pub fn set_json(&mut self, name: &str, json: &Value) -> Result<(), ParameterError> {
        let (name, kind) = known(name)?;
        let value = match (kind, json) {
            (Kind::Integer, json) => json.as_i64().map(Parameter::Integer),
            (Kind::Float, json) => json.as_f64().map(Parameter::Float),
            (Kind::Switch, json) => json.as_bool().map(Parameter::Bool),
            (Kind::Texts, Value::String(text)) => Some(Parameter::Texts(vec![text.clone()])),
            (Kind::Texts, Value::Array(texts)) => {
                texts.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<_>>().map(Parameter::Texts)
            }
            (Kind::Texts, _) => None,
        };
        let value = value.ok_or_else(|| wrong_type(name, kind, &json.to_string()))?;
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    /// The parameters as a JSON object, in the types that request options have.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Map<String, Value> {
        let json = |value: &Parameter| match value {
            Parameter::Bool(value) => Value::from(*value),
            Parameter::Integer(value) => Value::from(*value),
            Parameter::Float(value) => Value::from(*value),
            Parameter::Texts(value) => Value::from(value.clone()),
        };
        self.0.iter().map(|(name, value)| (name.clone(), json(value))).collect()
    }

    /// These parameters, overridden by those of `over`.
    #[must_use]
    pub fn overlaid(&self, over: &Self) -> Self {
        let mut all = self.0.clone();
        all.extend(over.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        Self(all)
    }

    /// Every line of a Modelfile: name and text, `stop` once for each.
    pub fn lines(&self) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().flat_map(|(name, value)| {
            let texts = match value {
                Parameter::Bool(value) => vec![value.to_string()],
                Parameter::Integer(value) => vec![value.to_string()],
                Parameter::Float(value) => vec![value.to_string()],
                Parameter::Texts(texts) => texts.clone(),
            };
            texts.into_iter().map(move |text| (name.as_str(), text))
        })
    }
}

fn known(name: &str) -> Result<(&'static str, Kind), ParameterError> {
    let lower = name.to_ascii_lowercase();
    if let Some((name, advice)) = WITHOUT_EFFECT.into_iter().find(|(known, _)| *known == lower) {
        return Err(ParameterError::WithoutEffect { name, advice });
    }
    KNOWN.into_iter().find(|(known, _)| *known == lower).ok_or_else(|| ParameterError::Unknown {
        name: printable(name),
        near: nearest(&printable(&lower), KNOWN.map(|(known, _)| known)),
    })
}

fn wrong_type(name: &'static str, kind: Kind, got: &str) -> ParameterError {
    let wanted = match kind {
        Kind::Integer => "a whole number",
        Kind::Float => "a number",
        Kind::Switch => "true or false",
        Kind::Texts => "a text or a list of texts",
    };
    ParameterError::WrongType { name, wanted, got: printable(got) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_have_the_type_of_their_name() {
        let mut parameters = Parameters::default();
        for (name, text) in [("temperature", "1"), ("num_ctx", "4096"), ("stop", "A"), ("stop", "1"), ("SEED", "-1")] {
            parameters.set_text(name, text).unwrap();
        }
        let expected = json!({"temperature": 1.0, "num_ctx": 4096, "stop": ["A", "1"], "seed": -1});
        assert_eq!(Value::Object(parameters.to_json()), expected);
        let stored = serde_json::to_string(&parameters).unwrap();
        assert_eq!(serde_json::from_str::<Parameters>(&stored).unwrap(), parameters);
        let mut from_json = Parameters::default();
        for (name, value) in expected.as_object().unwrap() {
            from_json.set_json(name, value).unwrap();
        }
        assert_eq!(from_json, parameters);
    }

    #[test]
    fn manifests_of_earlier_versions_keep_what_they_hold() {
        let stored: Parameters = serde_json::from_str(r#"{"use_mmap": false, "num_gpu": 4, "seed": 1}"#).unwrap();
        assert_eq!(stored.lines().count(), 3);
    }

    #[test]
    fn wrong_names_and_values_are_refused_with_a_hint() {
        let mut parameters = Parameters::default();
        let unknown = parameters.set_text("temprature", "1").unwrap_err().to_string();
        assert!(unknown.contains("did you mean `temperature`"), "{unknown}");
        for (name, text) in
            [("num_ctx", "4k"), ("num_ctx", "1.5"), ("temperature", "NaN"), ("temperature", "hot"), ("seed", "x")]
        {
            let refused = parameters.set_text(name, text).unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains(text), "{refused}");
        }
        for (name, _) in WITHOUT_EFFECT {
            let refused = parameters.set_text(name, "1").unwrap_err().to_string();
            assert!(refused.contains(name) && refused.contains("remove the line"), "{refused}");
            assert_eq!(parameters.set_json(name, &json!(1)).unwrap_err().to_string(), refused);
        }
        assert!(parameters.set_json("stop", &json!([1])).is_err());
        assert!(parameters.set_json("top_k", &json!("40")).is_err());
        assert!(parameters.is_empty());
    }
}
