//! A token with its log probability, as OpenAI's dialects write it.
//!
//! Part of stored items and of OpenAI's answers. Nothing here knows where the number comes from.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::forms::left_out;

/// A token with its log probability.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "TokenLogprob", transform = left_out)]
pub(crate) struct TokenOut {
    pub(crate) token: String,
    #[serde(serialize_with = "shortest")]
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_logprobs: Option<Vec<TokenOut>>,
}

/// Writes a number with its own digits, also where it goes through a JSON value, which would widen it to 64 bits.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn shortest<S: Serializer>(number: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(number.to_string().parse().unwrap_or_else(|_| (*number).into()))
}
