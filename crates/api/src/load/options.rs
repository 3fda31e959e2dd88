//! How a model is loaded and a context created: plain values with their defaults and their checks.
//!
//! Part of a model's configuration, read by the backends of the engine.
//! A check here needs no file and no library: the same refusals come from the stub.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An option with a value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option} = {value} cannot be used: {reason}")]
pub struct BadOption {
    /// Its name.
    pub option: &'static str,
    /// The value as given.
    pub value: String,
    /// Why, and what works.
    pub reason: &'static str,
}

/// Most sequences llama.cpp keeps apart in one context.
pub const MAX_SEQUENCES: u32 = 256;

/// How tensors are spread over several GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SplitMode {
    /// One GPU takes all.
    None,
    /// Whole layers.
    #[default]
    Layer,
    /// Rows of each tensor.
    Row,
}

/// How threads and memory are placed on a machine with several NUMA nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Numa {
    /// Left to the system.
    #[default]
    Off,
    /// Threads are spread over all nodes.
    Distribute,
    /// Threads stay on the node that the process was started on.
    Isolate,
    /// As `numactl` says.
    Numactl,
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    #[default]
    F16,
    /// Brain floats.
    Bf16,
    /// 8-bit blocks.
    Q8_0,
    /// 4-bit blocks.
    Q4_0,
    /// 4-bit blocks with an offset.
    Q4_1,
    /// 5-bit blocks.
    Q5_0,
    /// 5-bit blocks with an offset.
    Q5_1,
    /// 4-bit non-linear blocks.
    Iq4Nl,
}

impl KvType {
    /// llama.cpp's name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Iq4Nl => "iq4_nl",
        }
    }

    /// Whether the values are stored in quantised blocks.
    #[must_use]
    pub fn is_quantised(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// Flash attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FlashAttention {
    /// Always.
    On,
    /// Never.
    Off,
    /// Where the device supports it.
    #[default]
    Auto,
}

/// Whether sequences share one pool of cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KvLayout {
    /// One pool: a long conversation may use all of it.
    #[default]
    Unified,
    /// Each sequence has its own cells: no interference.
    Split,
}

impl KvLayout {
    /// The layout for a number of requests at once, if none is asked for.
    #[must_use]
    pub const fn usual(requests: u32) -> Self {
        if requests == 1 { Self::Unified } else { Self::Split }
    }
}

/// How positions beyond the trained context are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RopeScaling {
    /// As the file says.
    #[default]
    FromModel,
    /// Not scaled.
    None,
    /// Linear.
    Linear,
    /// YaRN.
    Yarn,
    /// LongRoPE.
    LongRope,
}

/// How a sequence's embeddings become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pooling {
    /// As the file says.
    #[default]
    FromModel,
    /// Not at all: one embedding per row.
    None,
    /// Mean of all rows.
    Mean,
    /// The first row.
    Cls,
    /// The last row.
    Last,
    /// A score from the classification head.
    Rank,
}

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelOptions {
    /// The GGUF file; the first part of a split model.
    pub path: PathBuf,
    /// Further parts of a split model with names of their own; empty when the names follow llama.cpp's pattern.
    pub split_paths: Vec<PathBuf>,
    /// Map the file instead of reading it.
    pub mmap: bool,
    /// Lock the weights in memory.
    pub mlock: bool,
    /// Layers to put on a GPU; `None` for all that exist (a CPU build ignores it).
    pub gpu_layers: Option<u32>,
    /// Layers with their experts on the CPU, from the first one on; more than there are means all.
    pub n_cpu_moe: u32,
    /// Devices to use, by llama.cpp's names; empty for all of them.
    pub devices: Vec<String>,
    /// How threads and memory are placed. The first model that is loaded decides for the process.
    pub numa: Numa,
    /// How tensors are spread over several GPUs.
    pub split_mode: SplitMode,
    /// The GPU for what is not spread.
    pub main_gpu: u32,
    /// Share of each GPU; empty for the library's own choice.
    pub tensor_split: Vec<f32>,
    /// Load the vocabulary only.
    pub vocab_only: bool,
    /// Check the tensor data while loading.
    pub check_tensors: bool,
}

impl ModelOptions {
    /// The defaults for a file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            split_paths: Vec::new(),
            mmap: true,
            mlock: false,
            gpu_layers: None,
            n_cpu_moe: 0,
            devices: Vec::new(),
            numa: Numa::default(),
            split_mode: SplitMode::default(),
            main_gpu: 0,
            tensor_split: Vec::new(),
            vocab_only: false,
            check_tensors: false,
        }
    }

    /// Refuses values that cannot work, before any file is opened.
    ///
    /// # Errors
    /// [`BadOption`] naming the option.
    pub fn check(&self) -> Result<(), BadOption> {
        let shares = &self.tensor_split;
        if shares.iter().any(|share| !share.is_finite() || *share < 0.0) {
            return Err(BadOption {
                option: "tensor_split",
                value: format!("{shares:?}"),
                reason: "shares are finite and not negative",
            });
        }
        if !shares.is_empty() && shares.iter().sum::<f32>() <= 0.0 {
            return Err(BadOption {
                option: "tensor_split",
                value: format!("{shares:?}"),
                reason: "at least one GPU needs a share above 0",
            });
        }
        Ok(())
    }
}

/// How a context is created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContextOptions {
    /// Tokens one request may use; 0 for the trained context length.
    pub n_ctx: u32,
    /// Cells in the shared pool of unified KV; `None` for `n_ctx`. Ignored with split KV.
    pub n_cells: Option<u32>,
    /// Rows a tick may have.
    pub n_batch: u32,
    /// Rows computed at once.
    pub n_ubatch: u32,
    /// Sequences.
    pub n_seq_max: u32,
    /// Element type of keys.
    pub type_k: KvType,
    /// Element type of values.
    pub type_v: KvType,
    /// Flash attention.
    pub flash_attention: FlashAttention,
    /// Unified or split KV.
    pub kv: KvLayout,
    /// Keep all positions of windowed layers (more memory, and live sequences may be cut anywhere).
    pub swa_full: bool,
    /// Threads for single rows; `None` for the physical cores.
    pub threads: Option<u32>,
    /// Threads for many rows; `None` for `threads`.
    pub threads_batch: Option<u32>,
    /// How long threads without work spin before they sleep, from 0 (not at all) to 100.
    pub poll: u32,
    /// Compute with fewer threads while other programs use the CPUs. Has no effect if `threads` or `threads_batch` is given.
    pub spare_busy_cpus: bool,
    /// Keep the KV cache on the GPU.
    pub offload_kqv: bool,
    /// Compute embeddings instead of logits.
    pub embeddings: bool,
    /// How a sequence's embeddings become one.
    pub pooling: Pooling,
    /// RoPE scaling.
    pub rope_scaling: RopeScaling,
    /// RoPE base frequency; `None` as the file says.
    pub rope_freq_base: Option<f32>,
    /// RoPE frequency scale; `None` as the file says.
    pub rope_freq_scale: Option<f32>,
    /// YaRN extrapolation factor; `None` as the file says.
    pub yarn_ext_factor: Option<f32>,
    /// YaRN attention factor; `None` as the file says.
    pub yarn_attn_factor: Option<f32>,
    /// YaRN low correction dimension; `None` as the file says.
    pub yarn_beta_fast: Option<f32>,
    /// YaRN high correction dimension; `None` as the file says.
    pub yarn_beta_slow: Option<f32>,
    /// YaRN original context; `None` as the file says.
    pub yarn_orig_ctx: Option<u32>,
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self {
            n_ctx: 4096,
            n_cells: None,
            // llama.cpp's own defaults: large enough to fill the matrix kernels, small enough for the compute buffers.
            n_batch: 2048,
            n_ubatch: 512,
            n_seq_max: 4,
            type_k: KvType::default(),
            type_v: KvType::default(),
            flash_attention: FlashAttention::default(),
            kv: KvLayout::default(),
            swa_full: false,
            threads: None,
            threads_batch: None,
            poll: 0,
            spare_busy_cpus: true,
            offload_kqv: true,
            embeddings: false,
            pooling: Pooling::default(),
            rope_scaling: RopeScaling::default(),
            rope_freq_base: None,
            rope_freq_scale: None,
            yarn_ext_factor: None,
            yarn_attn_factor: None,
            yarn_beta_fast: None,
            yarn_beta_slow: None,
            yarn_orig_ctx: None,
        }
    }
}

impl ContextOptions {
    /// Refuses values that cannot work together, before the library is asked.
    ///
    /// # Errors
    /// [`BadOption`] naming the option.
    pub fn check(&self) -> Result<(), BadOption> {
        let refuse = |option, value: String, reason| Err(BadOption { option, value, reason });
        // One id stays free for the scratch sequence of unified KV.
        if self.n_seq_max == 0 || self.n_seq_max >= MAX_SEQUENCES {
            return refuse("n_seq_max", self.n_seq_max.to_string(), "between 1 and 255 sequences are possible");
        }
        if self.n_batch == 0 || self.n_batch > 1 << 20 {
            return refuse("n_batch", self.n_batch.to_string(), "between 1 and 1048576 rows are possible");
        }
        if self.n_batch < self.n_seq_max {
            return refuse("n_batch", self.n_batch.to_string(), "a batch must take one row of every sequence");
        }
        if self.n_ubatch == 0 || self.n_ubatch > self.n_batch {
            return refuse("n_ubatch", self.n_ubatch.to_string(), "between 1 and n_batch rows are possible");
        }
        if self.n_cells.is_some_and(|cells| cells < self.n_ctx) {
            let cells = self.n_cells.unwrap_or_default();
            return refuse("n_cells", cells.to_string(), "the shared pool must hold one request of n_ctx tokens");
        }
        if self.type_v.is_quantised() && self.flash_attention == FlashAttention::Off {
            return refuse("type_v", format!("{:?}", self.type_v), "quantised values need flash attention");
        }
        if self.threads == Some(0) || self.threads_batch == Some(0) {
            return refuse("threads", "0".to_owned(), "at least one thread is needed");
        }
        if self.poll > 100 {
            return refuse("poll", self.poll.to_string(), "a level between 0 and 100 is needed");
        }
        let frequencies = [
            ("rope_freq_base", self.rope_freq_base),
            ("rope_freq_scale", self.rope_freq_scale),
            ("yarn_ext_factor", self.yarn_ext_factor),
            ("yarn_attn_factor", self.yarn_attn_factor),
            ("yarn_beta_fast", self.yarn_beta_fast),
            ("yarn_beta_slow", self.yarn_beta_slow),
        ];
        for (option, value) in frequencies {
            if let Some(value) = value
                && (!value.is_finite() || value < 0.0)
            {
                return refuse(option, value.to_string(), "a finite number that is not negative is needed");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_option(change: impl FnOnce(&mut ContextOptions)) -> Option<&'static str> {
        let mut options = ContextOptions::default();
        change(&mut options);
        match options.check() {
            Ok(()) => None,
            Err(BadOption { option, .. }) => Some(option),
        }
    }

    #[test]
    fn the_defaults_are_accepted() {
        assert_eq!(refused_option(|_| {}), None);
    }

    #[test]
    fn each_wrong_value_is_refused_by_name() {
        assert_eq!(refused_option(|o| o.n_seq_max = 0), Some("n_seq_max"));
        assert_eq!(refused_option(|o| o.n_seq_max = 256), Some("n_seq_max"));
        assert_eq!(refused_option(|o| o.n_batch = 0), Some("n_batch"));
        assert_eq!(
            refused_option(|o| {
                o.n_batch = 3;
                o.n_ubatch = 3;
            }),
            Some("n_batch")
        );
        assert_eq!(refused_option(|o| o.n_ubatch = 4096), Some("n_ubatch"));
        assert_eq!(refused_option(|o| o.n_cells = Some(100)), Some("n_cells"));
        assert_eq!(
            refused_option(|o| {
                o.type_v = KvType::Q8_0;
                o.flash_attention = FlashAttention::Off;
            }),
            Some("type_v")
        );
        assert_eq!(refused_option(|o| o.threads = Some(0)), Some("threads"));
        assert_eq!(refused_option(|o| o.poll = 101), Some("poll"));
        assert_eq!(refused_option(|o| o.rope_freq_base = Some(f32::NAN)), Some("rope_freq_base"));
    }

    #[test]
    fn shares_that_add_up_to_nothing_are_refused() {
        let mut options = ModelOptions::new("model.gguf");
        assert!(options.check().is_ok());
        options.tensor_split = vec![0.0, 0.0];
        assert!(matches!(options.check(), Err(BadOption { option: "tensor_split", .. })));
        options.tensor_split = vec![1.0, f32::INFINITY];
        assert!(matches!(options.check(), Err(BadOption { option: "tensor_split", .. })));
    }
}
