//! The name of a model: `smollm2:135m`, `owner/name:tag`, `host/owner/name:tag`.
//!
//! Made from whatever a user or a client typed, and the only thing that manifests are found by. It must never hold a
//! character that means something to a file system; the name of a manifest's file is an encoding of it.

use std::fmt;

use thiserror::Error;

/// The tag of a name that has none.
pub(crate) const DEFAULT_TAG: &str = "latest";

/// Bytes of a whole name; with the file's ending it stays below the 255 that file systems allow.
const MOST_BYTES: usize = 200;
/// Parts between slashes: a host, an owner and a name.
const MOST_PARTS: usize = 3;

/// A checked name in lower case, always with a tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelName {
    /// `owner/name`, without the tag.
    base: String,
    tag: String,
}

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing there.
    #[error("the model's name is empty; write one like `smollm2:135m`")]
    Empty,
    /// Too long for the name of a file.
    #[error("the model's name has {bytes} bytes, at most {MOST_BYTES} are allowed; choose a shorter one")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// Too many slashes.
    #[error("`{name}` has {parts} parts between slashes, at most {MOST_PARTS} are allowed; write `owner/name:tag`")]
    TooManyParts {
        /// The text.
        name: String,
        /// How many it has.
        parts: usize,
    },
    /// A part that is empty, starts with a sign or holds one that names do not have.
    #[error(
        "`{part}` in the model name `{name}` is not allowed; parts start with a letter or digit and hold letters, digits, `.`, `_` and `-`"
    )]
    BadPart {
        /// The text, made printable.
        name: String,
        /// The part, made printable.
        part: String,
    },
}

impl ModelName {
    /// Reads a name. Letters are folded to lower case, a missing tag is `latest`.
    ///
    /// # Errors
    /// When the text is not a valid name; the message names the part and what is allowed.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > MOST_BYTES {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        // A colon before the last slash is in none of the allowed sets, so it is refused below.
        let (base, tag) = match text.rsplit_once(':') {
            Some((base, tag)) if !tag.contains('/') => (base, tag),
            _ => (text, DEFAULT_TAG),
        };
        let parts = base.split('/').count();
        if parts > MOST_PARTS {
            return Err(NameError::TooManyParts { name: printable(text), parts });
        }
        if let Some(part) = base.split('/').chain([tag]).find(|part| !is_part(part)) {
            return Err(NameError::BadPart { name: printable(text), part: printable(part) });
        }
        Ok(Self { base: base.to_ascii_lowercase(), tag: tag.to_ascii_lowercase() })
    }

    /// A name made of any text, for a file or a repository that must be called something: what names do not allow
    /// becomes `-`.
    #[must_use]
    pub fn from_loose_text(base: &str, tag: &str) -> Option<Self> {
        let part = |text: &str| {
            let clean: String = text.chars().take(80).map(|c| if is_name_char(c) { c } else { '-' }).collect();
            clean.trim_matches(['.', '_', '-']).to_owned()
        };
        let base: Vec<String> = base.split('/').map(part).collect();
        Self::parse(&format!("{}:{}", base.join("/"), part(tag))).ok()
    }

    /// The name without its tag.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// What to print: the name without `:latest`.
    #[must_use]
    pub fn short(&self) -> String {
        if self.tag == DEFAULT_TAG { self.base.clone() } else { self.to_string() }
    }

    /// The name of the manifest's file. `+` and `=` are in no name, so no two names share a file, and no slash or
    /// leading dot can come out.
    pub(crate) fn file_name(&self) -> String {
        format!("{}={}{ENDING}", self.base.replace('/', "+"), self.tag)
    }

    /// The name that a manifest's file stands for; `None` if this crate would not have called it so.
    pub(crate) fn from_file_name(file: &str) -> Option<Self> {
        let (base, tag) = file.strip_suffix(ENDING)?.split_once('=')?;
        let name = Self::parse(&format!("{}:{tag}", base.replace('+', "/"))).ok()?;
        (name.file_name() == file).then_some(name)
    }
}

/// The ending of a manifest's file.
const ENDING: &str = ".json";

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

fn is_part(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(is_name_char)
}

/// A text from outside without what could play tricks on a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(120).flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

impl fmt::Display for ModelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.base, self.tag)
    }
}

impl std::str::FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl serde::Serialize for ModelName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for ModelName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read_in_every_allowed_form() {
        for (text, whole, short) in [
            ("smollm2:135m", "smollm2:135m", "smollm2:135m"),
            ("smollm2", "smollm2:latest", "smollm2"),
            ("Owner/Name:Q4_K_M", "owner/name:q4_k_m", "owner/name:q4_k_m"),
            ("hf.co/owner/name", "hf.co/owner/name:latest", "hf.co/owner/name"),
            ("a", "a:latest", "a"),
        ] {
            let name = ModelName::parse(text).unwrap();
            assert_eq!((name.to_string().as_str(), name.short().as_str()), (whole, short));
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = "a".repeat(201);
        for text in [
            "",
            ".",
            "..",
            "../x",
            "a/../b",
            "/etc/passwd",
            "a//b",
            "a/",
            ":",
            "a:",
            ":a",
            "a:b:c",
            "a/b/c/d",
            "a b",
            "a\0b",
            "a\nb",
            "a\\b",
            ".hidden",
            "-rf",
            "a:../x",
            "a:b/c",
            "caf\u{e9}",
            "a+b",
            "a=b",
            "con:1/x",
            "%2e%2e",
            "\u{1b}[31m",
            "~",
            "$HOME",
            "*",
            long.as_str(),
        ] {
            let refused = ModelName::parse(text).unwrap_err().to_string();
            assert!(!refused.contains('\u{1b}') && !refused.contains('\0'), "{refused:?}");
        }
    }

    #[test]
    fn loose_texts_become_names() {
        let name = |base, tag| ModelName::from_loose_text(base, tag).map(|name| name.to_string());
        assert_eq!(name("My Model (v2)", "Q4_K_M").as_deref(), Some("my-model--v2:q4_k_m"));
        assert_eq!(name("owner/Repo-GGUF", "latest").as_deref(), Some("owner/repo-gguf:latest"));
        assert_eq!(name("...", "x"), None);
    }

    proptest! {
        #[test]
        fn a_file_name_stays_in_its_folder_and_leads_back(text in "[a-cA-C0-1._/:+=~-]{1,24}") {
            if let Ok(name) = ModelName::parse(&text) {
                let file = name.file_name();
                prop_assert!(!file.contains('/') && !file.starts_with('.') && file.len() <= 255);
                prop_assert_eq!(ModelName::from_file_name(&file), Some(name));
            }
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in any::<String>()) {
            let _ = ModelName::parse(&text);
            let _ = ModelName::from_file_name(&text);
            let _ = ModelName::from_loose_text(&text, &text);
        }
    }
}
