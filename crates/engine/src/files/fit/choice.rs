//! What is chosen for a model, what the user has fixed, and what is known about the model.
//!
//! Plain data, read and written by the planner and by the file of kept plans.

use poncho_api::{ContextOptions, KvType, ModelConfig};
use serde::{Deserialize, Serialize};

/// The settings that the planner chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Tokens of one request.
    pub n_ctx: u32,
    /// Requests at once.
    pub parallel: u32,
    /// Element type of the keys.
    pub type_k: KvType,
    /// Element type of the values.
    pub type_v: KvType,
    /// Layers with their experts on the CPU, from the first one on.
    pub n_cpu_moe: u32,
    /// Layers on devices; `None` for all of them.
    pub gpu_layers: Option<u32>,
}

impl Choice {
    /// Puts the choice into the configuration of a model.
    pub fn set(&self, config: &mut ModelConfig) {
        self.set_context(&mut config.context);
        config.model.gpu_layers = self.gpu_layers;
        config.model.n_cpu_moe = self.n_cpu_moe;
    }

    /// Puts the part of the choice that concerns the context into its options. The layout of the cells must be set.
    pub fn set_context(&self, context: &mut ContextOptions) {
        context.n_ctx = self.n_ctx;
        context.n_seq_max = self.parallel;
        // Each request may use all of its context, however many others run.
        context.n_cells = Some(self.n_ctx.saturating_mul(self.parallel));
        context.type_k = self.type_k;
        context.type_v = self.type_v;
    }
}

/// Values that are fixed: the planner never changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Given {
    /// Tokens of one request.
    pub n_ctx: Option<u32>,
    /// Requests at once.
    pub parallel: Option<u32>,
    /// Element type of the keys.
    pub type_k: Option<KvType>,
    /// Element type of the values.
    pub type_v: Option<KvType>,
    /// Layers with their experts on the CPU.
    pub n_cpu_moe: Option<u32>,
    /// Layers on devices; `Some(None)` for all of them.
    pub gpu_layers: Option<Option<u32>>,
    /// Whether the KV cache must not be quantised, because flash attention is off or the heads do not fill its blocks.
    pub no_quantised_kv: bool,
    /// Whether the weights must stay in memory: they are not mapped, or locked.
    pub held_weights: bool,
}

/// What the file says about a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelFacts {
    /// Tokens that it was trained with.
    pub trained: Option<u32>,
    /// Its layers.
    pub layers: u32,
    /// Experts of a layer; 0 for a dense model.
    pub experts: u32,
}
