//! Segments that no manifest names: announced first, removed a grace period later.
//!
//! Collection writes the list, uploads read it. An upload that finds its segment in the store must not rely on one that
//! is about to go: it writes a condemned segment again, and collection spares segments that were written after they were
//! condemned. An upload that read the list before a segment was on it has its manifest in place within half the grace
//! period, and the next collection sees that.

use std::collections::BTreeMap;

use bytes::Bytes;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use crate::content::names;
use crate::objects::access::{Objects, Trouble, Write};

const MOST_BYTES: u64 = 256 << 20;

/// See the module. Times are the store's, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Condemned {
    since: BTreeMap<String, i64>,
}

impl Condemned {
    pub(crate) async fn read(objects: &Objects) -> Result<Self, Trouble> {
        match objects.get(&names::cluster("condemned"), MOST_BYTES).await {
            Ok(object) => Ok(serde_json::from_slice(&object.bytes).unwrap_or_default()),
            Err(Trouble::Missing) => Ok(Self::default()),
            Err(trouble) => Err(trouble),
        }
    }

    pub(crate) async fn write(&self, objects: &Objects) -> Result<(), Trouble> {
        let bytes = Bytes::from(serde_json::to_vec(self).unwrap_or_default());
        objects.put(&names::cluster("condemned"), bytes, Write::Replace).await
    }

    pub(crate) fn contains(&self, path: &Path) -> bool {
        self.since.contains_key(path.as_ref())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    pub(crate) fn add(&mut self, path: &Path, since: i64) {
        self.since.insert(path.to_string(), since);
    }

    /// When a segment was condemned, if it was not written again since.
    pub(crate) fn since(&self, path: &Path, last_modified: i64) -> Option<i64> {
        self.since.get(path.as_ref()).copied().filter(|since| last_modified < *since)
    }
}
