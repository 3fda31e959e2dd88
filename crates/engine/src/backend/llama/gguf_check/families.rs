//! Architectures that share a rule, under the names that `general.architecture` has.
//!
//! Read by the rules. The lists follow the assertions in `src/models/*.cpp` of the pinned llama.cpp; an architecture that
//! is missing in a list is not checked for that rule, and the probe finds what it cannot take. docs/llama-bump.md says
//! to look at them again with another version.

/// No attention at all (`llm_arch_is_recurrent`).
const RECURRENT: &[&str] = &["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"];

/// Attention in some layers only (`llm_arch_is_hybrid`), and the one with blocks that may leave it out.
const SOME_ATTENTION: &[&str] = &[
    "bailingmoe3",
    "deci",
    "deepseek4",
    "deepseek41",
    "falcon-h1",
    "glm5-next",
    "granitehybrid",
    "jamba",
    "kimi-k3",
    "kimi-linear",
    "lfm2",
    "lfm2moe",
    "lfm3",
    "minimax-01",
    "nemotron_h",
    "nemotron_h_moe",
    "plamo2",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "qwen4exp",
    "wavtokenizer-dec",
];

/// `GGML_ASSERT(n_embd_head_v == n_embd_head_k)` in the graph, or in the tensors of a hybrid; those of `WHOLE_ROPE` have
/// it too.
const EQUAL_HEADS: &[&str] = &[
    "afmoe",
    "bert",
    "bitnet",
    "bloom",
    "chatglm",
    "command-r",
    "eurobert",
    "glm4",
    "gpt2",
    "gptneox",
    "jais",
    "lfm2",
    "lfm2moe",
    "mpt",
    "neo-bert",
    "openelm",
    "phi2",
    "phi3",
    "qwen",
    "refact",
    "stablelm",
    "starcoder",
];

/// `GGML_ASSERT(n_embd_head == n_rot)` in the graph, which also has the assertion of `EQUAL_HEADS`.
const WHOLE_ROPE: &[&str] = &[
    "apertus",
    "arcee",
    "arctic",
    "baichuan",
    "chameleon",
    "codeshell",
    "cogvlm",
    "dbrx",
    "deci",
    "deepseek",
    "dots1",
    "dream",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone",
    "falcon",
    "granite",
    "grok",
    "grovemoe",
    "hunyuan-moe",
    "internlm2",
    "jais2",
    "llada",
    "llada-moe",
    "llama",
    "llama4",
    "maincoder",
    "minimax-m2",
    "mistral3",
    "nemotron",
    "olmo",
    "olmo2",
    "olmoe",
    "orion",
    "plamo",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "qwen3vlmoe",
    "rnd1",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "starcoder2",
    "xverse",
];

/// Mamba 2 layers: heads and groups divide the inner size.
const SSM_HEADS: &[&str] = &["falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe"];

/// Gated delta nets: value heads are a multiple of key heads, and divide the inner size.
const DELTA_NET: &[&str] = &["qwen35", "qwen35moe", "qwen3next", "qwen4exp"];

/// Convolutions with a short memory.
const SHORT_CONVOLUTION: &[&str] = &["lfm2", "lfm2moe", "lfm3"];

/// RWKV layers.
const WKV: &[&str] = &["arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7"];

/// Experts in every model of the kind.
const EXPERTS: &[&str] = &["bailingmoe2", "glm4moe", "grovemoe", "llada-moe", "smallthinker"];

/// Positions of several kinds, with sections that must add up.
const SECTIONS: &[&str] = &["paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe"];

/// Tables of integers among the weights: experts by token, or tokens of another vocabulary.
const INTEGER_TABLES: &[&str] = &["deepseek4", "deepseek41", "dflash", "eagle3", "qwen4exp"];

/// Vectors of a length that the architecture itself decides.
const OWN_VECTORS: &[&str] = &[
    "clef",
    "deepseek4",
    "deepseek41",
    "dflash",
    "gemma-embedding2",
    "gemma4-assistant",
    "glm5-next",
    "modern-bert",
    "wavtokenizer-dec",
];

/// Windows in the layers that a pattern names (`load_swa_pattern`), in at least one.
const WINDOWS: &[&str] = &[
    "afmoe",
    "cohere2",
    "cohere2moe",
    "exaone-moe",
    "exaone4",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gpt-oss",
    "laguna",
    "limite",
    "llama4",
    "mellum",
    "muse-glimmer",
    "olmo2",
    "plamo3",
    "smallthinker",
];

/// A rule that only some architectures have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trait {
    /// Has no attention.
    Recurrent,
    /// Has attention in every layer.
    Attention,
    /// Keys and values are equally long.
    EqualHeads,
    /// Positions turn the whole head.
    WholeRope,
    /// Mamba 2 layers.
    SsmHeads,
    /// Gated delta nets.
    DeltaNet,
    /// Short convolutions.
    ShortConvolution,
    /// RWKV layers.
    Wkv,
    /// Cannot be without experts.
    Experts,
    /// Sections of positions.
    Sections,
    /// Tables of integers among its weights.
    IntegerTables,
    /// Makes vectors of a length of its own.
    OwnVectors,
    /// Windows by a pattern.
    Windows,
}

/// Whether an architecture has a trait.
pub(super) fn has(architecture: &str, wanted: Trait) -> bool {
    let list = match wanted {
        Trait::Attention => {
            return !architecture.is_empty()
                && !RECURRENT.contains(&architecture)
                && !SOME_ATTENTION.contains(&architecture);
        }
        Trait::EqualHeads => return EQUAL_HEADS.contains(&architecture) || WHOLE_ROPE.contains(&architecture),
        Trait::Recurrent => RECURRENT,
        Trait::WholeRope => WHOLE_ROPE,
        Trait::SsmHeads => SSM_HEADS,
        Trait::DeltaNet => DELTA_NET,
        Trait::ShortConvolution => SHORT_CONVOLUTION,
        Trait::Wkv => WKV,
        Trait::Experts => EXPERTS,
        Trait::Sections => SECTIONS,
        Trait::IntegerTables => INTEGER_TABLES,
        Trait::OwnVectors => OWN_VECTORS,
        Trait::Windows => WINDOWS,
    };
    list.contains(&architecture)
}
