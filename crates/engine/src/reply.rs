//! From logits to events: sampling, text, stops, markers.

pub mod detokenize;
pub mod logprobs;
pub mod markers;
pub(crate) mod output;
pub mod pattern;
pub mod sampler;
pub mod stop;
