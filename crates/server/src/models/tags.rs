//! Model names as Ollama writes them: a name without a tag has the tag `latest`.
//!
//! Used by every endpoint of the dialect. A name is only ever compared; it must never become a path.

use crate::error::ApiError;

const LATEST: &str = ":latest";

/// The name that a request must say.
pub(crate) fn required(name: Option<&str>) -> Result<&str, ApiError> {
    let named = name.filter(|name| !name.is_empty());
    named.ok_or_else(|| ApiError::field("model", "model is required; name one of /api/tags"))
}

/// The other way to write a name: with `:latest` if it has no tag, without if that is its tag.
pub(crate) fn other_form(name: &str) -> Option<String> {
    match name.strip_suffix(LATEST) {
        Some(bare) if bare.is_empty() || has_tag(bare) => None,
        Some(bare) => Some(bare.to_owned()),
        None if has_tag(name) => None,
        None => Some(format!("{name}{LATEST}")),
    }
}

/// The name with its tag.
pub(crate) fn tagged(name: &str) -> String {
    if has_tag(name) { name.to_owned() } else { format!("{name}{LATEST}") }
}

/// Whether there is a tag; a colon before the last slash belongs to a host's port.
fn has_tag(name: &str) -> bool {
    name.rsplit('/').next().is_some_and(|last| last.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_tag_is_the_latest() {
        for (name, with_tag) in [
            ("llama", "llama:latest"),
            ("llama:1b", "llama:1b"),
            ("org/name", "org/name:latest"),
            ("host:80/org/name", "host:80/org/name:latest"),
            ("host:80/org/name:q4", "host:80/org/name:q4"),
        ] {
            assert_eq!(tagged(name), with_tag);
        }
        for (name, other) in [
            ("llama", Some("llama:latest")),
            ("llama:latest", Some("llama")),
            ("llama:1b", None),
            (":latest", None),
            ("a:latest:latest", None),
        ] {
            assert_eq!(other_form(name).as_deref(), other, "{name}");
        }
        assert!(required(Some("")).is_err() && required(None).is_err());
        assert_eq!(required(Some("x")).unwrap(), "x");
    }
}
