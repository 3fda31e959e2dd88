//! Tests on real llama.cpp.

pub(crate) mod drafts;
pub(crate) mod exact;
pub(crate) mod hits;
pub(crate) mod idle;
pub(crate) mod invariance;
pub(crate) mod models;
pub(crate) mod real;
pub(crate) mod resume;
pub(crate) mod rows;
pub(crate) mod segments;
pub(crate) mod settings;
pub(crate) mod smollm2;
pub(crate) mod templates;
