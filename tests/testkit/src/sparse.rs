//! Large models for arithmetic alone: a true head, and data that is a hole in the file.
//!
//! Written for tests of what a model would need. The file takes a few kilobytes of disk. Its weights are zeros, so
//! nothing may be computed with it.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::gguf::{Gguf, Tensor, TensorType, Value};
use crate::models;
use crate::spec::{ModelKind, ModelSpec};
use crate::vocabulary;

/// The sizes of an attention model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeModel {
    /// Number of blocks.
    pub layers: u32,
    /// Length of an embedding.
    pub width: u32,
    /// Length of the feed-forward part.
    pub inner: u32,
    /// Query heads, which fill the width.
    pub heads: u32,
    /// Key heads.
    pub kv_heads: u32,
    /// Context length that the file claims to be trained for.
    pub n_ctx_train: u32,
    /// Experts of a layer, each with a feed-forward part of its own; 0 for a dense model.
    pub experts: u32,
    /// Type of the matrices.
    pub weights: TensorType,
}

impl LargeModel {
    /// The shape of an 8B model of today: 13 GiB in 16 bits with this vocabulary, 128 KiB of keys and values for a token.
    pub const EIGHT_B: Self = Self {
        layers: 32,
        width: 4096,
        inner: 14_336,
        heads: 32,
        kv_heads: 8,
        n_ctx_train: 131_072,
        experts: 0,
        weights: TensorType::F16,
    };

    /// A 7B model in 4 bits: 3.4 GiB, 56 KiB for a token.
    pub const SEVEN_B_Q4: Self = Self {
        layers: 28,
        width: 3584,
        inner: 18_944,
        heads: 28,
        kv_heads: 4,
        weights: TensorType::Q4_0,
        ..Self::EIGHT_B
    };

    /// A 32B model in 4 bits: 16.3 GiB, 256 KiB for a token.
    pub const THIRTY_TWO_B_Q4: Self = Self {
        layers: 64,
        width: 5120,
        inner: 25_600,
        heads: 40,
        kv_heads: 8,
        weights: TensorType::Q4_0,
        ..Self::EIGHT_B
    };

    /// A 30B model with 128 experts in 4 bits: 15.4 GiB, 96 KiB for a token.
    pub const THIRTY_B_EXPERTS_Q4: Self = Self {
        layers: 48,
        width: 2048,
        inner: 768,
        heads: 16,
        kv_heads: 4,
        experts: 128,
        weights: TensorType::Q4_0,
        ..Self::EIGHT_B
    };

    fn gguf(&self) -> io::Result<Gguf> {
        let Self { layers, width, inner, heads, kv_heads, n_ctx_train, experts, weights } = *self;
        let head = width / heads.max(1);
        let small = ModelSpec { n_layers: 1, n_ctx_train, ..ModelSpec::tiny(ModelKind::Attention) };
        let mut gguf = models::build(&small)?;
        for (key, number) in [
            ("block_count", layers),
            ("embedding_length", width),
            ("feed_forward_length", inner),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", head),
            ("attention.value_length", head),
            ("rope.dimension_count", head),
        ] {
            let key = format!("{}.{key}", ModelKind::Attention.architecture());
            gguf.metadata.retain(|(known, _)| *known != key);
            gguf.set(key, Value::U32(number));
        }
        if experts > 0 {
            for (key, number) in [("expert_count", experts), ("expert_used_count", experts.min(8))] {
                gguf.set(format!("{}.{key}", ModelKind::Attention.architecture()), Value::U32(number));
            }
        }
        let tensor = |name: String, shape: &[u32]| {
            let kind = if shape.len() == 1 { TensorType::F32 } else { weights };
            Tensor { name, shape: shape.to_vec(), kind, data: Vec::new() }
        };
        let vocabulary = vocabulary::size_with(&[]);
        gguf.tensors = vec![tensor("token_embd.weight".to_owned(), &[width, vocabulary])];
        for layer in 0..layers {
            let mut add = |name: &str, shape: &[u32]| {
                gguf.tensors.push(tensor(format!("blk.{layer}.{name}.weight"), shape));
            };
            add("attn_norm", &[width]);
            add("attn_q", &[width, heads * head]);
            add("attn_k", &[width, kv_heads * head]);
            add("attn_v", &[width, kv_heads * head]);
            add("attn_output", &[heads * head, width]);
            add("ffn_norm", &[width]);
            if experts == 0 {
                add("ffn_gate", &[width, inner]);
                add("ffn_up", &[width, inner]);
                add("ffn_down", &[inner, width]);
            } else {
                add("ffn_gate_inp", &[width, experts]);
                add("ffn_gate_exps", &[width, inner, experts]);
                add("ffn_up_exps", &[width, inner, experts]);
                add("ffn_down_exps", &[inner, width, experts]);
            }
        }
        gguf.tensors.push(tensor("output_norm.weight".to_owned(), &[width]));
        gguf.tensors.push(tensor("output.weight".to_owned(), &[width, vocabulary]));
        Ok(gguf)
    }
}

/// Writes the head of a large model and leaves its data out. Returns the length of the file.
pub fn write_sparse_model(model: &LargeModel, path: &Path) -> io::Result<u64> {
    let (head, data) = model.gguf()?.header(|tensor| {
        tensor.kind.bytes(tensor.shape.iter().fold(1, |product: usize, size| product * *size as usize))
    });
    let mut file = File::create(path)?;
    file.write_all(&head)?;
    let length = head.len() as u64 + data as u64;
    file.set_len(length)?;
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_model_is_a_hole_in_a_file() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.gguf");
        let length = write_sparse_model(&LargeModel::EIGHT_B, &path).unwrap();
        let facts = std::fs::metadata(&path).unwrap();
        assert!(length > 12 << 30 && facts.len() == length, "{length}");
        assert!(facts.blocks() * 512 < 16 << 20, "{} blocks", facts.blocks());
        let gigabytes = |model: &LargeModel| write_sparse_model(model, &path).unwrap() >> 30;
        assert_eq!(gigabytes(&LargeModel::SEVEN_B_Q4), 3);
        assert_eq!(gigabytes(&LargeModel::THIRTY_TWO_B_Q4), 15);
        assert_eq!(gigabytes(&LargeModel::THIRTY_B_EXPERTS_Q4), 15);
    }
}
