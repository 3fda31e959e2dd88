//! The sliding-window model: architecture `gemma3`, windowed layers and full ones in turn, a full one last.
//!
//! Called by `models::build`. Its state cannot be cut below the window, although llama.cpp says that it can.

use super::builder::{Builder, EMBEDDING_GAIN, Heads};

/// Every second layer sees the whole context.
const FULL_LAYER_EVERY: u32 = 2;

pub(super) fn build(builder: &mut Builder<'_>) {
    let spec = builder.spec;
    let heads = Heads { queries: 2, keys: 1, size: spec.head_size };
    builder.number("feed_forward_length", builder.feed_forward_length());
    builder.number("attention.head_count", heads.queries);
    builder.number("attention.head_count_kv", heads.keys);
    builder.number("attention.key_length", heads.size);
    builder.number("attention.value_length", heads.size);
    builder.number("attention.sliding_window", spec.window);
    builder.number("attention.sliding_window_pattern", FULL_LAYER_EVERY);
    builder.float("rope.freq_base", 1_000_000.0);
    builder.float("rope.freq_base_swa", 10_000.0);
    builder.float("attention.layer_norm_rms_epsilon", 1e-6);

    // The architecture multiplies embeddings by the root of their length.
    builder.embedding(EMBEDDING_GAIN / (spec.width as f32).sqrt());
    for layer in 0..spec.n_layers {
        builder.norm(format!("blk.{layer}.attn_norm.weight"), &[spec.width], 1.0);
        builder.attention(layer, heads);
        builder.score_norms(layer, heads);
        builder.norm(format!("blk.{layer}.post_attention_norm.weight"), &[spec.width], 1.0);
        builder.feed_forward(layer);
        builder.norm(format!("blk.{layer}.post_ffw_norm.weight"), &[spec.width], 1.0);
    }
    builder.output("output_norm.weight");
}
