//! Builds the metadata and the tensors of a model; one file for each memory kind.
//!
//! `build` is called by the write functions of the crate and by the fixtures. `builder` has the parts that all kinds
//! share.

mod attention;
mod builder;
mod hybrid;
mod position_table;
mod recurrent;
mod window;

use std::io;

use crate::gguf::{Gguf, Value};
use crate::spec::{ModelKind, ModelSpec};
use crate::weights::Weights;
use builder::Builder;

pub(crate) use attention::heads as attention_heads;

/// The whole model that `spec` describes.
pub(crate) fn build(spec: &ModelSpec) -> io::Result<Gguf> {
    let mut builder = begin(spec)?;
    match spec.kind {
        ModelKind::Attention => attention::build(&mut builder),
        ModelKind::Window => window::build(&mut builder),
        ModelKind::Recurrent => recurrent::build(&mut builder),
        ModelKind::Hybrid => hybrid::build(&mut builder),
    }
    Ok(builder.gguf)
}

/// A model that looks its positions up in a table. The sizes are those of an attention model.
pub(crate) fn build_with_position_table(spec: &ModelSpec) -> io::Result<Gguf> {
    let mut builder = begin(spec)?;
    position_table::build(&mut builder);
    let mut gguf = builder.gguf;
    let own = format!("{}.", spec.kind.architecture());
    for (key, value) in &mut gguf.metadata {
        if let Some(rest) = key.strip_prefix(&own) {
            *key = format!("{}.{rest}", position_table::ARCHITECTURE);
        } else if key == "general.architecture" {
            *value = Value::Text(position_table::ARCHITECTURE.to_owned());
        }
    }
    Ok(gguf)
}

fn begin(spec: &ModelSpec) -> io::Result<Builder<'_>> {
    spec.check()?;
    let weights = Weights { seed: spec.seed, matrix_type: spec.weight_type };
    let mut builder = Builder { spec, gguf: Gguf::default(), weights };
    builder.general_keys();
    Ok(builder)
}
