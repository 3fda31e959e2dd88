//! Servers that end, are overloaded, or lose a worker.

pub(crate) mod life;
pub(crate) mod overload;
pub(crate) mod recorded;
pub(crate) mod shutdown;
pub(crate) mod status;
pub(crate) mod worker_death;
