//! Which rows of a store begin some tokens, whatever model they were computed with.
//!
//! Used by `poncho cache explain`. Names in a store are hashes, so a row is recognised by making its name again: the
//! manifest has the number of tokens and the namespace, and the tokens have the key. Reads every manifest of one tenant.

use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use object_store::ObjectMeta;
use poncho_cache::{Key, NO_TENANT, Namespace};

use super::{PARALLEL, SharedStore};
use crate::content::manifest::{self, Manifest};
use crate::content::names;
use crate::content::tenant::Tenant;
use crate::error::SharedError;
use crate::objects::access::{Objects, Trouble};

/// A row of a store that begins the tokens that were asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPrefix {
    /// What its state depends on besides the tokens.
    pub namespace: Namespace,
    /// Its name.
    pub key: Key,
    /// The state is the one after this many tokens.
    pub tokens: u32,
    /// Rows of its chain.
    pub rows: u32,
    /// Bytes of its chain.
    pub bytes: u64,
    /// When it was written or refreshed.
    pub last_used: SystemTime,
}

impl SharedStore {
    /// The rows of callers without a key of their own that begin these tokens, longest first.
    ///
    /// # Errors
    /// The store does not answer or refuses.
    pub fn prefixes(&self, tokens: &[u32]) -> Result<Vec<StoredPrefix>, SharedError> {
        let tenant = self.secret.tenant(NO_TENANT);
        let found = self.runtime.block_on(prefixes(&self.objects, &tenant, tokens));
        found.map_err(self.objects.error("read the rows"))
    }
}

async fn prefixes(objects: &Objects, tenant: &Tenant, tokens: &[u32]) -> Result<Vec<StoredPrefix>, Trouble> {
    let listed = objects.list(&names::rows_of(tenant.name())).await?;
    let read = |meta: ObjectMeta| async move {
        match objects.get(&meta.location, manifest::MOST_BYTES).await {
            Ok(object) => Ok(matching(tenant, tokens, &meta, &object.bytes)),
            Err(Trouble::Missing | Trouble::TooLarge) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    };
    let mut answers = stream::iter(listed).map(read).buffer_unordered(PARALLEL);
    let mut found = Vec::new();
    while let Some(answer) = answers.next().await {
        found.extend(answer?);
    }
    found.sort_by_key(|row: &StoredPrefix| (std::cmp::Reverse(row.tokens), row.key));
    Ok(found)
}

/// The row of a manifest, if it begins the tokens and lies under the name that they give it.
fn matching(tenant: &Tenant, tokens: &[u32], meta: &ObjectMeta, bytes: &[u8]) -> Option<StoredPrefix> {
    let (namespace, length) = manifest::subject(bytes, tenant)?;
    let key = namespace.key(tokens.get(..usize::try_from(length).ok()?)?);
    if tenant.row_path(&namespace, &key) != meta.location {
        return None;
    }
    let manifest = Manifest::open(bytes, tenant, &namespace, &key, meta.location.as_ref()).ok()?;
    let millis = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
    Some(StoredPrefix {
        namespace,
        key,
        tokens: manifest.tokens(),
        rows: u32::try_from(manifest.rows.len()).unwrap_or(u32::MAX),
        bytes: manifest.bytes(),
        last_used: SystemTime::UNIX_EPOCH + Duration::from_millis(millis),
    })
}
