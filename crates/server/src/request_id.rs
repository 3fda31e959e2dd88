//! Names for replies, tool calls and requests: a prefix and random digits that nobody can guess.
//!
//! Tool-call ids come back from clients, so they must not be countable. Nothing here is ever used as a path.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
pub(crate) use poncho_api::random_id;

/// The longest id of a client that is taken over.
const MAX_REQUEST_ID: usize = 128;

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
            assert!(id.starts_with("req_") && id.len() == 4 + 30, "{wrong:?}: {id}");
        }
    }
}
