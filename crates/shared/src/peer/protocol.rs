//! The requests of a pull, and how they are signed.
//!
//! ```text
//! POST /v1/find                     question: which of these rows do you have?   answer: name, tokens, bytes
//! POST /v1/open                     question: one row                            answer: its manifest
//! GET  /v1/<tenant>/seg/<sha256>    with a range                                 answer: 206 and the bytes
//! ```
//!
//! Each request carries a MAC over its method, path, range and body, made with a secret of the cluster. A request without
//! it gets the answer of a row that does not exist. Used by both sides; pure.

use poncho_cache::{Key, Namespace, OwnerId, to_hex};
use serde::{Deserialize, Serialize};

use crate::content::manifest::NamespaceText;
use crate::content::names::digest_of;
use crate::content::tenant::ClusterSecret;

pub(super) const FIND: &str = "/v1/find";
pub(super) const OPEN: &str = "/v1/open";
/// Carries the MAC, as 64 hexadecimal digits.
pub(super) const SIGNATURE: &str = "poncho-signature";
/// A question with many names.
pub(super) const MOST_QUESTION: usize = 64 << 10;
/// Names of one question.
pub(super) const MOST_KEYS: usize = 64;
/// An answer to `find`.
pub(super) const MOST_FOUND: usize = 4 << 10;

/// A question for rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) owner: OwnerId,
    namespace: NamespaceText,
    /// The best one first.
    pub(super) keys: Vec<Key>,
}

impl Question {
    pub(super) fn new(owner: OwnerId, namespace: &Namespace, keys: &[Key]) -> Self {
        let keys = keys.iter().take(MOST_KEYS).copied().collect();
        Self { owner, namespace: namespace.into(), keys }
    }

    pub(super) fn namespace(&self) -> Namespace {
        (&self.namespace).into()
    }
}

/// The row that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) key: Key,
    pub(super) tokens: u32,
    /// About how many bytes its chain has.
    pub(super) bytes: u64,
}

/// A request as it is signed.
pub(super) struct Signed<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// The value of the range header, empty for none.
    pub(super) range: &'a str,
    pub(super) body: &'a [u8],
}

impl Signed<'_> {
    fn parts(&self) -> [&[u8]; 4] {
        [self.method.as_bytes(), self.path.as_bytes(), self.range.as_bytes(), self.body]
    }

    pub(super) fn sign(&self, secret: &ClusterSecret) -> String {
        to_hex(&secret.sign(&self.parts()))
    }

    pub(super) fn is_signed(&self, secret: &ClusterSecret, signature: &str) -> bool {
        digest_of(signature).is_some_and(|mac| secret.has_signed(&self.parts(), &mac))
    }
}

/// A range header of the form that we send, `bytes=FIRST-LAST`, as the bytes from here up to there.
pub(super) fn range_of(header: &str) -> Option<std::ops::Range<u64>> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let end = last.checked_add(1)?;
    (first < end).then_some(first..end)
}

/// The same as text.
pub(super) fn range_header(range: &std::ops::Range<u64>) -> String {
    format!("bytes={}-{}", range.start, range.end.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_covers_everything_of_a_request() {
        let secret = ClusterSecret::for_transport([1; 32]);
        let request = || Signed { method: "GET", path: "/v1/a", range: "bytes=0-1", body: b"" };
        let signature = request().sign(&secret);
        assert!(request().is_signed(&secret, &signature));
        let others = [
            Signed { method: "POST", ..request() },
            Signed { path: "/v1/b", ..request() },
            Signed { range: "bytes=0-2", ..request() },
            Signed { body: b"x", ..request() },
        ];
        assert!(others.iter().all(|other| !other.is_signed(&secret, &signature)));
        assert!(!request().is_signed(&ClusterSecret::for_transport([2; 32]), &signature));
        assert!(!request().is_signed(&secret, "") && !request().is_signed(&secret, &signature[..63]));
    }

    #[test]
    fn ranges_are_read_as_they_are_written_and_others_are_refused() {
        assert_eq!(range_of(&range_header(&(5..9))), Some(5..9));
        for other in ["", "bytes=", "bytes=5-", "bytes=-5", "bytes=9-5", "items=0-1", "bytes=0-1,3-4"] {
            assert_eq!(range_of(other), None, "{other}");
        }
        assert_eq!(range_of(&format!("bytes=0-{}", u64::MAX)), None);
    }
}
