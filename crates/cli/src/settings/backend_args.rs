//! The flags that llama.cpp's own options have in `poncho serve`, named as its users know them.
//!
//! Filled by clap, turned into the engine's options by `serve`. Each default is the engine's: a flag that is left out
//! changes nothing. It must never check what the engine checks: there would be two rules.

use clap::ValueEnum;
use poncho_engine::backend::{
    ContextOptions, FlashAttention, KvType, ModelOptions, Numa, Pooling, RopeScaling, SplitMode,
};

/// Options of the weights, the KV cache and the positions.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct BackendArgs {
    /// Layers to keep on the GPU: a number, all, or auto for what fits; a build without a GPU backend ignores it [default: auto]
    #[arg(long, value_name = "COUNT", value_parser = parse_layers, allow_hyphen_values = true)]
    pub(crate) gpu_layers: Option<GpuLayers>,

    /// Devices to use: comma-separated names, as `poncho doctor` lists them [default: all]
    #[arg(long, value_name = "NAMES", value_parser = parse_devices)]
    pub(crate) device: Option<Devices>,

    /// Keep the experts of all layers on the CPU
    #[arg(long, conflicts_with = "n_cpu_moe")]
    pub(crate) cpu_moe: bool,

    /// Keep the experts of this many layers on the CPU, from the first one on [default: what fits]
    #[arg(long, value_name = "LAYERS")]
    pub(crate) n_cpu_moe: Option<u32>,

    /// How threads and memory are placed on a machine with several NUMA nodes [default: left to the system]
    #[arg(long, value_name = "HOW")]
    pub(crate) numa: Option<NumaArg>,

    /// How tensors are split across several GPUs [default: layer]
    #[arg(long, value_name = "MODE")]
    pub(crate) split_mode: Option<SplitArg>,

    /// GPU for tensors that are not split [default: 0]
    #[arg(long, value_name = "INDEX")]
    pub(crate) main_gpu: Option<u32>,

    /// Share of each GPU, as comma-separated numbers, such as 3,1 [default: chosen by llama.cpp]
    #[arg(long, value_name = "SHARES", value_parser = parse_shares)]
    pub(crate) tensor_split: Option<Shares>,

    /// Read the model file into memory instead of mapping it
    #[arg(long)]
    pub(crate) no_mmap: bool,

    /// Lock the weights in memory, so that they are never swapped out
    #[arg(long)]
    pub(crate) mlock: bool,

    /// Check the data of all tensors while the model is loaded
    #[arg(long)]
    pub(crate) check_tensors: bool,

    /// Maximum number of tokens in one decode call [default: 2048]
    #[arg(long, short, value_name = "TOKENS")]
    pub(crate) batch_size: Option<u32>,

    /// Maximum number of tokens computed at once [default: 512]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) ubatch_size: Option<u32>,

    /// Element type of the keys in the KV cache [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub(crate) cache_type_k: Option<KvTypeArg>,

    /// Element type of the values in the KV cache; a quantized type needs flash attention [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub(crate) cache_type_v: Option<KvTypeArg>,

    /// Whether to use flash attention [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub(crate) flash_attn: Option<FlashArg>,

    /// Keep all positions of sliding-window layers; takes more memory, but live sequences can be truncated anywhere
    #[arg(long)]
    pub(crate) swa_full: bool,

    /// Keep the KV cache in host memory, even if layers are on a GPU
    #[arg(long)]
    pub(crate) no_kv_offload: bool,

    /// Number of threads that compute prompts [default: as --threads]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads_batch: Option<u32>,

    /// How long compute threads without work spin before they sleep, from 0 (not at all) to 100 [default: 0]
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) poll: Option<u32>,

    /// How the token embeddings of a text are combined [default: from the model]
    #[arg(long, value_name = "HOW")]
    pub(crate) pooling: Option<PoolingArg>,

    /// How positions beyond the trained context are scaled [default: from the model]
    #[arg(long, value_name = "HOW")]
    pub(crate) rope_scaling: Option<RopeArg>,

    /// Base frequency of RoPE [default: from the model]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rope_freq_base: Option<f32>,

    /// Frequency scale of RoPE; 0.5 doubles the context [default: from the model]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) rope_freq_scale: Option<f32>,

    /// Extrapolation factor of YaRN [default: from the model]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) yarn_ext_factor: Option<f32>,

    /// Attention factor of YaRN [default: from the model]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) yarn_attn_factor: Option<f32>,

    /// Low correction dimension of YaRN [default: from the model]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) yarn_beta_fast: Option<f32>,

    /// High correction dimension of YaRN [default: from the model]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) yarn_beta_slow: Option<f32>,

    /// Original context size of a model that is extended with YaRN [default: from the model]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) yarn_orig_ctx: Option<u32>,
}

impl BackendArgs {
    /// Layers on the GPU that are asked for; `Some(None)` for all of them.
    pub(crate) fn layers(&self) -> Option<Option<u32>> {
        match self.gpu_layers? {
            GpuLayers::Auto => None,
            GpuLayers::All => Some(None),
            GpuLayers::Count(layers) => Some(Some(layers)),
        }
    }

    /// Layers with their experts on the CPU that are asked for.
    pub(crate) fn experts_on_cpu(&self) -> Option<u32> {
        if self.cpu_moe { Some(u32::MAX) } else { self.n_cpu_moe }
    }

    /// The names of the devices that are asked for; none for all of them.
    pub(crate) fn device_names(&self) -> Vec<String> {
        self.device.as_ref().map(|Devices(names)| names.clone()).unwrap_or_default()
    }

    /// Puts what was given into the options of a model's weights.
    pub(crate) fn set_model(&self, options: &mut ModelOptions) {
        if let Some(layers) = self.layers() {
            options.gpu_layers = layers;
        }
        if let Some(layers) = self.experts_on_cpu() {
            options.n_cpu_moe = layers;
        }
        if let Some(Devices(names)) = &self.device {
            options.devices.clone_from(names);
        }
        if let Some(numa) = self.numa {
            options.numa = numa.numa();
        }
        if let Some(mode) = self.split_mode {
            options.split_mode = mode.mode();
        }
        if let Some(gpu) = self.main_gpu {
            options.main_gpu = gpu;
        }
        if let Some(Shares(shares)) = &self.tensor_split {
            options.tensor_split.clone_from(shares);
        }
        options.mmap &= !self.no_mmap;
        options.mlock |= self.mlock;
        options.check_tensors |= self.check_tensors;
    }

    /// Puts what was given into the options of a context.
    pub(crate) fn set_context(&self, options: &mut ContextOptions) {
        if let Some(tokens) = self.batch_size {
            options.n_batch = tokens;
            // A smaller batch means smaller pieces, unless their size was given too.
            options.n_ubatch = options.n_ubatch.min(tokens);
        }
        if let Some(tokens) = self.ubatch_size {
            options.n_ubatch = tokens;
        }
        if let Some(kind) = self.cache_type_k {
            options.type_k = kind.kind();
        }
        if let Some(kind) = self.cache_type_v {
            options.type_v = kind.kind();
        }
        if let Some(when) = self.flash_attn {
            options.flash_attention = when.when();
        }
        options.swa_full |= self.swa_full;
        options.offload_kqv &= !self.no_kv_offload;
        options.threads_batch = self.threads_batch.or(options.threads_batch);
        options.poll = self.poll.unwrap_or(options.poll);
        if let Some(how) = self.pooling {
            options.pooling = how.pooling();
        }
        if let Some(how) = self.rope_scaling {
            options.rope_scaling = how.scaling();
        }
        options.rope_freq_base = self.rope_freq_base.or(options.rope_freq_base);
        options.rope_freq_scale = self.rope_freq_scale.or(options.rope_freq_scale);
        options.yarn_ext_factor = self.yarn_ext_factor.or(options.yarn_ext_factor);
        options.yarn_attn_factor = self.yarn_attn_factor.or(options.yarn_attn_factor);
        options.yarn_beta_fast = self.yarn_beta_fast.or(options.yarn_beta_fast);
        options.yarn_beta_slow = self.yarn_beta_slow.or(options.yarn_beta_slow);
        options.yarn_orig_ctx = self.yarn_orig_ctx.or(options.yarn_orig_ctx);
    }
}

/// Layers on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GpuLayers {
    /// What fits.
    Auto,
    All,
    Count(u32),
}

fn parse_layers(text: &str) -> Result<GpuLayers, String> {
    match text {
        "auto" => Ok(GpuLayers::Auto),
        // llama-server's older spelling.
        "all" | "-1" => Ok(GpuLayers::All),
        _ => text
            .parse()
            .map(GpuLayers::Count)
            .map_err(|_| format!("{text:?} is not a number of layers; write a number such as 24, auto, or all")),
    }
}

/// Names of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Devices(Vec<String>);

fn parse_devices(text: &str) -> Result<Devices, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    match names.iter().any(String::is_empty) {
        true => Err(format!("{text:?} is not a list of devices; write names with commas, such as CUDA0,CUDA1")),
        false => Ok(Devices(names)),
    }
}

/// How threads and memory are placed on NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NumaArg {
    /// Spread over all nodes
    Distribute,
    /// Only the node that the server was started on
    Isolate,
    /// As set by numactl
    Numactl,
}

impl NumaArg {
    const fn numa(self) -> Numa {
        match self {
            Self::Distribute => Numa::Distribute,
            Self::Isolate => Numa::Isolate,
            Self::Numactl => Numa::Numactl,
        }
    }
}

/// The share of each GPU.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shares(Vec<f32>);

fn parse_shares(text: &str) -> Result<Shares, String> {
    let shares: Result<Vec<f32>, _> = text.split(',').map(|share| share.trim().parse()).collect();
    shares.map(Shares).map_err(|_| format!("{text:?} is not a list of shares; write numbers with commas, such as 3,1"))
}

/// How tensors are split across GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SplitArg {
    /// One GPU holds everything
    None,
    /// Whole layers
    Layer,
    /// Rows of each tensor
    Row,
}

impl SplitArg {
    const fn mode(self) -> SplitMode {
        match self {
            Self::None => SplitMode::None,
            Self::Layer => SplitMode::Layer,
            Self::Row => SplitMode::Row,
        }
    }
}

/// An element type of the KV cache, by llama.cpp's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvTypeArg {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q4_1")]
    Q4_1,
    #[value(name = "q5_0")]
    Q5_0,
    #[value(name = "q5_1")]
    Q5_1,
    #[value(name = "iq4_nl")]
    Iq4Nl,
}

impl KvTypeArg {
    const fn kind(self) -> KvType {
        match self {
            Self::F32 => KvType::F32,
            Self::F16 => KvType::F16,
            Self::Bf16 => KvType::Bf16,
            Self::Q8_0 => KvType::Q8_0,
            Self::Q4_0 => KvType::Q4_0,
            Self::Q4_1 => KvType::Q4_1,
            Self::Q5_0 => KvType::Q5_0,
            Self::Q5_1 => KvType::Q5_1,
            Self::Iq4Nl => KvType::Iq4Nl,
        }
    }
}

/// When flash attention is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FlashArg {
    /// Always
    On,
    /// Never
    Off,
    /// Where the device supports it
    Auto,
}

impl FlashArg {
    const fn when(self) -> FlashAttention {
        match self {
            Self::On => FlashAttention::On,
            Self::Off => FlashAttention::Off,
            Self::Auto => FlashAttention::Auto,
        }
    }
}

/// How embeddings are pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolingArg {
    /// One vector for each token
    None,
    /// The mean of all tokens
    Mean,
    /// The first token
    Cls,
    /// The last token
    Last,
    /// The score of the classification head
    Rank,
}

impl PoolingArg {
    const fn pooling(self) -> Pooling {
        match self {
            Self::None => Pooling::None,
            Self::Mean => Pooling::Mean,
            Self::Cls => Pooling::Cls,
            Self::Last => Pooling::Last,
            Self::Rank => Pooling::Rank,
        }
    }
}

/// How positions are scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RopeArg {
    /// Not at all
    None,
    /// Linearly
    Linear,
    /// YaRN
    Yarn,
    /// LongRoPE
    Longrope,
}

impl RopeArg {
    const fn scaling(self) -> RopeScaling {
        match self {
            Self::None => RopeScaling::None,
            Self::Linear => RopeScaling::Linear,
            Self::Yarn => RopeScaling::Yarn,
            Self::Longrope => RopeScaling::LongRope,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        backend: BackendArgs,
    }

    fn options(words: &[&str]) -> (ModelOptions, ContextOptions) {
        let line = Line::try_parse_from(["serve"].iter().chain(words)).unwrap();
        let (mut model, mut context) = (ModelOptions::new("m"), ContextOptions::default());
        line.backend.set_model(&mut model);
        line.backend.set_context(&mut context);
        (model, context)
    }

    #[test]
    fn without_flags_the_engines_defaults_stay() {
        assert_eq!(options(&[]), (ModelOptions::new("m"), ContextOptions::default()));
    }

    #[test]
    fn every_flag_reaches_its_option() {
        let (model, context) = options(&[
            "--gpu-layers=7",
            "--device=G0, G1",
            "--n-cpu-moe=5",
            "--numa=isolate",
            "--split-mode=row",
            "--main-gpu=1",
            "--tensor-split=3,1",
            "--no-mmap",
            "--mlock",
            "--check-tensors",
            "--batch-size=256",
            "--ubatch-size=64",
            "--cache-type-k=q8_0",
            "--cache-type-v=iq4_nl",
            "--flash-attn=on",
            "--swa-full",
            "--no-kv-offload",
            "--threads-batch=3",
            "--poll=50",
            "--pooling=cls",
            "--rope-scaling=yarn",
            "--rope-freq-base=1e6",
            "--rope-freq-scale=0.5",
            "--yarn-ext-factor=1",
            "--yarn-attn-factor=2",
            "--yarn-beta-fast=32",
            "--yarn-beta-slow=4",
            "--yarn-orig-ctx=4096",
        ]);
        let expected_model = ModelOptions {
            mmap: false,
            mlock: true,
            gpu_layers: Some(7),
            devices: vec!["G0".to_owned(), "G1".to_owned()],
            n_cpu_moe: 5,
            numa: Numa::Isolate,
            split_mode: SplitMode::Row,
            main_gpu: 1,
            tensor_split: vec![3.0, 1.0],
            check_tensors: true,
            ..ModelOptions::new("m")
        };
        let expected_context = ContextOptions {
            n_batch: 256,
            n_ubatch: 64,
            type_k: KvType::Q8_0,
            type_v: KvType::Iq4Nl,
            flash_attention: FlashAttention::On,
            swa_full: true,
            threads_batch: Some(3),
            poll: 50,
            offload_kqv: false,
            pooling: Pooling::Cls,
            rope_scaling: RopeScaling::Yarn,
            rope_freq_base: Some(1e6),
            rope_freq_scale: Some(0.5),
            yarn_ext_factor: Some(1.0),
            yarn_attn_factor: Some(2.0),
            yarn_beta_fast: Some(32.0),
            yarn_beta_slow: Some(4.0),
            yarn_orig_ctx: Some(4096),
            ..ContextOptions::default()
        };
        assert_eq!((model, context), (expected_model, expected_context));
    }

    #[test]
    fn layers_and_experts_are_given_or_left_to_the_planner() {
        let given = |words: &[&str]| {
            let line = Line::try_parse_from(["serve"].iter().chain(words)).unwrap();
            (line.backend.layers(), line.backend.experts_on_cpu())
        };
        assert_eq!(given(&[]), (None, None));
        assert_eq!(given(&["--gpu-layers", "auto"]), (None, None));
        assert_eq!(given(&["--gpu-layers", "all", "--cpu-moe"]), (Some(None), Some(u32::MAX)));
        assert_eq!(given(&["--gpu-layers", "-1"]), (Some(None), None), "llama-server's older spelling");
        assert_eq!(given(&["--gpu-layers", "0", "--n-cpu-moe", "0"]), (Some(Some(0)), Some(0)));
    }

    #[test]
    fn a_smaller_batch_makes_smaller_pieces() {
        let (_, context) = options(&["--batch-size=128"]);
        assert_eq!((context.n_batch, context.n_ubatch), (128, 128));
        assert!(context.check().is_ok());
    }

    #[test]
    fn wrong_values_say_what_would_do() {
        let refused = |word: &str| Line::try_parse_from(["serve", word]).unwrap_err().to_string();
        assert!(refused("--gpu-layers=many").contains("or all"), "{}", refused("--gpu-layers=many"));
        assert!(refused("--device=a,,b").contains("such as CUDA0,CUDA1"));
        assert!(refused("--tensor-split=a").contains("such as 3,1"));
        assert!(refused("--cache-type-k=q9").contains("q8_0"));
    }
}
