//! What a GGUF file says about its model, read from its header.
//!
//! Called when a file enters the registry, so that listings need not open it again, and to refuse what is no model. The
//! file comes from anywhere: no length in it is trusted, and nothing is allocated by a claimed count.

mod fields;
mod quantization;
mod sniff;

use std::io::{BufRead, BufReader, Seek};
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::files::{self, Links};

use fields::{Fields, Value};
pub(crate) use quantization::is_file_type_name;
pub use sniff::NotGguf;

/// Keys are words with dots between them.
const MOST_KEY_BYTES: u64 = 1 << 16;
/// Dimensions of a tensor in any version of the format so far.
const MOST_DIMENSIONS: u32 = 8;
/// Where tensor data starts, if the file does not say.
const DEFAULT_ALIGNMENT: u64 = 32;

/// What the header of a model says.
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
}

/// Why a file cannot be used as a GGUF file.
#[derive(Debug, Error)]
pub enum GgufError {
    /// It is something else.
    #[error("it is not a GGUF file but {0}")]
    NotGguf(NotGguf),
    /// A version that this release does not know.
    #[error(
        "it is a GGUF file of version {version}, and versions 2 and 3 are known; convert the model again with a current llama.cpp"
    )]
    Version {
        /// What the file says.
        version: u32,
    },
    /// The file is from a machine with the other byte order.
    #[error("it is a big-endian GGUF file; fetch or convert a little-endian one")]
    BigEndian,
    /// It ends before its header or its tensors do.
    #[error("it is cut short: {needed} bytes are needed and it has {bytes}; fetch it again")]
    CutShort {
        /// Bytes that the header asks for.
        needed: u64,
        /// Bytes of the file.
        bytes: u64,
    },
    /// A field that no writer writes.
    #[error("its header is damaged at byte {offset}: {what}; fetch it again")]
    Damaged {
        /// Where.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The file could not be read.
    #[error("it cannot be read: {0}; check the path and its permissions")]
    Io(#[from] std::io::Error),
}

/// Reads the header of a GGUF file.
///
/// # Errors
/// When the file is no whole GGUF file; the message says what it looks like.
pub fn read_facts(path: &Path) -> Result<Facts, GgufError> {
    if path.is_dir() {
        return Err(GgufError::NotGguf(NotGguf::Folder));
    }
    let file = files::open_regular(path, Links::Follow)?;
    let bytes = file.metadata()?.len();
    read(BufReader::with_capacity(1 << 16, file), bytes)
}

fn read(mut reader: impl BufRead + Seek, bytes: u64) -> Result<Facts, GgufError> {
    let start = reader.fill_buf()?;
    if !start.starts_with(b"GGUF") {
        return Err(GgufError::NotGguf(sniff::sniff(start)));
    }
    let mut fields = Fields::new(reader, bytes);
    fields.skip(4)?;
    match fields.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => return Err(GgufError::BigEndian),
        version => return Err(GgufError::Version { version }),
    }
    let tensor_count = fields.u64()?;
    let key_count = fields.u64()?;
    let mut facts = Facts { tensors: tensor_count, ..Facts::default() };
    let mut alignment = DEFAULT_ALIGNMENT;
    // The file's end bounds both loops: every round reads at least one byte or fails.
    for _ in 0..key_count {
        let key = fields.text(MOST_KEY_BYTES)?;
        let value = fields.value()?;
        take_fact(&mut facts, &mut alignment, &key, value);
    }
    let mut end = 0_u64;
    for _ in 0..tensor_count {
        fields.skip_text(MOST_KEY_BYTES)?;
        let (weights, tensor_end) = tensor(&mut fields)?;
        facts.parameters = facts.parameters.saturating_add(weights);
        end = end.max(tensor_end);
    }
    if tensor_count > 0 {
        let data = fields.offset().checked_next_multiple_of(alignment.max(1)).unwrap_or(u64::MAX);
        let needed = data.saturating_add(end);
        if needed > bytes {
            return Err(GgufError::CutShort { needed, bytes });
        }
    }
    Ok(facts)
}

/// One tensor's weights, and where its bytes end after the header, as far as its type is known.
fn tensor(fields: &mut Fields<impl BufRead + Seek>) -> Result<(u64, u64), GgufError> {
    let dimensions = fields.u32()?;
    if dimensions > MOST_DIMENSIONS {
        return Err(GgufError::Damaged { offset: fields.offset(), what: "a tensor has too many dimensions" });
    }
    let mut weights = 1_u64;
    for _ in 0..dimensions {
        weights = weights.saturating_mul(fields.u64()?);
    }
    let kind = fields.u32()?;
    let offset = fields.u64()?;
    let own = quantization::tensor_bytes(kind, weights);
    Ok((weights, offset.saturating_add(own)))
}

fn take_fact(facts: &mut Facts, alignment: &mut u64, key: &str, value: Value) {
    match (key, value) {
        ("general.architecture", Value::Text(text)) => facts.architecture = Some(text),
        ("general.name", Value::Text(text)) => facts.name = Some(text),
        ("general.type", Value::Text(text)) => facts.kind = Some(text),
        ("general.license", Value::Text(text)) => facts.license = Some(text),
        ("general.alignment", Value::Number(number)) => *alignment = number,
        ("general.file_type", Value::Number(number)) => {
            facts.quantization = quantization::file_type_name(number).map(str::to_owned);
        }
        ("tokenizer.chat_template", Value::Text(_) | Value::LongText) => facts.chat_template = true,
        ("split.count", Value::Number(number)) => facts.split_count = number,
        // Their prefix is the architecture, which may be written after them; no file has two.
        (key, Value::Number(number)) if key.ends_with(".context_length") => facts.context_length = Some(number),
        (key, Value::Number(number)) if key.ends_with(".embedding_length") => facts.embedding_length = Some(number),
        (key, Value::Number(number)) if key.ends_with(".block_count") => facts.block_count = Some(number),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
