//! The reader of GGUF model files.
//!
//! Every crate that looks into a model file does it here: the registry when a file is imported, the cache when it
//! identifies a model, the engine before llama.cpp opens a file, the server and the command line when they describe
//! one. A file may come from anywhere. No length in it is trusted, nothing is allocated by a count that it states, and
//! the work and the memory that a header can cause are bounded (see [`limits`]).
//!
//! - [`Gguf`] is the header of a file: metadata and tensor table. [`Keep`] says how much of the metadata stays in memory.
//! - [`Facts`] and [`GgufIdentity`] are the two summaries that are stored: in manifests and in fingerprints.
//! - [`QuantType`], [`file_type_name`] and [`TensorType`] name quantisations.
//! - [`NotGguf`] says what a file is if it is not a GGUF file.
//! - [`mod@file`] opens regular files without blocking, and detects that a file has changed.
//!
//! This crate knows neither llama.cpp nor async code. The values that llama.cpp cannot take are the engine's concern.

mod cursor;
mod error;
mod facts;
pub mod file;
mod header;
mod identity;
pub mod limits;
mod metadata;
mod not_gguf;
mod quantization;
#[cfg(test)]
mod sample;
mod tensors;
mod value;

pub use error::{Damage, GgufError};
pub use facts::{Facts, read_facts};
pub use header::Gguf;
pub use identity::GgufIdentity;
pub use metadata::{Keep, Metadata};
pub use not_gguf::NotGguf;
pub use quantization::{QuantType, file_type_name, is_file_type_name};
pub use tensors::{Tensor, TensorType};
pub use value::{Array, Kind, Text, Value};
