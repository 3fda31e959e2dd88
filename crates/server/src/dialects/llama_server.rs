//! Endpoints of llama.cpp's own server that its clients need: properties, slots, gaps to fill, documents to rank.
//!
//! Its other endpoints (`/tokenize`, `/apply-template`, `/health`) are among Poncho's own. Errors have OpenAI's shape.

pub(crate) mod infill;
pub(crate) mod properties;
pub(crate) mod rerank;
