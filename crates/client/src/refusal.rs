//! An HTTP error of the server, in words for a person.
//!
//! Made by the client; commands print it or ask for its code. A person sees the server's message. Paths and status codes
//! are shown only for a failure of the server itself, where they help to report it. A key must never be part of it.

use std::fmt;

use hyper::StatusCode;
use serde_json::Value;

/// See the module.
#[derive(Debug)]
pub struct Refusal {
    pub(crate) authority: String,
    pub(crate) path: String,
    pub(crate) status: StatusCode,
    /// Whether the request carried a key.
    pub(crate) has_key: bool,
    code: Option<String>,
    message: String,
}

impl Refusal {
    /// Reads the body of an answer, in the form of any dialect.
    pub(crate) fn read(authority: &str, path: &str, status: StatusCode, has_key: bool, body: &str) -> Self {
        let document: Option<Value> = serde_json::from_str(body).ok();
        let error = document.as_ref().and_then(|document| document.get("error"));
        let message = error.and_then(|error| error.get("message").unwrap_or(error).as_str()).unwrap_or(body);
        let code = error.and_then(|error| error.get("code")?.as_str()).map(str::to_owned);
        let message = message.trim().to_owned();
        Self { authority: authority.to_owned(), path: path.to_owned(), status, has_key, code, message }
    }

    /// Whether the server blames the request, not itself.
    #[must_use]
    pub fn is_client_error(&self) -> bool {
        self.status.is_client_error()
    }

    /// Whether the server requires a key, or another one.
    #[must_use]
    pub fn is_about_key(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }

    /// The server's name for the error, such as `context_length_exceeded`.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// The server's message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { authority, path, status, has_key, message, .. } = self;
        match (self.is_about_key(), has_key) {
            (true, false) => write!(
                formatter,
                "the server at {authority} requires an API key; set PONCHO_API_KEY, or pass the key with --api-key"
            ),
            (true, true) => write!(
                formatter,
                "the server at {authority} does not accept this API key; check PONCHO_API_KEY and --api-key"
            ),
            (false, _) if self.is_client_error() && !message.is_empty() => formatter.write_str(message),
            (false, _) => write!(formatter, "the server at {authority} answered {path} with {status}: {message}"),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, has_key: bool, body: &str) -> Refusal {
        Refusal::read("127.0.0.1:80", "/v1/models", StatusCode::from_u16(status).unwrap(), has_key, body)
    }

    /// Everyday use 12: an error for a person named routes and status codes.
    #[test]
    fn a_person_reads_the_message_and_not_the_route() {
        let long = refusal(400, false, r#"{"error":{"message":"too long; cut it","code":"context_length_exceeded"}}"#);
        assert_eq!((long.to_string().as_str(), long.code()), ("too long; cut it", Some("context_length_exceeded")));
        assert_eq!(refusal(404, true, r#"{"error":"model 'x' not found"}"#).to_string(), "model 'x' not found");
        let text = refusal(500, false, "oops").to_string();
        assert_eq!(text, "the server at 127.0.0.1:80 answered /v1/models with 500 Internal Server Error: oops");
        assert!(refusal(404, false, "").to_string().contains("404"));
    }

    #[test]
    fn a_missing_key_and_a_wrong_key_have_their_own_messages() {
        let body = r#"{"error":{"message":"the API key is missing or wrong","code":"invalid_api_key"}}"#;
        for (has_key, part) in
            [(false, "requires an API key; set PONCHO_API_KEY"), (true, "does not accept this API key")]
        {
            let refused = refusal(401, has_key, body);
            assert!(refused.is_about_key() && refused.to_string().contains(part), "{refused}");
        }
    }
}
