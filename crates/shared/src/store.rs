//! A store for commands: measured, listed and collected, without a running tier.
//!
//! Used by `poncho doctor --shared` and by `ls`, `gc` and `explain` of `poncho cache`. Its calls block.

mod prefixes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use object_store::ObjectStore;
use tokio::runtime::{Builder, Runtime};

use crate::content::manifest;
use crate::content::names::{self, Named};
use crate::content::tenant::ClusterSecret;
use crate::error::SharedError;
use crate::measure::{self, Measurement};
use crate::objects::access::{Objects, Trouble};
use crate::objects::location::Location;
use crate::quota::collect::{Collection, Limit, ReadBefore, collect, foresee};
use crate::settings::Settings;

pub use prefixes::StoredPrefix;

/// Manifests that are read at once.
const PARALLEL: usize = 16;

/// What a store holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The address without credentials.
    pub location: String,
    /// By tenant.
    pub tenants: Vec<TenantListing>,
    /// Bytes of everything, the cluster's own objects included.
    pub bytes: u64,
}

/// What a store holds of one tenant. Tenants have keyed names: who one is, its machine alone can compute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantListing {
    /// Its name in the store.
    pub tenant: String,
    /// Its rows, most recently used first.
    pub rows: Vec<RowListing>,
    /// Segments.
    pub segments: u64,
    /// Bytes of segments and manifests.
    pub bytes: u64,
}

/// One row of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowListing {
    /// The last part of its name: a keyed hash.
    pub name: String,
    /// The state is the one after this many tokens. `None`: the manifest is unreadable.
    pub tokens: Option<u32>,
    /// Rows of its chain.
    pub rows: u32,
    /// Bytes of its chain, as stored; other chains may share them.
    pub bytes: u64,
    /// When it was written or refreshed.
    pub last_used: SystemTime,
}

/// See the module.
#[derive(Debug)]
pub struct SharedStore {
    objects: Objects,
    secret: ClusterSecret,
    quota: Option<u64>,
    runtime: Runtime,
}

impl SharedStore {
    /// Opens the store of the settings. Sends no request.
    ///
    /// # Errors
    /// The address, the credentials or the key file cannot be used.
    pub fn open(settings: &Settings) -> Result<Self, SharedError> {
        Self::with_location(settings, Location::open(settings)?)
    }

    /// Opens a store that the caller made.
    ///
    /// # Errors
    /// The key file cannot be used.
    pub fn with_store(settings: &Settings, store: Arc<dyn ObjectStore>) -> Result<Self, SharedError> {
        Self::with_location(settings, Location::given(settings, store))
    }

    fn with_location(settings: &Settings, location: Location) -> Result<Self, SharedError> {
        let secret = ClusterSecret::open(settings.key_file.as_deref())?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| SharedError::Threads { detail: error.to_string() })?;
        let objects = Objects::new(location, settings.timing);
        Ok(Self { objects, secret, quota: settings.quota, runtime })
    }

    /// The address without credentials.
    #[must_use]
    pub fn location(&self) -> &str {
        self.objects.name()
    }

    /// Measures the store with some tens of megabytes, and removes them.
    ///
    /// # Errors
    /// The store does not answer, refuses, or returns wrong bytes.
    pub fn measure(&self) -> Result<Measurement, SharedError> {
        let measured = self.runtime.block_on(measure::measure(&self.objects));
        measured.map_err(self.objects.error("measure the store"))
    }

    /// Everything that the store holds.
    ///
    /// # Errors
    /// The store does not answer or refuses.
    pub fn list(&self) -> Result<Listing, SharedError> {
        self.runtime.block_on(list(&self.objects)).map_err(self.objects.error("list the objects"))
    }

    /// What [`SharedStore::collect`] would do at this moment. Writes nothing.
    ///
    /// # Errors
    /// The store does not answer or refuses.
    pub fn foresee(&self) -> Result<Collection, SharedError> {
        self.runtime.block_on(foresee(&self.objects, Limit { quota: self.quota, wanted: 0 }))
    }

    /// Removes segments that no row needs, and the oldest rows of a store above its quota.
    ///
    /// # Errors
    /// Another machine collects, or the store fails.
    pub fn collect(&self) -> Result<Collection, SharedError> {
        let limit = Limit { quota: self.quota, wanted: 0 };
        self.runtime.block_on(collect(&self.objects, limit, &mut ReadBefore::default()))
    }
}

async fn list(objects: &Objects) -> Result<Listing, Trouble> {
    let all = objects.list(&names::root()).await?;
    let mut listing = Listing { location: objects.name().to_owned(), ..Listing::default() };
    let mut tenants: BTreeMap<String, TenantListing> = BTreeMap::new();
    let mut manifests = Vec::new();
    for meta in all {
        listing.bytes += meta.size;
        match names::classify(&meta.location) {
            Some(Named::Segment { tenant, .. }) => {
                let entry = tenants.entry(tenant).or_default();
                entry.segments += 1;
                entry.bytes += meta.size;
            }
            Some(Named::Row { tenant }) => {
                tenants.entry(tenant.clone()).or_default().bytes += meta.size;
                manifests.push((tenant, meta));
            }
            Some(Named::Cluster) | None => {}
        }
    }
    let read = |(tenant, meta): (String, object_store::ObjectMeta)| async move {
        let head = match objects.get(&meta.location, manifest::MOST_BYTES).await {
            Ok(object) => manifest::head(&object.bytes),
            Err(Trouble::Missing) => return None,
            Err(_) => None,
        };
        let millis = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
        let row = RowListing {
            name: meta.location.filename().unwrap_or_default().to_owned(),
            tokens: head.as_ref().map(|head| head.tokens),
            rows: head.as_ref().map_or(0, |head| head.rows),
            bytes: head
                .map_or(0, |head| head.segments.iter().map(|segment| segment.length).fold(0, u64::saturating_add)),
            last_used: SystemTime::UNIX_EPOCH + Duration::from_millis(millis),
        };
        Some((tenant, row))
    };
    let rows: Vec<_> = stream::iter(manifests).map(read).buffer_unordered(PARALLEL).collect().await;
    for (tenant, row) in rows.into_iter().flatten() {
        tenants.entry(tenant).or_default().rows.push(row);
    }
    for (name, mut tenant) in tenants {
        tenant.rows.sort_by(|one, other| other.last_used.cmp(&one.last_used).then_with(|| one.name.cmp(&other.name)));
        listing.tenants.push(TenantListing { tenant: name, ..tenant });
    }
    Ok(listing)
}
