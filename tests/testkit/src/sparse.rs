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

/// The sizes of an attention model in 16 bits.
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
}

impl LargeModel {
    /// The shape of an 8B model of today: 13 GiB in 16 bits with this vocabulary, 128 KiB of keys and values for a token.
    pub const EIGHT_B: Self =
        Self { layers: 32, width: 4096, inner: 14_336, heads: 32, kv_heads: 8, n_ctx_train: 131_072 };

    fn gguf(&self) -> io::Result<Gguf> {
        let Self { layers, width, inner, heads, kv_heads, n_ctx_train } = *self;
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
        let tensor = |name: String, shape: &[u32]| {
            let kind = if shape.len() == 1 { TensorType::F32 } else { TensorType::F16 };
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
            add("ffn_gate", &[width, inner]);
            add("ffn_up", &[width, inner]);
            add("ffn_down", &[inner, width]);
        }
        gguf.tensors.push(tensor("output_norm.weight".to_owned(), &[width]));
        gguf.tensors.push(tensor("output.weight".to_owned(), &[width, vocabulary]));
        Ok(gguf)
    }
}

/// Writes the head of a large model and leaves its data out. Returns the length of the file.
pub fn write_sparse_model(model: &LargeModel, path: &Path) -> io::Result<u64> {
    let (head, data) = model.gguf()?.header(|tensor| {
        let bytes = if tensor.kind == TensorType::F32 { 4 } else { 2 };
        tensor.shape.iter().fold(bytes, |product: usize, size| product * *size as usize)
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
    }
}
