//! Builds a LoRA adapter for the attention model: low-rank changes of the query and value projections of every block.
//!
//! Called by `write_adapter` and by the fixtures. It reads only the sizes of the model's spec, never its weights: an
//! adapter fits every seed of a model.

use std::io;

use crate::gguf::{Gguf, Value};
use crate::models::attention_heads;
use crate::spec::{AdapterSpec, ModelKind, ModelSpec, refused};
use crate::weights::Weights;

/// The adapter that `adapter` describes, with the shapes of `model`.
pub(crate) fn build(model: &ModelSpec, adapter: &AdapterSpec) -> io::Result<Gguf> {
    model.check()?;
    if model.kind != ModelKind::Attention {
        return Err(refused(format!("no adapter for a {} model; use ModelKind::Attention", model.kind.name())));
    }
    if adapter.rank == 0 || adapter.alpha == 0.0 {
        return Err(refused(format!(
            "rank {} and alpha {} would leave the model as it is; try AdapterSpec::tiny()",
            adapter.rank, adapter.alpha
        )));
    }
    let mut gguf = Gguf::default();
    gguf.set_text("general.architecture", model.kind.architecture());
    gguf.set_text("general.type", "adapter");
    gguf.set_text("general.name", "poncho tiny adapter");
    gguf.set_text("adapter.type", "lora");
    gguf.set("adapter.lora.alpha", Value::F32(adapter.alpha));

    let heads = attention_heads(model);
    let weights = Weights { seed: adapter.seed, matrix_type: model.weight_type };
    for layer in 0..model.n_layers {
        for (part, outputs) in [("attn_q", heads.queries * heads.size), ("attn_v", heads.keys * heads.size)] {
            let name = format!("blk.{layer}.{part}.weight");
            gguf.add(weights.matrix(format!("{name}.lora_a"), model.width, adapter.rank, 1.0));
            gguf.add(weights.matrix(format!("{name}.lora_b"), adapter.rank, outputs, 1.0));
        }
    }
    Ok(gguf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_halves_of_each_pair_fit_the_model_and_each_other() {
        let spec = ModelSpec::tiny(ModelKind::Attention);
        let model = crate::models::build(&spec).unwrap();
        let adapter = build(&spec, &AdapterSpec::tiny()).unwrap();
        assert_eq!(adapter.tensors.len(), 16);
        for pair in adapter.tensors.chunks(2) {
            let target = pair[0].name.strip_suffix(".lora_a").unwrap();
            assert_eq!(pair[1].name, format!("{target}.lora_b"));
            let target = model.tensors.iter().find(|tensor| tensor.name == target).unwrap();
            assert_eq!(pair[0].shape, [target.shape[0], 4]);
            assert_eq!(pair[1].shape, [4, target.shape[1]]);
        }
    }

    #[test]
    fn adapters_that_could_do_nothing_are_refused() {
        let attention = ModelSpec::tiny(ModelKind::Attention);
        assert!(build(&ModelSpec::tiny(ModelKind::Hybrid), &AdapterSpec::tiny()).is_err());
        assert!(build(&attention, &AdapterSpec { rank: 0, ..AdapterSpec::tiny() }).is_err());
        assert!(build(&attention, &AdapterSpec { alpha: 0.0, ..AdapterSpec::tiny() }).is_err());
    }
}
