//! The files of a model: parts, changes on disk, memory they take, a trial before loading,
//! settings that fit.

pub(crate) mod file_watch;
pub mod fit;
pub(crate) mod footprint;
pub(crate) mod parts;
pub mod probe;
