//! The needs of a choice, worked out from the head of the model file.
//!
//! Used where llama.cpp is not asked: for models that are small beside the memory, and if its process ends without an
//! answer. Compute buffers are an estimate that is larger than what llama.cpp takes (a test compares them); windowed and
//! recurrent layers count as if they kept every position. A file that cannot be read needs nothing; loading it says why.

use poncho_gguf::{Gguf, Keep};

use super::choice::{Choice, ModelFacts};
use super::keeping::ModelKey;
use super::machine::{Machine, Needs, Use};
use super::planner::Measure;
use crate::backend::{FlashAttention, KvLayout, KvType};
use crate::config::ModelConfig;
use crate::files::footprint::{Shape, footprint};

/// Parts of the names of tensors that hold experts.
const EXPERTS: [&str; 2] = ["_exps", "_chexps"];

/// See the module.
#[derive(Debug, Clone)]
pub struct Arithmetic {
    config: ModelConfig,
    facts: ModelFacts,
    weights: u64,
    expert_weights: u64,
    /// Bytes of one row of a batch in the buffers of a computation.
    per_row: u64,
    /// Bytes for each row and each position that it looks at.
    per_pair: u64,
    /// The free memory of each device, by which layers are spread.
    free: Vec<u64>,
    fills_blocks: bool,
}

impl Arithmetic {
    /// Reads the head of the file of a configuration.
    #[must_use]
    pub fn of(config: &ModelConfig, machine: &Machine) -> Self {
        let shape = Shape::of(config);
        let number = |key: &str| shape.number(key).unwrap_or(0);
        let small = |key: &str| u32::try_from(number(key)).unwrap_or(u32::MAX);
        let facts = ModelFacts {
            trained: Some(small("context_length")).filter(|length| *length > 0),
            layers: small("block_count"),
            experts: small("expert_count"),
        };
        let has_devices = !machine.devices.is_empty();
        let expert_weights = if has_devices && facts.experts > 0 { expert_weights(config) } else { 0 };
        let inner = shape.largest("feed_forward_length").max(shape.largest("expert_feed_forward_length"));
        let width = number("embedding_length");
        // Logits of every row, the two halves of the feed-forward part, and the residual with its projections, in 32 bits.
        let activations = inner.saturating_mul(3).saturating_add(width.saturating_mul(8));
        let per_row = shape.vocabulary().saturating_add(activations).saturating_mul(4);
        let heads = shape.largest("attention.head_count");
        let is_flash = config.context.flash_attention != FlashAttention::Off;
        // The mask in 32 and in 16 bits, or the scores of all heads.
        let per_pair = if is_flash { 6 } else { heads.saturating_mul(8) };
        Self {
            weights: footprint(config).weights,
            config: config.clone(),
            facts,
            expert_weights,
            per_row,
            per_pair,
            free: machine.devices.iter().map(|device| device.free).collect(),
            fills_blocks: shape.fills_blocks(),
        }
    }

    /// Whether llama.cpp can keep the model's keys and values in a quantised type.
    #[must_use]
    pub fn takes_quantised_kv(&self) -> bool {
        self.fills_blocks
    }

    /// What the file says about the model.
    #[must_use]
    pub fn facts(&self) -> ModelFacts {
        self.facts
    }

    /// What a kept plan is found by.
    #[must_use]
    pub fn key(&self) -> ModelKey {
        let one = Choice {
            n_ctx: 256,
            parallel: 1,
            type_k: KvType::F16,
            type_v: KvType::F16,
            n_cpu_moe: 0,
            gpu_layers: None,
        };
        ModelKey { bytes: self.weights, facts: self.facts, context: self.context(&one) }
    }

    fn compute(&self, choice: &Choice) -> u64 {
        let rows = u64::from(self.config.context.n_ubatch);
        let positions = match self.config.context.kv {
            // A row looks at the cells of its own sequence.
            KvLayout::Split => u64::from(choice.n_ctx),
            KvLayout::Unified => u64::from(choice.n_ctx).saturating_mul(u64::from(choice.parallel)),
        };
        rows.saturating_mul(self.per_row).saturating_add(rows.saturating_mul(positions).saturating_mul(self.per_pair))
    }

    fn context(&self, choice: &Choice) -> u64 {
        let mut config = self.config.clone();
        choice.set_context(&mut config.context);
        footprint(&config).cells
    }
}

impl Measure for Arithmetic {
    fn needs(&mut self, choice: &Choice) -> Result<Needs, String> {
        let (context, compute) = (self.context(choice), self.compute(choice));
        if self.free.is_empty() {
            return Ok(Needs { host: Use { weights: self.weights, context, compute }, devices: Vec::new() });
        }
        let layers = u64::from(self.facts.layers).max(1);
        let moved = u64::from(choice.n_cpu_moe).min(layers);
        let experts_here = share(self.expert_weights, moved, layers);
        let on_devices = choice.gpu_layers.map_or(layers, |count| u64::from(count).min(layers));
        let rest = self.weights.saturating_sub(experts_here);
        let (weights_there, context_there) = (share(rest, on_devices, layers), share(context, on_devices, layers));
        let all: u64 = self.free.iter().copied().fold(0, u64::saturating_add).max(1);
        let devices = self.free.iter().map(|free| Use {
            weights: share(weights_there, *free, all),
            context: share(context_there, *free, all),
            compute: if on_devices == 0 { 0 } else { compute },
        });
        let host = Use {
            weights: self.weights.saturating_sub(weights_there),
            context: context.saturating_sub(context_there),
            compute,
        };
        Ok(Needs { host, devices: devices.collect() })
    }
}

/// A part of a number, rounded up.
fn share(number: u64, part: u64, whole: u64) -> u64 {
    let bytes = (u128::from(number) * u128::from(part)).div_ceil(u128::from(whole.max(1)));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn expert_weights(config: &ModelConfig) -> u64 {
    let paths = std::iter::once(&config.model.path).chain(&config.model.split_paths);
    let heads = paths.filter_map(|path| Gguf::open(path, &Keep::FACTS).ok());
    let tensors = heads.flat_map(|head| head.tensors);
    let experts = tensors.filter(|tensor| EXPERTS.iter().any(|part| tensor.name.contains(part)));
    experts.filter_map(|tensor| tensor.bytes()).fold(0, u64::saturating_add)
}
