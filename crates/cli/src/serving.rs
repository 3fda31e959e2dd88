//! A server in this process: which models it has, how they are set up and probed, how it ends.
//!
//! Used by `poncho serve` and by the commands that start a server of their own. It must never print.

pub(crate) mod draining;
pub(crate) mod model_file;
pub(crate) mod probing;
pub(crate) mod served_models;
