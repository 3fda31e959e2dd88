//! How much memory a model takes: its weights and the cells of its context, worked out from the file and the settings
//! before anything is loaded; and what the second context for embeddings takes, if one is made.
//!
//! Used by callers that keep several models within a budget. It is an estimate: the compute buffers of the first context are
//! not in it (they do not grow with its length), and a windowed model is counted as if it kept every position. A file that
//! cannot be read counts nothing; loading it says why.

use poncho_api::Footprint;
use poncho_gguf::{Keep, Metadata, Value};

use crate::backend::{ContextOptions, FlashAttention, KvLayout, KvType};
use crate::config::ModelConfig;
use crate::files::parts;

/// One number for each layer; no model has more.
const MAX_LAYERS: usize = 4096;

/// Parts of keys that name layers with states of another size: recurrent, compressed, shared.
const PARTIAL_STATES: [&str; 6] =
    [".ssm.", ".wkv", ".shortconv.", ".kv_lora_rank", ".full_attention_interval", ".shared_kv_layers"];

/// What a model with these settings takes. Reads the head of the file.
#[must_use]
pub fn footprint(config: &ModelConfig) -> Footprint {
    let shape = Shape::of(config);
    let count = shape.values.get("split.count").and_then(Value::as_unsigned);
    let sizes = parts::files(&config.model, count).into_iter().filter_map(|path| std::fs::metadata(path).ok());
    let weights = sizes.map(|file| file.len()).fold(0, u64::saturating_add);
    Footprint { weights, cells: shape.bytes_per_cell(&config.context).saturating_mul(shape.cells(&config.context)) }
}

/// The facts behind a footprint: for reports to people, and to find settings that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizing {
    /// What the model takes.
    pub footprint: Footprint,
    /// Bytes of one position in all layers; 0 if the file does not describe its attention.
    pub bytes_per_token: u64,
    /// Whether each layer keeps each position, so that the cells are not an upper bound only. Windowed, recurrent and
    /// compressed layers keep less.
    pub is_exact: bool,
    /// Positions that the model was trained with.
    pub trained_context: Option<u64>,
}

/// The sizing of a model with these settings. Reads the head of the file.
#[must_use]
pub fn sizing(config: &ModelConfig) -> Sizing {
    let shape = Shape::of(config);
    Sizing {
        footprint: footprint(config),
        bytes_per_token: shape.bytes_per_cell(&config.context),
        is_exact: shape.keeps_all_positions(&config.context),
        trained_context: shape.number("context_length").filter(|length| *length > 0),
    }
}

/// What the context for embeddings takes, by the length of the longest input.
///
/// An input is computed in one piece, so the buffers of this context grow with it, and without flash attention with its
/// square.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmbeddingCost {
    /// Bytes for each row: keys, values and activations.
    per_row: u64,
    /// Bytes for each pair of rows: attention scores and their mask.
    per_pair: u64,
}

impl EmbeddingCost {
    /// The cost for a model with these settings. Reads the head of the file.
    #[must_use]
    pub fn of(config: &ModelConfig) -> Self {
        let shape = Shape::of(config);
        let number = |key: &str| shape.number(key).unwrap_or(0);
        let width = number("embedding_length");
        let inner = shape.largest("feed_forward_length");
        // The largest tensors that live at the same time: the two halves of the feed-forward part, or the residual, the
        // norm and the projections of the attention, in 32 bits.
        let activations = inner.saturating_mul(2).saturating_add(width.saturating_mul(6)).saturating_mul(4);
        let heads = shape.largest("attention.head_count");
        let scores = if config.context.flash_attention == FlashAttention::Off { heads.saturating_mul(4) } else { 2 };
        let is_known = width > 0;
        Self {
            per_row: shape.bytes_per_cell(&config.context).saturating_add(activations),
            per_pair: if is_known { scores.saturating_add(4) } else { 0 },
        }
    }

    /// Bytes of a context with this number of rows; see [`crate::Model::embedding_rows`].
    #[must_use]
    pub fn bytes(self, rows: u32) -> u64 {
        let rows = u64::from(rows);
        let pairs = rows.saturating_mul(rows);
        self.per_row.saturating_mul(rows).saturating_add(self.per_pair.saturating_mul(pairs))
    }
}

/// What the file says about its attention. Also read by the arithmetic of `fit`.
pub(crate) struct Shape {
    values: Metadata,
}

impl Shape {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        let values = Metadata::open(&config.model.path, &Keep::arrays_up_to(MAX_LAYERS)).unwrap_or_default();
        Self { values }
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let architecture = self.values.get("general.architecture")?.as_text()?.lossy();
        self.values.get(&format!("{architecture}.{key}"))
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.value(key).and_then(Value::as_unsigned)
    }

    /// Tokens of the vocabulary.
    pub(crate) fn vocabulary(&self) -> u64 {
        self.values.get("tokenizer.ggml.tokens").and_then(Value::as_array).map_or(0, |tokens| tokens.count)
    }

    /// A number for all layers, or the largest of one for each.
    pub(crate) fn largest(&self, key: &str) -> u64 {
        let Some(value) = self.value(key) else { return 0 };
        let each = value.as_array().map_or(std::slice::from_ref(value), |array| array.values.as_slice());
        each.iter().filter_map(Value::as_unsigned).max().unwrap_or(0)
    }

    /// Whether all layers keep all positions with their keys and values, as far as the file says.
    fn keeps_all_positions(&self, context: &ContextOptions) -> bool {
        let has = |part: &str| self.values.iter().any(|(key, _)| key.contains(part));
        let is_windowed = self.largest("attention.sliding_window") > 0 && !context.swa_full;
        !is_windowed && !PARTIAL_STATES.iter().any(|part| has(part))
    }

    /// Positions that the context has room for.
    fn cells(&self, context: &ContextOptions) -> u64 {
        let one = if context.n_ctx == 0 { self.number("context_length").unwrap_or(0) } else { context.n_ctx.into() };
        match context.kv {
            KvLayout::Split => one.saturating_mul(context.n_seq_max.into()),
            KvLayout::Unified => context.n_cells.map_or(one, u64::from),
        }
    }

    /// Whether a head of keys and of values fills whole blocks of a quantised type, as llama.cpp demands.
    pub(crate) fn fills_blocks(&self) -> bool {
        const BLOCK: u64 = 32;
        let heads = self.largest("attention.head_count");
        let width = self.number("embedding_length").unwrap_or(0).checked_div(heads).unwrap_or(0);
        ["key_length", "value_length"].into_iter().all(|name| {
            let all = self.number(&format!("attention.{name}")).unwrap_or(width);
            let windowed = self.number(&format!("attention.{name}_swa")).unwrap_or(all);
            all.is_multiple_of(BLOCK) && windowed.is_multiple_of(BLOCK)
        })
    }

    /// Keys and values of one position in all layers.
    pub(crate) fn bytes_per_cell(&self, context: &ContextOptions) -> u64 {
        let heads = self.number("attention.head_count").unwrap_or(0);
        let width = self.number("embedding_length").unwrap_or(0).checked_div(heads).unwrap_or(0);
        let key = self.number("attention.key_length").unwrap_or(width);
        let value = self.number("attention.value_length").unwrap_or(width);
        let layers = self.number("block_count").unwrap_or(0).min(MAX_LAYERS as u64);
        let kv_heads = match self.value("attention.head_count_kv") {
            // Some models have layers without attention, or with fewer heads.
            Some(Value::Array(each)) => each.values.iter().filter_map(Value::as_unsigned).fold(0, u64::saturating_add),
            Some(one) => one.as_unsigned().unwrap_or(0).saturating_mul(layers),
            None => heads.saturating_mul(layers),
        };
        let bits = key.saturating_mul(bits(context.type_k)).saturating_add(value.saturating_mul(bits(context.type_v)));
        kv_heads.saturating_mul(bits) / 16
    }
}

/// Half bits of an element, because blocks of 32 carry their scales.
const fn bits(kind: KvType) -> u64 {
    match kind {
        KvType::F32 => 64,
        KvType::F16 | KvType::Bf16 => 32,
        KvType::Q8_0 => 17,
        KvType::Q5_1 => 12,
        KvType::Q5_0 => 11,
        KvType::Q4_1 => 10,
        KvType::Q4_0 | KvType::Iq4Nl => 9,
    }
}

#[cfg(test)]
mod tests {
    use poncho_testkit::{ModelKind, ModelSpec, model_path, write_split_model};

    use super::*;
    use crate::backend::ModelOptions;

    fn config(change: impl FnOnce(&mut ContextOptions)) -> ModelConfig {
        let mut config = ModelConfig::new("m", model_path(ModelKind::Attention));
        config.context =
            ContextOptions { n_ctx: 128, n_seq_max: 2, kv: KvLayout::Unified, ..ContextOptions::default() };
        change(&mut config.context);
        config
    }

    #[test]
    fn the_cells_grow_with_the_context_and_the_type() {
        let base = footprint(&config(|_| {}));
        assert_eq!(base.weights, std::fs::metadata(model_path(ModelKind::Attention)).unwrap().len());
        assert!(base.cells > 0);
        assert_eq!(base.total(), base.weights + base.cells);
        let cells = |change: fn(&mut ContextOptions)| footprint(&config(change)).cells;
        assert_eq!(cells(|context| context.n_ctx = 256), base.cells * 2);
        assert_eq!(cells(|context| context.n_cells = Some(512)), base.cells * 4);
        assert_eq!(cells(|context| context.kv = KvLayout::Split), base.cells * 2);
        assert_eq!(
            cells(|context| {
                context.type_k = KvType::F32;
                context.type_v = KvType::F32;
            }),
            base.cells * 2
        );
        assert!(cells(|context| context.n_ctx = 0) > base.cells, "the trained length");
    }

    /// Everyday use 13: a report has to know whether the cells are an upper bound.
    #[test]
    fn a_sizing_has_the_facts_of_the_file() {
        let config = config(|_| {});
        let found = sizing(&config);
        assert_eq!(found.footprint, footprint(&config));
        assert_eq!(found.bytes_per_token * 128, found.footprint.cells);
        assert!(found.is_exact && found.trained_context.is_some_and(|length| length > 0), "{found:?}");
        for kind in [ModelKind::Window, ModelKind::Recurrent, ModelKind::Hybrid] {
            let found = sizing(&ModelConfig::new("m", model_path(kind)));
            assert!(!found.is_exact, "{kind:?}: {found:?}");
        }
    }

    #[test]
    fn what_is_no_model_counts_its_bytes_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("junk");
        std::fs::write(&path, [0; 100]).unwrap();
        assert_eq!(footprint(&ModelConfig::new("m", &path)), Footprint { weights: 100, cells: 0 });
        assert_eq!(footprint(&ModelConfig::new("m", folder.path().join("none"))), Footprint::default());
    }

    /// Hardening 18: the budget saw the first part of a split model only.
    #[test]
    fn all_parts_of_a_split_model_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let parts = write_split_model(&ModelSpec::tiny(ModelKind::Attention), folder.path(), "m", 3).unwrap();
        let all: u64 = parts.iter().map(|part| std::fs::metadata(part).unwrap().len()).sum();
        let whole = footprint(&config(|_| {}));
        let found = footprint(&ModelConfig { model: ModelOptions::new(&parts[0]), ..config(|_| {}) });
        assert_eq!(found, Footprint { weights: all, cells: whole.cells });
        assert!(all > whole.weights, "each part has a header of its own");
    }

    /// Hardening 20: the context for embeddings was in no estimate.
    #[test]
    fn the_context_for_embeddings_costs_more_than_its_cells() {
        let cost = EmbeddingCost::of(&config(|_| {}));
        let cells = footprint(&config(|context| context.n_ctx = 512)).cells;
        assert!(cost.bytes(512) > cells, "{cost:?}");
        assert!(cost.bytes(1024) > cost.bytes(512) * 2, "the mask grows with the square");
        let without_flash = EmbeddingCost::of(&config(|context| context.flash_attention = FlashAttention::Off));
        assert!(without_flash.bytes(512) > cost.bytes(512));
        let absurd = EmbeddingCost { per_row: u64::MAX, per_pair: u64::MAX };
        assert_eq!(absurd.bytes(u32::MAX), u64::MAX);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(EmbeddingCost::of(&ModelConfig::new("m", folder.path())), EmbeddingCost::default());
    }

    /// A plan with a small KV cache was made for heads of 80, and llama.cpp refused it.
    #[test]
    fn only_heads_of_whole_blocks_can_be_quantised() {
        let fills = |numbers: &[(&str, u64)]| {
            let numbers = numbers.iter().map(|(key, number)| (format!("x.{key}"), Value::U64(*number)));
            let architecture = ("general.architecture".to_owned(), Value::Text("x".into()));
            Shape { values: numbers.chain([architecture]).collect() }.fills_blocks()
        };
        assert!(fills(&[("embedding_length", 2048), ("attention.head_count", 32)]), "heads of 64");
        assert!(!fills(&[("embedding_length", 2560), ("attention.head_count", 32)]), "heads of 80");
        let odd = [("embedding_length", 3840), ("attention.head_count", 16)];
        let own = [("attention.key_length", 256), ("attention.value_length", 256)];
        assert!(!fills(&odd) && fills(&[odd, own].concat()));
        assert!(!fills(&[("embedding_length", 2048), ("attention.head_count", 32), ("attention.key_length_swa", 48)]));
        assert!(fills(&[]), "a file that says nothing");
    }

    #[test]
    fn absurd_numbers_do_not_overflow() {
        let numbers = ["attention.head_count", "block_count", "embedding_length"];
        let numbers = numbers.map(|key| (format!("x.{key}"), Value::U64(u64::MAX)));
        let architecture = ("general.architecture".to_owned(), Value::Text("x".into()));
        let shape = Shape { values: numbers.into_iter().chain([architecture]).collect() };
        let context = ContextOptions { n_ctx: u32::MAX, ..ContextOptions::default() };
        assert!(shape.bytes_per_cell(&context) > 0);
    }
}
