//! The attention model: architecture `llama`, two query heads that share one key head.
//!
//! Called by `models::build`; the adapter asks `heads` for the shapes. State can be cut after any token.

use super::builder::{Builder, EMBEDDING_GAIN, Heads};
use crate::spec::ModelSpec;

/// Two query heads on one key head: grouped queries are what most models have.
pub(crate) fn heads(spec: &ModelSpec) -> Heads {
    Heads { queries: 2, keys: 1, size: spec.head_size }
}

pub(super) fn build(builder: &mut Builder<'_>) {
    let spec = builder.spec;
    let heads = heads(spec);
    builder.number("feed_forward_length", builder.feed_forward_length());
    builder.number("attention.head_count", heads.queries);
    builder.number("attention.head_count_kv", heads.keys);
    builder.number("attention.key_length", heads.size);
    builder.number("attention.value_length", heads.size);
    builder.number("rope.dimension_count", heads.size);
    builder.float("rope.freq_base", 10_000.0);
    builder.float("attention.layer_norm_rms_epsilon", 1e-5);

    builder.embedding(EMBEDDING_GAIN);
    for layer in 0..spec.n_layers {
        builder.norm(format!("blk.{layer}.attn_norm.weight"), &[spec.width], 1.0);
        builder.attention(layer, heads);
        builder.feed_forward(layer);
    }
    builder.output("output_norm.weight");
}
