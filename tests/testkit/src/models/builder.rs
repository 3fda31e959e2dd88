//! A model under construction, and the parts that all kinds of models share.
//!
//! Used by the files of the kinds beside it and by `models::build`. Holds the general keys, the vocabulary, the embedding
//! and output matrices, and the attention and feed-forward parts of a block.

use crate::gguf::{Gguf, Value};
use crate::spec::{ModelSpec, WeightType};
use crate::vocabulary;
use crate::weights::Weights;

/// Gain of the query and key projections. Scores get a deviation of its square, about 3: attention picks a few tokens
/// instead of averaging all of them, so a change far back in the context still reaches the logits.
const SCORE_GAIN: f32 = 1.7;

/// Deviation of the logits of text tokens: the best token is clearly ahead, and sampling still has a choice.
const LOGIT_GAIN: f32 = 3.0;

/// Deviation of an embedding. Below 1, what the blocks add outweighs the current token.
pub(super) const EMBEDDING_GAIN: f32 = 0.5;

/// A model under construction.
pub(super) struct Builder<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) gguf: Gguf,
    pub(super) weights: Weights,
}

/// Sizes of the attention part of a block.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) queries: u32,
    pub(crate) keys: u32,
    pub(crate) size: u32,
}

impl Builder<'_> {
    pub(super) fn general_keys(&mut self) {
        let file_type = match self.spec.weight_type {
            WeightType::F32 => 0,
            WeightType::F16 => 1,
        };
        self.gguf.set_text("general.architecture", self.spec.kind.architecture());
        self.gguf.set_text("general.type", "model");
        self.gguf.set_text("general.name", &format!("poncho tiny {}", self.spec.kind.name()));
        self.gguf.set("general.file_type", Value::U32(file_type));
        self.gguf.set("general.quantization_version", Value::U32(2));
        self.number("context_length", self.spec.n_ctx_train);
        self.number("embedding_length", self.spec.width);
        self.number("block_count", self.spec.n_layers);
        self.number("vocab_size", vocabulary::size_with(self.spec.marks()));
        vocabulary::describe(&mut self.gguf, self.spec.pre_tokenizer, self.spec.chat.as_ref());
    }

    /// Sets a key of the architecture's own.
    pub(super) fn key(&mut self, key: &str, value: Value) {
        self.gguf.set(format!("{}.{key}", self.spec.kind.architecture()), value);
    }

    pub(super) fn number(&mut self, key: &str, value: u32) {
        self.key(key, Value::U32(value));
    }

    pub(super) fn float(&mut self, key: &str, value: f32) {
        self.key(key, Value::F32(value));
    }

    /// Embedding matrix; its rows have the given deviation.
    pub(super) fn embedding(&mut self, deviation: f32) {
        let gain = deviation * (self.spec.width as f32).sqrt();
        let size = vocabulary::size_with(self.spec.marks());
        let tensor = self.weights.matrix("token_embd.weight".to_owned(), self.spec.width, size, gain);
        self.gguf.add(tensor);
    }

    /// Final norm and output matrix. The matrix is separate from the embedding: a shared one would favour repeating
    /// the current token, and its rows could not be scaled for each sort of token.
    pub(super) fn output(&mut self, norm_name: &str) {
        let special_gain = self.spec.special_gain;
        let size = vocabulary::size_with(self.spec.marks());
        let gains = (0..size).map(|id| LOGIT_GAIN * vocabulary::output_gain(id, special_gain));
        let tensor = self.weights.matrix_of_rows("output.weight".to_owned(), self.spec.width, gains);
        self.norm(norm_name.to_owned(), &[self.spec.width], 1.0);
        self.gguf.add(tensor);
    }

    pub(super) fn matrix(&mut self, name: String, columns: u32, rows: u32, gain: f32) {
        let tensor = self.weights.matrix(name, columns, rows, gain);
        self.gguf.add(tensor);
    }

    pub(super) fn norm(&mut self, name: String, shape: &[u32], center: f32) {
        let tensor = self.weights.norm(name, shape, center);
        self.gguf.add(tensor);
    }

    /// Query, key, value and output projections of one block.
    pub(super) fn attention(&mut self, layer: u32, heads: Heads) {
        let width = self.spec.width;
        let (queries, keys) = (heads.queries * heads.size, heads.keys * heads.size);
        self.matrix(format!("blk.{layer}.attn_q.weight"), width, queries, SCORE_GAIN);
        self.matrix(format!("blk.{layer}.attn_k.weight"), width, keys, SCORE_GAIN);
        self.matrix(format!("blk.{layer}.attn_v.weight"), width, keys, 1.0);
        self.matrix(format!("blk.{layer}.attn_output.weight"), queries, width, 1.5);
    }

    /// Norms of the queries and keys of one block; they undo the gain of the projections and put their own in place.
    pub(super) fn score_norms(&mut self, layer: u32, heads: Heads) {
        self.norm(format!("blk.{layer}.attn_q_norm.weight"), &[heads.size], SCORE_GAIN);
        self.norm(format!("blk.{layer}.attn_k_norm.weight"), &[heads.size], SCORE_GAIN);
    }

    /// Gated feed-forward part of one block, twice as wide inside.
    pub(super) fn feed_forward(&mut self, layer: u32) {
        let (width, inner) = (self.spec.width, self.feed_forward_length());
        self.norm(format!("blk.{layer}.ffn_norm.weight"), &[width], 1.0);
        self.matrix(format!("blk.{layer}.ffn_gate.weight"), width, inner, 1.0);
        self.matrix(format!("blk.{layer}.ffn_up.weight"), width, inner, 1.0);
        // The gate halves the signal; twice the gain restores it.
        self.matrix(format!("blk.{layer}.ffn_down.weight"), inner, width, 2.0);
    }

    pub(super) fn feed_forward_length(&self) -> u32 {
        2 * self.spec.width
    }
}
