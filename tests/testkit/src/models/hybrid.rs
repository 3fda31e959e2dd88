//! The hybrid model: architecture `lfm2`, short convolutions in even layers and attention in odd ones.
//!
//! Called by `models::build`. Its attention could be cut, its convolution state cannot, so the whole cannot either.

use super::builder::{Builder, EMBEDDING_GAIN, Heads};
use crate::gguf::Value;

/// Tokens that a short convolution sees.
const KERNEL: u32 = 3;

pub(super) fn build(builder: &mut Builder<'_>) {
    let spec = builder.spec;
    let count = spec.width / spec.head_size;
    let heads = Heads { queries: count, keys: count, size: spec.head_size };
    let has_attention = |layer: u32| layer % 2 == 1;
    // A layer without key heads is how the architecture marks a convolution.
    let keys_by_layer = (0..spec.n_layers).map(|layer| if has_attention(layer) { count.cast_signed() } else { 0 });
    builder.number("feed_forward_length", builder.feed_forward_length());
    builder.number("attention.head_count", count);
    builder.key("attention.head_count_kv", Value::I32s(keys_by_layer.collect()));
    builder.number("shortconv.l_cache", KERNEL);
    builder.float("rope.freq_base", 1_000_000.0);
    builder.float("attention.layer_norm_rms_epsilon", 1e-5);

    builder.embedding(EMBEDDING_GAIN);
    for layer in 0..spec.n_layers {
        builder.norm(format!("blk.{layer}.attn_norm.weight"), &[spec.width], 1.0);
        if has_attention(layer) {
            builder.attention(layer, heads);
            builder.score_norms(layer, heads);
        } else {
            convolution(builder, layer);
        }
        builder.feed_forward(layer);
    }
    // The architecture's own name for the norm before the output matrix.
    builder.output("token_embd_norm.weight");
}

fn convolution(builder: &mut Builder<'_>, layer: u32) {
    let width = builder.spec.width;
    builder.matrix(format!("blk.{layer}.shortconv.in_proj.weight"), width, 3 * width, 1.0);
    let kernel = builder.weights.noise(format!("blk.{layer}.shortconv.conv.weight"), &[KERNEL, width], 0.6);
    builder.gguf.add(kernel);
    builder.matrix(format!("blk.{layer}.shortconv.out_proj.weight"), width, width, 1.0);
}
