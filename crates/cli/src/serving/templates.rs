//! The check of a Jinja template by llama.cpp, for `poncho create` and for `POST /api/create`.

use poncho_engine::backend::ChatError;
use poncho_engine::backend::llama::check_template;

/// llama.cpp loses the reason of a parse error on the way; it prints it on standard error.
const LOST: &str = "std::exception";

/// Why a template cannot be used.
pub(crate) fn usable_template(template: &str) -> Result<(), String> {
    check_template(template).map_err(|error| match error {
        ChatError::BadTemplate { reason } if reason == LOST => {
            "llama.cpp cannot parse it and prints why on standard error".to_owned()
        }
        ChatError::BadTemplate { reason } => reason,
        other => other.to_string(),
    })
}
