//! States of llama.cpp: their shape, packing and putting them back.

pub(crate) mod chain;
pub(crate) mod io;
pub(crate) mod layout;
pub(crate) mod packed;
pub(crate) mod partial;
pub(crate) mod segment;
