//! The recurrent model: architecture `mamba2`, state-space layers without any attention.
//!
//! Called by `models::build`. Its state has a fixed size and cannot be cut at all.

use super::builder::{Builder, EMBEDDING_GAIN};
use crate::gguf::Tensor;
use crate::weights::Weights;

/// Tokens that the convolution before the scan sees.
const KERNEL: u32 = 4;
/// Numbers kept for each inner channel; small, so that a saved state is some ten kilobytes for each layer.
const STATE_SIZE: u32 = 16;
/// Channels that share one decay.
const HEAD_SIZE: u32 = 16;

pub(super) fn build(builder: &mut Builder<'_>) {
    let spec = builder.spec;
    let inner = 2 * spec.width;
    builder.number("feed_forward_length", 0);
    builder.number("attention.head_count", 0);
    builder.number("ssm.conv_kernel", KERNEL);
    builder.number("ssm.inner_size", inner);
    builder.number("ssm.state_size", STATE_SIZE);
    builder.number("ssm.time_step_rank", inner / HEAD_SIZE);
    builder.number("ssm.group_count", 1);
    builder.float("attention.layer_norm_rms_epsilon", 1e-5);

    builder.embedding(EMBEDDING_GAIN);
    for layer in 0..spec.n_layers {
        for tensor in block(&builder.weights, layer, spec.width) {
            builder.gguf.add(tensor);
        }
    }
    builder.output("output_norm.weight");
}

fn block(weights: &Weights, layer: u32, width: u32) -> Vec<Tensor> {
    let inner = 2 * width;
    let heads = inner / HEAD_SIZE;
    let convolved = inner + 2 * STATE_SIZE;
    let name = |tensor: &str| format!("blk.{layer}.{tensor}");
    vec![
        weights.norm(name("attn_norm.weight"), &[width], 1.0),
        // Gate, convolved channels and time steps, one under the other.
        weights.matrix(name("ssm_in.weight"), width, inner + convolved + heads, 1.0),
        weights.noise(name("ssm_conv1d.weight"), &[KERNEL, convolved], 0.6),
        weights.noise(name("ssm_conv1d.bias"), &[convolved], 0.1),
        // The step is softplus(projection + bias), so this centres it on 0.13 to 0.7.
        weights.spread(name("ssm_dt.bias"), &[heads], -2.0..0.0),
        // A step multiplies the state by exp(step * a): some heads forget at once, some after a hundred tokens.
        weights.spread(name("ssm_a"), &[1, heads], -1.0..-0.005),
        weights.spread(name("ssm_d"), &[1, heads], 0.2..0.6),
        weights.norm(name("ssm_norm.weight"), &[inner, 1], 1.0),
        weights.matrix(name("ssm_out.weight"), inner, width, 1.0),
    ]
}
