//! Failures of a request, in words for the person who typed the prompt.
//!
//! Used by `once.rs` and `chat.rs`. An error that needs no explanation is passed on unchanged.

use anyhow::anyhow;
use poncho_client::Refusal;

/// What the server calls a prompt that does not fit.
const TOO_LONG: &str = "context_length_exceeded";

/// Where a failed request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// A conversation, not a single prompt.
    pub(crate) is_chat: bool,
    /// The model runs in this process.
    pub(crate) is_own: bool,
}

/// The error with what to do about it.
pub(crate) fn explained(error: anyhow::Error, source: Source) -> anyhow::Error {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) if refusal.code() == Some(TOO_LONG) => anyhow!(too_long(refusal.message(), source)),
        _ => error,
    }
}

/// The server's message has the numbers before the first semicolon, then advice for clients.
fn too_long(message: &str, source: Source) -> String {
    let numbers = message.split(';').next().unwrap_or(message);
    let shorter = if source.is_chat { "start over with /clear, shorten the message" } else { "shorten the prompt" };
    let larger = match source.is_own {
        true => "choose a larger context with `poncho run --ctx-size TOKENS`",
        false => "restart the server with a larger --ctx-size",
    };
    format!("{numbers}; {shorter}, or {larger}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everyday use 12: the message named a route and a status code.
    #[test]
    fn a_prompt_that_is_too_long_is_explained_with_numbers_and_advice() {
        let message = "the prompt has 90 tokens, and the context has room for 64; shorten the prompt or load it larger";
        let own = too_long(message, Source { is_chat: true, is_own: true });
        let expected = "the prompt has 90 tokens, and the context has room for 64; start over with /clear, shorten the \
                        message, or choose a larger context with `poncho run --ctx-size TOKENS`";
        assert_eq!(own, expected);
        let other = too_long(message, Source { is_chat: false, is_own: false });
        assert!(
            other.ends_with("for 64; shorten the prompt, or restart the server with a larger --ctx-size"),
            "{other}"
        );
        let unrelated = explained(anyhow!("no"), Source { is_chat: true, is_own: true });
        assert_eq!(unrelated.to_string(), "no");
    }
}
