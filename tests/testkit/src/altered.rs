//! Generated models with single values changed: files that are whole and say something impossible.
//!
//! Tests of what a loader must refuse make them. Nothing is checked here: that is what they are for.

use std::fs;
use std::io;
use std::path::Path;

use crate::gguf::{Gguf, TensorType, Value};
use crate::models;
use crate::spec::ModelSpec;

/// A generated model; its keys and tensors can be changed before it is written.
#[derive(Clone, Debug)]
pub struct AlteredModel(Gguf);

impl AlteredModel {
    /// The model of a spec, as it is.
    pub fn of(spec: &ModelSpec) -> io::Result<Self> {
        models::build(spec).map(Self)
    }

    /// A model with the sizes of an attention model that looks its positions up in a table, as long as its context.
    pub fn with_position_table(spec: &ModelSpec) -> io::Result<Self> {
        models::build_with_position_table(spec).map(Self)
    }

    /// Every key with its value.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The names of the tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        self.0.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    /// Gives a key a value, whether or not it was there.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        match self.0.metadata.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.0.set(key, value),
        }
        self
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.0.metadata.retain(|(name, _)| name != key);
        self
    }

    /// Takes all tensors away, so that only the header is left.
    pub fn without_tensors(&mut self) -> &mut Self {
        self.0.tensors.clear();
        self
    }

    /// Says that the bytes of a tensor have another type of the same size.
    pub fn set_tensor_type(&mut self, name: &str, kind: TensorType) -> &mut Self {
        self.0.tensors.iter_mut().filter(|tensor| tensor.name == name).for_each(|tensor| tensor.kind = kind);
        self
    }

    /// Gives a tensor another shape and zeros as its data.
    pub fn set_shape(&mut self, name: &str, shape: &[u32]) -> &mut Self {
        for tensor in self.0.tensors.iter_mut().filter(|tensor| tensor.name == name) {
            let count = shape.iter().map(|length| *length as usize).product();
            tensor.shape = shape.to_vec();
            tensor.data = vec![0; tensor.kind.bytes(count)];
        }
        self
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        fs::write(path, self.to_bytes())
    }
}
