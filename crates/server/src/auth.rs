//! API keys: one of them must come with every request but those to the open paths (`routes.rs`: a probe, or a document
//! that says nothing of this server), and it says whose the request is.
//!
//! Keys are kept as digests of equal length and compared in constant time, all of them, so that neither the time nor
//! the length tells anything. A key must never be logged or put into an error.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::app::SharedApp;
use crate::error::ApiError;

/// Whose a request is: the place of its key in the list, from 1, or nobody's on a server without keys. What one has
/// stored or named, another does not see. Nothing made from the key itself, so that it may stand in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Owner(pub(crate) Option<u64>);

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
        let numbered = self.0.iter().zip(1_u64..);
        let number = numbered.fold(0, |found, (known, number)| {
            // The first of two equal keys, so that both mean the same owner.
            let is_new = known.ct_eq(&digest) & found.ct_eq(&0);
            u64::conditional_select(&found, &number, is_new)
        });
        (number > 0).then_some(Owner(Some(number)))
    }

    /// Whether more than one may come in, so that what one wrote is not for every eye.
    pub(crate) fn are_several(&self) -> bool {
        let first = self.0.first();
        self.0.iter().any(|key| Some(key) != first)
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

    #[test]
    fn each_key_is_an_owner_and_the_same_key_the_same_one() {
        let keys = Keys::new(&["one", "two", "one", "three"].map(str::to_owned));
        let number = |key: &str| keys.find(key.as_bytes()).map(|owner| owner.0);
        assert_eq!(["one", "two", "three"].map(number), [Some(Some(1)), Some(Some(2)), Some(Some(4))]);
        assert_eq!(number("four"), None);
        assert!(keys.are_several());
        assert!(!Keys::new(&["one", "one"].map(str::to_owned)).are_several() && !Keys::new(&[]).are_several());
    }
}
