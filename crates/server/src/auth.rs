//! API keys: one of them must come with every request but the health probes, and it says whose the request is.
//!
//! Keys are kept as digests of equal length and compared in constant time, all of them, so that neither the time nor
//! the length tells anything. A key must never be logged or put into an error.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::app::SharedApp;
use crate::error::ApiError;

/// Whose a request is: the digest of its key, or nobody's on a server without keys. What one has stored, another does
/// not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Owner(pub(crate) Option<[u8; 32]>);

/// The keys of a server; without any, everybody may come in.
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| Sha256::digest(key.as_bytes()).into()).collect())
    }

    /// Who the headers belong to, if they carry one of the keys, as `Authorization: Bearer` or as `x-api-key`.
    fn owner(&self, headers: &HeaderMap) -> Option<Owner> {
        if self.0.is_empty() {
            return Some(Owner(None));
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| bearer_token(value.as_bytes()));
        let plain = headers.get("x-api-key").map(|value| value.as_bytes());
        // Some clients send both, of which one is meant for somebody else.
        bearer.into_iter().chain(plain).fold(None, |owner, key| owner.or(self.find(key)))
    }

    fn find(&self, key: &[u8]) -> Option<Owner> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let none = Choice::from(0);
        let is_known: bool = self.0.iter().fold(none, |found, known| found | known.ct_eq(&digest)).into();
        is_known.then_some(Owner(Some(digest)))
    }
}

fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Middleware: nobody without a key comes further.
pub(crate) async fn authorize(
    State(app): State<SharedApp>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let owner = app.keys.owner(request.headers()).ok_or(ApiError::Unauthorized)?;
    request.extensions_mut().insert(owner);
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn a_key_opens_and_nothing_else_does() {
        let keys = Keys::new(&["one".to_owned(), "two".to_owned()]);
        for good in ["Bearer one", "bearer two", "BEARER  one "] {
            assert!(keys.owner(&headers("authorization", good)).is_some(), "{good}");
        }
        assert!(keys.owner(&headers("x-api-key", "two")).is_some());
        for wrong in ["Bearer on", "Bearer onee", "Bearer ", "Bearer", "one", "Basic one", ""] {
            assert!(keys.owner(&headers("authorization", wrong)).is_none(), "{wrong:?}");
        }
        let mut both = headers("authorization", "Bearer else");
        assert!(keys.owner(&both).is_none());
        both.insert("x-api-key", "two".parse().unwrap());
        assert!(keys.owner(&both).is_some(), "either will do");
        assert!(keys.owner(&HeaderMap::new()).is_none());
        assert!(Keys::new(&[]).owner(&HeaderMap::new()).is_some(), "no keys, no lock");
    }
}
