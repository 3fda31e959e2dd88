//! What the header of a model says about it, for people: listings, `show`, the registry's manifests.
//!
//! Read when a file enters the registry, so that listings need not open it again, and to refuse files that are not
//! models.

use std::io::{Read, Seek};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::GgufError;
use crate::header::Gguf;
use crate::metadata::Keep;
use crate::quantization::file_type_name;
use crate::value::Value;

/// What the header of a model says. Stored in manifests: a field may be added, none renamed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// `general.architecture`, such as `llama`.
    pub architecture: Option<String>,
    /// `general.name`, for people.
    pub name: Option<String>,
    /// `general.type`: `model` if it says nothing, `adapter` for a LoRA adapter.
    pub kind: Option<String>,
    /// `general.license`.
    pub license: Option<String>,
    /// Weights in all tensors.
    pub parameters: u64,
    /// Tensors.
    pub tensors: u64,
    /// The quantisation as llama.cpp spells it, such as `Q4_K_M`.
    pub quantization: Option<String>,
    /// Tokens that the model was trained to read.
    pub context_length: Option<u64>,
    /// Width of the model.
    pub embedding_length: Option<u64>,
    /// Layers.
    pub block_count: Option<u64>,
    /// Whether the file carries a chat template.
    pub chat_template: bool,
    /// Files that the model is split over; 0 or 1 for one file.
    pub split_count: u64,
}

impl Facts {
    /// Whether the file is a LoRA adapter and not a model.
    #[must_use]
    pub fn is_adapter(&self) -> bool {
        self.kind.as_deref() == Some("adapter")
    }

    /// Reads the facts of a file and checks that all tensors are present.
    ///
    /// # Errors
    /// As [`read_facts`].
    pub fn read(reader: impl Read + Seek) -> Result<Self, GgufError> {
        Self::of(&Gguf::read(reader, &Keep::FACTS)?)
    }

    fn of(header: &Gguf) -> Result<Self, GgufError> {
        header.check_complete()?;
        let weights = header.tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.weights()));
        let tensors = u64::try_from(header.tensors.len()).unwrap_or(u64::MAX);
        let mut facts = Self { parameters: weights, tensors, ..Self::default() };
        for (key, value) in header.metadata.iter() {
            facts.take(key, value);
        }
        Ok(facts)
    }

    fn take(&mut self, key: &str, value: &Value) {
        let text = || value.as_text().map(|text| text.lossy().into_owned());
        match key {
            "general.architecture" => self.architecture = text(),
            "general.name" => self.name = text(),
            "general.type" => self.kind = text(),
            "general.license" => self.license = text(),
            "general.file_type" => self.quantization = value.as_unsigned().and_then(file_type_name),
            "tokenizer.chat_template" => self.chat_template = matches!(value, Value::Text(_) | Value::LongText(_)),
            "split.count" => self.split_count = value.as_unsigned().unwrap_or(0),
            _ => self.take_own(key, value),
        }
    }

    /// Keys that begin with the architecture, which may be written after them; no file has two.
    fn take_own(&mut self, key: &str, value: &Value) {
        let Some(number) = value.as_unsigned() else { return };
        if key.ends_with(".context_length") {
            self.context_length = Some(number);
        } else if key.ends_with(".embedding_length") {
            self.embedding_length = Some(number);
        } else if key.ends_with(".block_count") {
            self.block_count = Some(number);
        }
    }
}

/// Reads the facts of a GGUF file.
///
/// # Errors
/// When the file is not a whole GGUF file; the message says what it looks like.
pub fn read_facts(path: &Path) -> Result<Facts, GgufError> {
    Facts::of(&Gguf::open(path, &Keep::FACTS)?)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::sample::{Sample, tensor};

    fn sample() -> Vec<u8> {
        let mut sample = Sample::default();
        sample.set("general.architecture", Value::Text("llama".into()));
        sample.set("general.name", Value::Text("Tiny".into()));
        sample.set("general.file_type", Value::U32(15));
        sample.set("llama.context_length", Value::U32(2048));
        sample.set("llama.block_count", Value::U64(2));
        sample.set("llama.rope.freq_base", Value::F32(1e4));
        sample.set("tokenizer.chat_template", Value::Text("x".repeat(9000).as_str().into()));
        sample.tensors = vec![tensor("a", &[8, 8], 1, 0), tensor("b", &[8, 8], 1, 128)];
        sample.to_bytes(256)
    }

    fn facts(bytes: &[u8]) -> Result<Facts, GgufError> {
        Facts::read(Cursor::new(bytes))
    }

    #[test]
    fn facts_are_those_of_the_header() {
        let facts = facts(&sample()).unwrap();
        assert_eq!(facts.architecture.as_deref(), Some("llama"));
        assert_eq!((facts.name.as_deref(), facts.quantization.as_deref()), (Some("Tiny"), Some("Q4_K_M")));
        assert_eq!((facts.parameters, facts.tensors, facts.context_length), (128, 2, Some(2048)));
        assert_eq!((facts.block_count, facts.chat_template, facts.is_adapter()), (Some(2), true, false));
    }

    #[test]
    fn a_file_that_ends_anywhere_too_early_is_refused() {
        let whole = sample();
        for length in 0..whole.len() {
            let refused = facts(&whole[..length]).unwrap_err();
            match length {
                0..4 => assert!(matches!(refused, GgufError::NotGguf(_)), "{length}: {refused}"),
                _ => assert!(matches!(refused, GgufError::CutShort { .. }), "{length}: {refused}"),
            }
        }
        assert!(facts(&[whole, vec![0; 99]].concat()).is_ok(), "bytes after the tensors do no harm");
    }

    #[test]
    fn facts_keep_their_form_in_manifests() {
        let json = serde_json::to_value(facts(&sample()).unwrap()).unwrap();
        let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "architecture",
            "block_count",
            "chat_template",
            "context_length",
            "embedding_length",
            "kind",
            "license",
            "name",
            "parameters",
            "quantization",
            "split_count",
            "tensors",
        ];
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
    }
}
