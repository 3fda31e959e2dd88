//! How a model is loaded: its configuration, the options of model and context, markers, and a trial before the load.

pub(crate) mod config;
pub(crate) mod markers;
pub(crate) mod options;
pub(crate) mod prober;
pub(crate) mod reasoning;
