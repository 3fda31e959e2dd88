//! All errors of the engine, as the api defines them.

pub use poncho_api::{EngineError, Field, RequestError};
