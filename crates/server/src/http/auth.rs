//! API keys. Every request must carry one, except those to the open paths (`router.rs`: a probe, or a document that says
//! nothing about this server). The key identifies the owner of the request.
//!
//! Keys are kept as digests of equal length and compared in constant time, all of them, so that neither the time nor
//! the length leaks information. A key must never be logged or put into an error.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use poncho_api::{OwnerId, Privacy, Tenant};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::owner::Owner;

/// The keys of a server; without any, everybody may come in.
pub(crate) struct Keys {
    known: Vec<Known>,
    /// Each key has a namespace of its own.
    isolates: bool,
}

/// One key.
struct Known {
    digest: [u8; 32],
    /// The name under which its rows are known, in files too.
    tenant: OwnerId,
    /// Whether it may see what all keys do.
    is_admin: bool,
}

impl Keys {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let keys = config.keys.iter().map(|key| (key, config.admin_keys.contains(key)));
        let admins = config.admin_keys.iter().map(|key| (key, true));
        let known = keys.chain(admins).map(|(key, is_admin)| Known {
            digest: Sha256::digest(key.as_bytes()).into(),
            tenant: tenant_id(key),
            is_admin,
        });
        Self { known: known.collect(), isolates: config.isolate_keys }
    }

    fn get(&self, owner: Owner) -> Option<&Known> {
        self.known.get(usize::try_from(owner.0?.checked_sub(1)?).ok()?)
    }

    /// Whether nothing has to be hidden from an owner: it is alone, or an admin.
    pub(crate) fn sees_all(&self, owner: Owner) -> bool {
        !self.are_several() || self.get(owner).is_some_and(|known| known.is_admin)
    }

    /// Refuses data that covers all keys. Where each key has a namespace of its own, sums reveal nothing about a text.
    pub(crate) fn check_sees_sums(&self, owner: Owner) -> Result<(), ApiError> {
        if self.sees_all(owner) || self.isolates { Ok(()) } else { Err(ApiError::AdminOnly) }
    }

    /// Refuses what changes the replies of all keys.
    pub(crate) fn check_changes_models(&self, owner: Owner) -> Result<(), ApiError> {
        if self.sees_all(owner) { Ok(()) } else { Err(ApiError::AdminChange) }
    }

    /// The tenant that the engine gets for an owner.
    pub(crate) fn tenant(&self, owner: Owner) -> Option<Tenant> {
        let privacy = match (self.isolates, self.sees_all(owner)) {
            (true, _) => Privacy::Isolated,
            (false, true) => Privacy::Open,
            (false, false) => Privacy::Discreet,
        };
        self.get(owner).map(|known| Tenant { id: known.tenant, privacy })
    }

    /// The owner's name for rows, if only its own may be shown to it.
    pub(crate) fn narrowed(&self, owner: Owner) -> Option<OwnerId> {
        self.get(owner).filter(|_| !self.sees_all(owner)).map(|known| known.tenant)
    }

    /// Whether the rows that an owner may see were all sent by itself, so that it may read their text.
    pub(crate) fn sees_rows_text(&self, owner: Owner) -> bool {
        !self.are_several() || !self.sees_all(owner)
    }

    /// Refuses what belongs to the server itself, such as its settings.
    pub(crate) fn check_sees_all(&self, owner: Owner) -> Result<(), ApiError> {
        if self.sees_all(owner) { Ok(()) } else { Err(ApiError::AdminOnly) }
    }

    /// Who the headers belong to, if they carry one of the keys, as `Authorization: Bearer` or as `x-api-key`.
    fn owner(&self, headers: &HeaderMap) -> Option<Owner> {
        if self.known.is_empty() {
            return Some(Owner(None));
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| bearer_token(value.as_bytes()));
        let plain = headers.get("x-api-key").map(|value| value.as_bytes());
        // Some clients send both, of which one is meant for somebody else.
        bearer.into_iter().chain(plain).fold(None, |owner, key| owner.or(self.find(key)))
    }

    fn find(&self, key: &[u8]) -> Option<Owner> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let numbered = self.known.iter().map(|known| known.digest).zip(1_u64..);
        let number = numbered.fold(0, |found, (known, number)| {
            // The first of two equal keys, so that both mean the same owner.
            let is_new = known.ct_eq(&digest) & found.ct_eq(&0);
            u64::conditional_select(&found, &number, is_new)
        });
        (number > 0).then_some(Owner(Some(number)))
    }

    /// Whether more than one may come in, so that what one wrote is not for every eye.
    fn are_several(&self) -> bool {
        let first = self.known.first().map(|known| known.digest);
        self.known.iter().any(|known| Some(known.digest) != first)
    }
}

/// The name of a key's rows. It stands in files, so it is made slowly: a key that could be guessed costs its guesser that
/// much for every guess. It is the same in every run, so that a key finds its rows again.
fn tenant_id(key: &str) -> OwnerId {
    const ROUNDS: usize = 1 << 14;
    const SALT: &str = "poncho tenant of an API key\n";
    let mut digest: [u8; 32] = Sha256::new_with_prefix(SALT).chain_update(key).finalize().into();
    for _ in 0..ROUNDS {
        digest = Sha256::new_with_prefix(SALT).chain_update(digest).chain_update(key).finalize().into();
    }
    let (id, _) = digest.split_first_chunk().unwrap_or((&[0; OwnerId::LENGTH], &[]));
    OwnerId::from_bytes(*id)
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

    fn config(keys: &[&str]) -> ServerConfig {
        ServerConfig { keys: keys.iter().map(|key| (*key).to_owned()).collect(), ..ServerConfig::default() }
    }

    fn keys(names: &[&str]) -> Keys {
        Keys::new(&config(names))
    }

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn a_key_opens_and_nothing_else_does() {
        let keys = keys(&["one", "two"]);
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
        assert!(self::keys(&[]).owner(&HeaderMap::new()).is_some(), "no keys, no lock");
    }

    #[test]
    fn each_key_is_an_owner_and_the_same_key_the_same_one() {
        let several = keys(&["one", "two", "one", "three"]);
        let number = |key: &str| several.find(key.as_bytes()).map(|owner| owner.0);
        assert_eq!(["one", "two", "three"].map(number), [Some(Some(1)), Some(Some(2)), Some(Some(4))]);
        assert_eq!(number("four"), None);
        assert!(several.are_several());
        assert!(!keys(&["one", "one"]).are_several() && !keys(&[]).are_several());
    }

    #[test]
    fn only_an_admin_and_a_key_that_is_alone_see_everything() {
        let alone = keys(&["one"]);
        let one = alone.find(b"one").unwrap();
        assert!(alone.sees_all(one) && alone.sees_all(Owner(None)) && alone.narrowed(one).is_none());
        assert_eq!(alone.tenant(one).unwrap().privacy, Privacy::Open);
        assert_eq!(alone.tenant(Owner(None)), None);
        let id_alone = alone.tenant(one).unwrap().id;
        for isolate_keys in [false, true] {
            let admin_keys = vec!["boss".to_owned()];
            let keys = Keys::new(&ServerConfig { isolate_keys, admin_keys, ..config(&["one", "two"]) });
            let [one, two, boss] = ["one", "two", "boss"].map(|key| keys.find(key.as_bytes()).unwrap());
            assert!(keys.sees_all(boss) && !keys.sees_all(one) && !keys.sees_all(two));
            let [id, other] = [one, two].map(|owner| keys.narrowed(owner).unwrap());
            assert!(id == id_alone && id != other, "a key's own, with other keys or without");
            assert_eq!(keys.check_sees_sums(one).is_ok(), isolate_keys);
            assert!(keys.check_sees_sums(boss).is_ok());
            assert!(keys.check_changes_models(boss).is_ok() && keys.check_changes_models(one).is_err());
            let privacy = [one, boss].map(|owner| keys.tenant(owner).unwrap().privacy);
            let expected = if isolate_keys { [Privacy::Isolated; 2] } else { [Privacy::Discreet, Privacy::Open] };
            assert_eq!(privacy, expected);
        }
    }
}
