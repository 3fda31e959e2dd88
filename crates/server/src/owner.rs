//! The owner of a request, and the names of its sessions.
//!
//! The engine has one list of session names. The name of a client with a key therefore has the key's owner before it
//! there (`scoped`), and no client ever sees that prefix (`told`): two keys may use the same name for two sessions.

use poncho_api::{EngineError, Field, RequestError};

/// Stands between the owner and the name; no header can hold it.
const MARK: char = '\u{1f}';

/// Longest name that a client may use. With its owner it stays below the engine's own limit.
const MAX_NAME_BYTES: usize = 256;

/// The owner of a request: the place of its key in the list, from 1, or `None` on a server without keys. An owner does not
/// see what another owner has stored or named. It is not derived from the key itself, so it may appear in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Owner(pub(crate) Option<u64>);

/// The engine's name for what this owner calls so.
pub(crate) fn scoped(owner: Owner, name: &str) -> Result<String, EngineError> {
    let field = Field::SessionId;
    let refused = |error: RequestError| Err(EngineError::BadRequest(error));
    match name.len() {
        0 => return refused(RequestError::Empty { field }),
        bytes if bytes > MAX_NAME_BYTES => {
            return refused(RequestError::TooLong { field, bytes, limit: MAX_NAME_BYTES });
        }
        _ => {}
    }
    Ok(owner.0.map_or_else(|| name.to_owned(), |number| format!("{number}{MARK}{name}")))
}

/// What an owner calls a session of the engine; `None` if it is not its own.
pub(crate) fn own_name(owner: Owner, name: &str) -> Option<&str> {
    match owner.0 {
        None => Some(name),
        Some(number) => name.strip_prefix(&number.to_string())?.strip_prefix(MARK),
    }
}

/// An error of the engine with the session's name as its owner knows it.
pub(crate) fn told(error: EngineError) -> EngineError {
    let own = |session: String| match session.split_once(MARK) {
        Some((owner, name)) if owner.parse::<u64>().is_ok() => name.to_owned(),
        _ => session,
    };
    match error {
        EngineError::StickyBusy { session } => EngineError::StickyBusy { session: own(session) },
        EngineError::NoSession { session } => EngineError::NoSession { session: own(session) },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_finds_its_own_names_and_no_others() {
        let owners = [1, 11, 2].map(|number| Owner(Some(number)));
        // Names that look like somebody else's.
        let names = ["a", "1a", "1", "1\u{1f}a", "\u{1f}a", "ünïcode"];
        for owner in owners {
            for name in names {
                let engine = scoped(owner, name).unwrap();
                assert_eq!(own_name(owner, &engine), Some(name));
                for other in owners.into_iter().filter(|other| *other != owner) {
                    assert_eq!(own_name(other, &engine), None, "{engine:?}");
                    assert!(names.iter().all(|name| scoped(other, name).unwrap() != engine), "{engine:?}");
                }
                let busy = told(EngineError::StickyBusy { session: engine });
                assert_eq!(busy, EngineError::StickyBusy { session: name.to_owned() });
            }
        }
        assert_eq!(scoped(Owner(None), "a").unwrap(), "a");
    }

    #[test]
    fn the_limit_of_a_name_is_the_clients_own() {
        let longest = "n".repeat(MAX_NAME_BYTES);
        let engine = scoped(Owner(Some(u64::MAX)), &longest).unwrap();
        assert!(engine.len() <= poncho_api::MAX_SESSION_BYTES, "{}", engine.len());
        for owner in [Owner(None), Owner(Some(1))] {
            assert!(scoped(owner, &longest).is_ok());
            let refused = scoped(owner, &format!("{longest}n")).unwrap_err();
            assert!(refused.to_string().contains("257") && refused.to_string().contains("256"), "{refused}");
            assert!(scoped(owner, "").is_err());
        }
    }
}
