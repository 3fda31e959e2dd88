//! Builds the metadata and the tensors of a model; one file for each memory kind.
//!
//! `build` is called by the write functions of the crate and by the fixtures. `builder` has the parts that all kinds
//! share.

mod attention;
mod builder;
mod hybrid;
mod recurrent;
mod window;

use std::io;

use crate::gguf::Gguf;
use crate::spec::{ModelKind, ModelSpec};
use crate::weights::Weights;
use builder::Builder;

pub(crate) use attention::heads as attention_heads;

/// The whole model that `spec` describes.
pub(crate) fn build(spec: &ModelSpec) -> io::Result<Gguf> {
    spec.check()?;
    let mut builder =
        Builder { spec, gguf: Gguf::default(), weights: Weights { seed: spec.seed, matrix_type: spec.weight_type } };
    builder.general_keys();
    match spec.kind {
        ModelKind::Attention => attention::build(&mut builder),
        ModelKind::Window => window::build(&mut builder),
        ModelKind::Recurrent => recurrent::build(&mut builder),
        ModelKind::Hybrid => hybrid::build(&mut builder),
    }
    Ok(builder.gguf)
}
