//! The objects in a store: their names, their bytes, and the checks before anything is believed.
//!
//! Used by uploads, fetches and collection. Pure: nothing in this folder talks to a store.

pub(crate) mod manifest;
pub(crate) mod names;
pub(crate) mod segments;
pub(crate) mod tenant;
