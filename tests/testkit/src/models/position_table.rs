//! A model that looks its positions up in a table (`gpt2`): the table has a row for each token of the trained context.
//!
//! Called by `AlteredModel::with_position_table`. llama.cpp asserts on a position behind the table.

use super::builder::{Builder, EMBEDDING_GAIN};

/// Its architecture, which no memory kind has.
pub(super) const ARCHITECTURE: &str = "gpt2";

pub(super) fn build(builder: &mut Builder<'_>) {
    let spec = builder.spec;
    let (width, inner) = (spec.width, builder.feed_forward_length());
    builder.number("feed_forward_length", inner);
    builder.number("attention.head_count", width / spec.head_size);
    builder.float("attention.layer_norm_epsilon", 1e-5);

    builder.embedding(EMBEDDING_GAIN);
    let gain = EMBEDDING_GAIN * (width as f32).sqrt();
    builder.matrix("position_embd.weight".to_owned(), width, spec.n_ctx_train, gain);
    for layer in 0..spec.n_layers {
        for (norm, center) in [("attn_norm", 1.0), ("ffn_norm", 1.0)] {
            builder.norm(format!("blk.{layer}.{norm}.weight"), &[width], center);
            bias(builder, &format!("blk.{layer}.{norm}"), width);
        }
        let matrices = [
            ("attn_qkv", width, 3 * width),
            ("attn_output", width, width),
            ("ffn_up", width, inner),
            ("ffn_down", inner, width),
        ];
        for (name, columns, rows) in matrices {
            builder.matrix(format!("blk.{layer}.{name}.weight"), columns, rows, 1.5);
            bias(builder, &format!("blk.{layer}.{name}"), rows);
        }
    }
    builder.output("output_norm.weight");
    bias(builder, "output_norm", width);
}

fn bias(builder: &mut Builder<'_>, name: &str, length: u32) {
    let tensor = builder.weights.noise(format!("{name}.bias"), &[length], 0.1);
    builder.gguf.add(tensor);
}
