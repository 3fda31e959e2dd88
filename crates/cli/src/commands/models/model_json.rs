//! A model as `list`, `show` and `pull` print it in JSON: the manifest, and where the files are.
//!
//! The fields are documented in docs/models.md; scripts read them.

use std::path::Path;

use poncho_models::{Installed, Manifest};
use poncho_terminal::iso;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct ModelJson<'a> {
    /// The name with its tag.
    name: String,
    /// Bytes of all its files.
    bytes: u64,
    created_at: String,
    path: &'a Path,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    adapter_paths: Vec<&'a Path>,
    manifest: &'a Manifest,
}

impl<'a> From<&'a Installed> for ModelJson<'a> {
    fn from(installed: &'a Installed) -> Self {
        Self {
            name: installed.name.to_string(),
            bytes: installed.manifest.bytes(),
            created_at: iso(installed.manifest.created),
            path: &installed.model,
            adapter_paths: installed.adapters.iter().map(AsRef::as_ref).collect(),
            manifest: &installed.manifest,
        }
    }
}
