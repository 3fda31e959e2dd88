//! What the cache does over HTTP, for whom, and with a disk that stalls.

pub(crate) mod cache_api;
pub(crate) mod explaining;
pub(crate) mod owners;
pub(crate) mod single_rows;
pub(crate) mod stalled;
pub(crate) mod stalled_disk;
pub(crate) mod tenants;
