//! Which models are there, which are in memory, and where they come from.

pub(crate) mod defaults;
pub(crate) mod manager;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod pulls;
pub(crate) mod registry_library;
pub(crate) mod served;
pub(crate) mod tags;
pub(crate) mod template;
