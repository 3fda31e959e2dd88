//! Which models are there, which are in memory, and where they come from.

pub(crate) mod defaults;
pub(crate) mod keep_alive;
pub(crate) mod library;
pub(crate) mod manager;
pub(crate) mod names;
pub(crate) mod pulls;
pub(crate) mod registry_library;
pub(crate) mod served;
