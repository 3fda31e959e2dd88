//! `options`: how a reply is generated, in Ollama's words.
//!
//! Whatever is left out has the model's defaults, as in the other dialects. Options that belong to loading (`num_gpu`,
//! `num_batch`, `num_thread`, ..) and samplers that are not built have no effect, and the answer warns of them. So does
//! `num_ctx`: a context is as large as it was loaded, most clients send a number of their own, and a prompt that does not
//! fit is refused.

use std::fmt;

use poncho_api::{Request, Sampling, range_text};
use schemars::JsonSchema;
use serde::Deserialize as DeserializeDerive;
use serde::de::{self, Deserialize, Deserializer, Visitor};

use crate::error::ApiError;
use crate::forms::Texts;

/// An integer that may also be written as `40.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(with = "f64", inline)]
pub(crate) struct Integer(pub(crate) i64);

struct IntegerVisitor;

impl Visitor<'_> for IntegerVisitor {
    type Value = Integer;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an integer")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Integer, E> {
        Ok(Integer(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Integer, E> {
        // Seeds may use all bits.
        Ok(Integer(value.cast_signed()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Integer, E> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() != 0.0 || value.abs() > EXACT {
            return Err(E::invalid_type(de::Unexpected::Float(value), &self));
        }
        #[expect(clippy::cast_possible_truncation, reason = "a whole number below 2^53, checked above")]
        Ok(Integer(value as i64))
    }
}

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerVisitor)
    }
}

/// The options that have an effect here.
#[derive(Debug, Default, PartialEq, DeserializeDerive, JsonSchema)]
#[schemars(rename = "OllamaOptions", inline)]
pub(crate) struct Options {
    num_predict: Option<Integer>,
    temperature: Option<f32>,
    top_k: Option<Integer>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    seed: Option<Integer>,
    stop: Option<Texts>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<Integer>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    num_ctx: Option<Integer>,
}

impl Options {
    /// The context that is asked for. It has no effect on a request.
    pub(crate) fn context(&self) -> Option<i64> {
        self.num_ctx.map(|Integer(count)| count)
    }

    /// Limits and sampling; `base` has what is left out.
    pub(crate) fn generation(&self, base: &Request) -> Result<Request, ApiError> {
        let default = base.sampling.clone();
        let checked = |name: &str, value: Option<f32>, default: f32, low: f32, high: f32| match value {
            Some(value) if !(low..=high).contains(&value) => {
                let range = range_text(low, high);
                Err(ApiError::field(format!("options.{name}"), format!("it is {value} and must be {range}")))
            }
            value => Ok(value.unwrap_or(default)),
        };
        let (least, most) = (f32::MIN_POSITIVE, f32::MAX);
        let sampling = Sampling {
            temperature: checked("temperature", self.temperature, default.temperature, 0.0, most)?,
            top_p: checked("top_p", self.top_p, default.top_p, 0.0, 1.0)?,
            min_p: checked("min_p", self.min_p, default.min_p, 0.0, 1.0)?,
            repetition_penalty: checked(
                "repeat_penalty",
                self.repeat_penalty,
                default.repetition_penalty,
                least,
                most,
            )?,
            presence_penalty: checked(
                "presence_penalty",
                self.presence_penalty,
                default.presence_penalty,
                -most,
                most,
            )?,
            frequency_penalty: checked(
                "frequency_penalty",
                self.frequency_penalty,
                default.frequency_penalty,
                -most,
                most,
            )?,
            top_k: self.top_k.map_or(default.top_k, |Integer(count)| saturated(count)),
            penalty_last_n: match self.repeat_last_n {
                None => default.penalty_last_n,
                Some(Integer(count)) => u32::try_from(count).ok(),
            },
            // Ollama's word for "choose one yourself".
            seed: match self.seed {
                None => default.seed,
                Some(Integer(seed)) => Some(seed).filter(|seed| *seed != -1).map(i64::cast_unsigned),
            },
            ..default
        };
        Ok(Request {
            // Zero and less mean "until the model stops".
            max_tokens: match self.num_predict {
                None => base.max_tokens,
                Some(Integer(count)) => Some(saturated(count)).filter(|count| *count > 0),
            },
            sampling,
            stop: self.stop.as_ref().map_or_else(|| base.stop.clone(), |stop| stop.0.clone()),
            ..Request::default()
        })
    }
}

/// The number as far as it fits: negative ones mean "no limit" to Ollama, as zero does here.
fn saturated(count: i64) -> u32 {
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn generation(options: &Value) -> Request {
        serde_json::from_str::<Options>(&options.to_string()).unwrap().generation(&Request::default()).unwrap()
    }

    #[test]
    fn left_out_means_the_engines_defaults() {
        for nothing in [json!({}), json!({"temperature": null, "stop": null, "num_gpu": 4, "mirostat": 2, "typo": []})]
        {
            let read = generation(&nothing);
            assert_eq!(read.sampling, Sampling::default());
            assert_eq!((read.max_tokens, read.stop.len(), read.logprobs), (None, 0, None));
        }
    }

    #[test]
    fn every_option_reaches_its_place() {
        let read = generation(&json!({
            "num_predict": 7, "temperature": 0, "top_k": 3.0, "top_p": 0.5, "min_p": 0.25, "seed": 42, "stop": ["a", "b"],
            "repeat_penalty": 1.5, "repeat_last_n": 9, "presence_penalty": -1, "frequency_penalty": 0.5, "num_ctx": 100_000,
        }));
        let expected = Sampling {
            temperature: 0.0,
            top_k: 3,
            top_p: 0.5,
            min_p: 0.25,
            repetition_penalty: 1.5,
            frequency_penalty: 0.5,
            presence_penalty: -1.0,
            penalty_last_n: Some(9),
            seed: Some(42),
            logit_bias: Vec::new(),
        };
        assert_eq!(read.sampling, expected);
        assert_eq!((read.max_tokens, read.stop), (Some(7), vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(generation(&json!({"stop": "x"})).stop, ["x"]);
    }

    #[test]
    fn negative_numbers_have_ollamas_meaning() {
        for endless in [-2, -1, 0] {
            assert_eq!(generation(&json!({"num_predict": endless})).max_tokens, None);
        }
        assert_eq!(generation(&json!({"num_predict": 1_u64 << 40})).max_tokens, Some(u32::MAX));
        let read = generation(&json!({"seed": -1, "top_k": -1, "repeat_last_n": -1}));
        assert_eq!((read.sampling.seed, read.sampling.top_k, read.sampling.penalty_last_n), (None, 0, None));
        assert_eq!(generation(&json!({"repeat_last_n": 0})).sampling.penalty_last_n, Some(0));
        assert_eq!(generation(&json!({"seed": -7})).sampling.seed, Some((-7_i64).cast_unsigned()));
    }

    #[test]
    fn values_out_of_range_are_named_as_the_client_knows_them() {
        for (options, field) in [
            (json!({"temperature": -0.1}), "options.temperature: "),
            (json!({"top_p": 1.1}), "options.top_p: "),
            (json!({"min_p": -1}), "options.min_p: "),
            (json!({"repeat_penalty": 0}), "options.repeat_penalty: "),
            (json!({"presence_penalty": 1e300}), "options.presence_penalty: "),
        ] {
            let read: Options = serde_json::from_str(&options.to_string()).unwrap();
            let said = read.generation(&Request::default()).unwrap_err().to_string();
            assert!(said.starts_with(field), "{said}");
        }
        for wrong in
            [json!({"num_predict": 1.5}), json!({"top_k": "many"}), json!({"num_ctx": []}), json!({"seed": 1e300})]
        {
            assert!(serde_json::from_str::<Options>(&wrong.to_string()).is_err(), "{wrong}");
        }
    }
}
