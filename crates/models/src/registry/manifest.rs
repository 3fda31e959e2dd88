//! A manifest: the JSON file that gives a model its name and says which files it is made of.
//!
//! Written and read by the registry. A manifest of a newer format is left alone and reported, never rewritten; one that
//! does not parse is reported too.

use std::time::{SystemTime, UNIX_EPOCH};

use poncho_gguf::Facts;
use serde::{Deserialize, Serialize};

use crate::modelfile::{Message, Parameters};
use crate::name::ModelName;

use super::blobs::Blob;

/// The version that this release writes, and the newest it reads.
pub(crate) const FORMAT: u32 = 1;

/// Bytes of a manifest; licences and templates are long, but not that long.
pub(crate) const MOST_BYTES: u64 = 16 << 20;

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format.
    pub format: u32,
    /// The model's name, as its file is called too.
    pub name: ModelName,
    /// When the name was made, in seconds since 1970.
    pub created: u64,
    /// Where the model came from.
    pub source: Source,
    /// The model's file.
    pub model: Blob,
    /// LoRA adapters that are applied to it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<Blob>,
    /// Defaults for requests.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub parameters: Parameters,
    /// The system prompt of conversations that bring none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The template in place of the one in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Messages that stand before every conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Licences, as texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub license: Vec<String>,
    /// What the header of the model's file says.
    pub facts: Facts,
}

/// Where a model came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Of which kind the source is.
    pub kind: SourceKind,
    /// A path, an address, a hub reference, a package or the name of another model.
    pub reference: String,
}

/// The kinds of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A file of this machine.
    File,
    /// An address.
    Url,
    /// A repository of the hub.
    Hub,
    /// A Python package.
    Package,
    /// Another model of the registry, through a Modelfile.
    Model,
}

impl Manifest {
    /// A manifest with a file and its source, and nothing else.
    pub(crate) fn new(name: &ModelName, source: Source, model: Blob, facts: Facts) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            format: FORMAT,
            name: name.clone(),
            created,
            source,
            model,
            adapters: Vec::new(),
            parameters: Parameters::default(),
            system: None,
            template: None,
            messages: Vec::new(),
            license: Vec::new(),
            facts,
        }
    }

    /// The files that it needs.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Blob> {
        std::iter::once(&self.model).chain(&self.adapters)
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blobs().fold(0, |sum, blob| sum.saturating_add(blob.bytes))
    }

    /// Parses the manifest of the model `name`; the error describes what is wrong with it.
    pub(crate) fn parse(bytes: &[u8], name: &ModelName) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version =
            serde_json::from_slice(bytes).map_err(|error| format!("it is not a manifest: {error}"))?;
        if version.format != FORMAT {
            return Err(format!("it has format {}, and this release knows {FORMAT}", version.format));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| format!("it is not a manifest: {error}"))?;
        if manifest.name != *name {
            return Err(format!("it says that it belongs to {}", manifest.name));
        }
        Ok(manifest)
    }
}
