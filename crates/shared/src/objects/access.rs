//! Requests to the store, each with a time limit, and what can come back.
//!
//! Used by transfers, collection, the probe and the list. It must never wait longer than its limits, and never hand on
//! more bytes than were asked for.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use tokio::time::timeout;

use super::location::Location;
use crate::error::SharedError;
use crate::settings::Timing;

/// Why a request gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// There is no such object.
    #[error("no such object")]
    Missing,
    /// The condition of a conditional write does not hold.
    #[error("the object exists or has changed")]
    Conflict,
    /// The store cannot do this.
    #[error("the store does not support this request")]
    Unsupported,
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The object is larger than anything we wrote.
    #[error("the object is too large")]
    TooLarge,
    /// Anything else, without credentials.
    #[error("{0}")]
    Failed(String),
}

impl From<object_store::Error> for Trouble {
    fn from(error: object_store::Error) -> Self {
        use object_store::Error;
        match error {
            Error::NotFound { .. } => Self::Missing,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Self::Conflict,
            Error::NotImplemented { .. } | Error::NotSupported { .. } => Self::Unsupported,
            other => Self::Failed(described(&other)),
        }
    }
}

/// The text of an error: short, and without the queries of addresses, which may carry signatures.
fn described(error: &dyn std::error::Error) -> String {
    const MOST: usize = 300;
    let mut text = String::new();
    let mut in_query = false;
    for character in error.to_string().chars() {
        match character {
            '?' => in_query = true,
            ' ' | '"' | '\'' | ')' | '\n' => in_query = false,
            _ => {}
        }
        if !in_query && text.len() < MOST {
            text.push(if character.is_control() { ' ' } else { character });
        }
    }
    text
}

/// An object with what the store knows of it.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) meta: ObjectMeta,
}

/// How a write treats an object that exists.
#[derive(Debug, Clone)]
pub(crate) enum Write {
    Replace,
    Create,
    IfUnchanged(ObjectMeta),
}

impl Write {
    fn mode(self) -> PutMode {
        match self {
            Self::Replace => PutMode::Overwrite,
            Self::Create => PutMode::Create,
            Self::IfUnchanged(meta) => PutMode::Update(UpdateVersion { e_tag: meta.e_tag, version: meta.version }),
        }
    }
}

/// A store with its time limits.
#[derive(Debug, Clone)]
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    name: Arc<str>,
    folder: Option<PathBuf>,
    timing: Timing,
}

impl Objects {
    pub(crate) fn new(location: Location, timing: Timing) -> Self {
        let Location { store, name, folder } = location;
        Self { store, name: name.into(), folder, timing }
    }

    /// The address without credentials.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The folder, if the store is one.
    pub(crate) fn folder(&self) -> Option<&std::path::Path> {
        self.folder.as_deref()
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// A small object, whole.
    pub(crate) async fn get(&self, path: &Path, most: u64) -> Result<Object, Trouble> {
        let read = async {
            let found = self.store.get(path).await?;
            if found.meta.size > most {
                return Err(Trouble::TooLarge);
            }
            let meta = found.meta.clone();
            Ok(Object { bytes: found.bytes().await?, meta })
        };
        self.limited(self.timing.request, read).await
    }

    /// A range of an object. Shorter than asked for if the object is.
    pub(crate) async fn part(&self, path: &Path, range: Range<u64>) -> Result<Bytes, Trouble> {
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let read = async { Ok(self.store.get_opts(path, options).await?.bytes().await?) };
        self.limited(self.timing.transfer, read).await
    }

    /// The same into memory that is there, as far as it has room. `seen` is shown each chunk as it comes.
    pub(crate) async fn read_part(
        &self,
        path: &Path,
        range: Range<u64>,
        room: &mut BytesMut,
        mut seen: impl FnMut(&[u8]),
    ) -> Result<(), Trouble> {
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let read = async {
            let mut chunks = self.store.get_opts(path, options).await?.into_stream();
            while let Some(chunk) = chunks.try_next().await? {
                if chunk.len() > room.capacity() - room.len() {
                    return Err(Trouble::TooLarge);
                }
                room.extend_from_slice(&chunk);
                seen(&chunk);
            }
            Ok(())
        };
        self.limited(self.timing.transfer, read).await
    }

    pub(crate) async fn head(&self, path: &Path) -> Result<ObjectMeta, Trouble> {
        self.limited(self.timing.request, async { Ok(self.store.head(path).await?) }).await
    }

    pub(crate) async fn put(&self, path: &Path, bytes: Bytes, write: Write) -> Result<(), Trouble> {
        let limit = if bytes.len() > 1 << 20 { self.timing.transfer } else { self.timing.request };
        let options = PutOptions::from(write.mode());
        let write = async { Ok(self.store.put_opts(path, PutPayload::from(bytes), options).await?) };
        self.limited(limit, write).await.map(|_| ())
    }

    pub(crate) async fn delete(&self, path: &Path) -> Result<(), Trouble> {
        match self.limited(self.timing.request, async { Ok(self.store.delete(path).await?) }).await {
            Ok(()) | Err(Trouble::Missing) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// All objects under a name. No overall limit, because a store may have many; each page has the client's limit.
    pub(crate) async fn list(&self, prefix: &Path) -> Result<Vec<ObjectMeta>, Trouble> {
        Ok(self.store.list(Some(prefix)).try_collect().await?)
    }

    async fn limited<T>(
        &self,
        limit: Duration,
        request: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        timeout(limit, request).await.unwrap_or(Err(Trouble::Late(limit)))
    }

    pub(crate) fn error(&self, action: &'static str) -> impl Fn(Trouble) -> SharedError {
        let location = self.name.to_string();
        move |trouble| SharedError::Store { action, location: location.clone(), detail: trouble.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_no_query_and_is_short() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Text(String);
        let text = described(&Text("GET https://host/x?sig=abc123 failed\nbadly".to_owned()));
        assert_eq!(text, "GET https://host/x failed badly");
        assert!(described(&Text("x".repeat(9000))).len() <= 300);
    }
}
