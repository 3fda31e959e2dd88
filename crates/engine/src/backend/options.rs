//! How a model is loaded and a context created: the api's data, and its errors as the backends name them.

use poncho_api::BadOption;
pub use poncho_api::{
    ContextOptions, FlashAttention, KvLayout, KvType, MAX_SEQUENCES, ModelOptions, Numa, Pooling, RopeScaling,
    SplitMode,
};

use super::error::{ContextError, LoadError};

impl From<BadOption> for LoadError {
    fn from(BadOption { option, value, reason }: BadOption) -> Self {
        Self::BadOption { option, value, reason }
    }
}

impl From<BadOption> for ContextError {
    fn from(BadOption { option, value, reason }: BadOption) -> Self {
        Self::BadOption { option, value, reason }
    }
}
