//! The parameters of a Modelfile that decide how its model is loaded.
//!
//! Read by a library before the model is planned, so that the plan counts with them, and put into the configuration when
//! the model is loaded. Values that cannot work are left out.

use poncho_api::ModelConfig;
use serde_json::{Map, Value};

/// Compute threads that a Modelfile may ask for.
const MOST_THREADS: u32 = 1024;
/// Rows of a batch that a Modelfile may ask for.
const MOST_ROWS: u32 = 1 << 16;

/// A number above zero with 32 bits. Its bits order as the number does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Positive(u32);

impl Positive {
    /// `None` for zero, for less and for what is not finite with 32 bits.
    #[must_use]
    pub fn new(number: f64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "llama.cpp computes positions with 32 bits")]
        let number = number as f32;
        (number > 0.0 && number.is_finite()).then(|| Self(number.to_bits()))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// See the module. `None` leaves a setting as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LoadingParameters {
    /// Tokens of one request (`num_ctx`).
    pub n_ctx: Option<u32>,
    /// Layers on devices (`num_gpu`); `Some(None)` for all of them.
    pub gpu_layers: Option<Option<u32>>,
    /// The device for what is not split (`main_gpu`).
    pub main_gpu: Option<u32>,
    /// Compute threads (`num_thread`).
    pub threads: Option<u32>,
    /// Rows of a batch (`num_batch`).
    pub n_batch: Option<u32>,
    /// Whether the weights are mapped (`use_mmap`).
    pub mmap: Option<bool>,
    /// Whether the weights are locked in memory (`use_mlock`).
    pub mlock: Option<bool>,
    /// The base of the rotary positions (`rope_freq_base`).
    pub rope_freq_base: Option<Positive>,
    /// Their scale (`rope_freq_scale`).
    pub rope_freq_scale: Option<Positive>,
    /// Whether the model may think (`reasoning`).
    pub reasoning: Option<bool>,
    /// The most tokens of its thinking (`reasoning_budget`); `Some(None)` for any number.
    pub reasoning_budget: Option<Option<u32>>,
}

impl LoadingParameters {
    /// Those among the parameters of a Modelfile.
    #[must_use]
    pub fn of(parameters: &Map<String, Value>) -> Self {
        let number = |name: &str| parameters.get(name).and_then(Value::as_i64);
        let count = |name: &str| number(name).and_then(|count| u32::try_from(count).ok());
        let positive = |name: &str, most: u32| count(name).filter(|count| (1..=most).contains(count));
        let switch = |name: &str| parameters.get(name).and_then(Value::as_bool);
        let positive_number = |name: &str| parameters.get(name).and_then(Value::as_f64).and_then(Positive::new);
        Self {
            n_ctx: positive("num_ctx", u32::MAX),
            gpu_layers: number("num_gpu").map(|layers| u32::try_from(layers).ok()),
            main_gpu: count("main_gpu"),
            threads: positive("num_thread", MOST_THREADS),
            n_batch: positive("num_batch", MOST_ROWS),
            mmap: switch("use_mmap"),
            mlock: switch("use_mlock"),
            rope_freq_base: positive_number("rope_freq_base"),
            rope_freq_scale: positive_number("rope_freq_scale"),
            reasoning: switch("reasoning"),
            reasoning_budget: number("reasoning_budget").map(|tokens| u32::try_from(tokens).ok()),
        }
    }

    /// Puts them into a configuration. Doing it twice changes nothing.
    pub fn set(&self, config: &mut ModelConfig) {
        let (model, context) = (&mut config.model, &mut config.context);
        model.gpu_layers = self.gpu_layers.unwrap_or(model.gpu_layers);
        model.main_gpu = self.main_gpu.unwrap_or(model.main_gpu);
        model.mmap = self.mmap.unwrap_or(model.mmap);
        model.mlock = self.mlock.unwrap_or(model.mlock);
        context.threads = self.threads.or(context.threads);
        context.rope_freq_base = self.rope_freq_base.map(Positive::get).or(context.rope_freq_base);
        context.rope_freq_scale = self.rope_freq_scale.map(Positive::get).or(context.rope_freq_scale);
        let reasoning = &mut config.reasoning;
        reasoning.is_off = self.reasoning.map_or(reasoning.is_off, |thinks| !thinks);
        reasoning.budget = self.reasoning_budget.unwrap_or(reasoning.budget);
        if let Some(rows) = self.n_batch.map(|rows| rows.max(context.n_seq_max)) {
            context.n_batch = rows;
            context.n_ubatch = context.n_ubatch.min(rows);
        }
        if let Some(asked) = self.n_ctx {
            // Every request may still use all of its context.
            let shares = context.n_cells.map(|cells| cells.checked_div(context.n_ctx).unwrap_or(context.n_seq_max));
            context.n_cells = shares.map(|shares| asked.saturating_mul(shares.max(1)));
            context.n_ctx = asked;
        }
    }
}

#[cfg(test)]
mod tests {
    use poncho_api::Reasoning;
    use serde_json::json;

    use super::*;

    fn loaded(parameters: &Value) -> ModelConfig {
        let mut config = ModelConfig::new("m", "m");
        LoadingParameters::of(parameters.as_object().unwrap()).set(&mut config);
        config
    }

    #[test]
    fn a_modelfile_decides_how_its_model_is_loaded() {
        let config = loaded(&json!({
            "num_gpu": 7, "main_gpu": 1, "num_thread": 3, "num_batch": 64, "use_mmap": false, "use_mlock": true,
        }));
        assert_eq!((config.model.gpu_layers, config.model.main_gpu), (Some(7), 1));
        assert_eq!((config.model.mmap, config.model.mlock), (false, true));
        assert_eq!((config.context.threads, config.context.n_batch, config.context.n_ubatch), (Some(3), 64, 64));
        assert!(config.context.check().is_ok() && config.model.check().is_ok());
        let long = json!({"rope_freq_base": 1e6, "rope_freq_scale": 0.5, "reasoning": false, "reasoning_budget": 64});
        let config = loaded(&long);
        assert_eq!((config.context.rope_freq_base, config.context.rope_freq_scale), (Some(1e6), Some(0.5)));
        assert_eq!(config.reasoning, Reasoning { is_off: true, budget: Some(64) });
    }

    #[test]
    fn values_that_cannot_work_are_left_out() {
        let usual = ModelConfig::new("m", "m");
        let config = loaded(&json!({"num_gpu": -1, "main_gpu": -2, "num_thread": 0, "num_batch": 99_999_999,
            "num_ctx": 0, "rope_freq_scale": 0.0, "reasoning_budget": -1}));
        assert_eq!((config.model, config.context), (usual.model, usual.context));
        let small = loaded(&json!({"num_batch": 1}));
        assert!(small.context.check().is_ok(), "a batch has a row for every sequence");
    }

    #[test]
    fn every_request_has_the_context_that_a_modelfile_asks_for() {
        let parameters = LoadingParameters { n_ctx: Some(4096), ..LoadingParameters::default() };
        let mut config = ModelConfig::new("m", "m");
        (config.context.n_ctx, config.context.n_seq_max, config.context.n_cells) = (1024, 3, Some(3072));
        for _ in 0..2 {
            parameters.set(&mut config);
            assert_eq!((config.context.n_ctx, config.context.n_cells), (4096, Some(12_288)));
        }
    }
}
