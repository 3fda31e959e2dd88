//! Commands about a server that is running: what it has loaded, what it does, what it should unload.

pub(crate) mod ps;
pub(crate) mod stop;
pub(crate) mod top;
