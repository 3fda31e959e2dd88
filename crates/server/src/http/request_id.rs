//! Names for replies, tool calls and requests: a prefix and random digits that nobody can guess.
//!
//! Tool-call ids come back from clients, so they must not be countable. Nothing here is ever used as a path.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;

/// 120 bits: no two meet and none is guessed.
const RANDOM_BYTES: usize = 15;

/// The longest id of a client that is taken over.
const MAX_REQUEST_ID: usize = 128;

/// A new name, such as `chatcmpl-0f3a..`.
pub(crate) fn random_id(prefix: &str) -> String {
    let mut bytes = [0_u8; RANDOM_BYTES];
    if getrandom::fill(&mut bytes).is_err() {
        // A system without a random source still gives each hasher its own seed.
        for part in bytes.chunks_mut(8) {
            let fresh = RandomState::new().hash_one(0_u8).to_le_bytes();
            part.iter_mut().zip(fresh).for_each(|(byte, random)| *byte = random);
        }
    }
    format!("{prefix}{}", poncho_cache::to_hex(&bytes))
}

/// The id of a request: the client's own if it sent a usable one as `x-request-id`, else a new one.
///
/// It goes into headers, log lines and traces, so it must be visible ASCII without spaces, and not too long.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let mut sent = headers.get_all("x-request-id").iter();
    let id = match (sent.next(), sent.next()) {
        (Some(only), None) => only.to_str().ok(),
        _ => None,
    };
    let is_usable =
        |id: &&str| (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    id.filter(is_usable).map_or_else(|| random_id("req_"), str::to_owned)
}

/// Seconds since 1970, for `created`.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_clients_id_is_taken_over_only_if_it_is_harmless() {
        let of = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-request-id", HeaderValue::from_bytes(value).unwrap());
            }
            request_id(&headers)
        };
        let longest = "x".repeat(MAX_REQUEST_ID);
        for good in ["1", "0b7f6a2e-7d1c-4bb6-9d1f-2f6f1f0c1a11", "a\\\"{}%~!", &longest] {
            assert_eq!(of(&[good.as_bytes()]), good);
        }
        let too_long = longest.clone() + "x";
        let wrong: [&[&[u8]]; 7] =
            [&[], &[b""], &[b"a b"], &[b"a\tb"], &["é".as_bytes()], &[too_long.as_bytes()], &[b"one", b"two"]];
        for wrong in wrong {
            let id = of(wrong);
            assert!(id.starts_with("req_") && id.len() == 4 + 2 * RANDOM_BYTES, "{wrong:?}: {id}");
        }
    }

    #[test]
    fn ids_do_not_repeat_and_keep_their_prefix() {
        let ids: std::collections::BTreeSet<String> = (0..1000).map(|_| random_id("call_")).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.starts_with("call_") && id.len() == 5 + 2 * RANDOM_BYTES));
    }
}
