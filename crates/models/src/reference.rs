//! A model as a user names it: a path, a name, a hub reference or an address.
//!
//! `Reference::parse` decides by the text alone and never looks at the disk, so that the same text means the same
//! everywhere.

use std::fmt;
use std::path::PathBuf;

use poncho_gguf::is_file_type_name;
use thiserror::Error;

use crate::name::{ModelName, NameError, printable};

/// What a text means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// A file of this machine: it starts with `/`, `./`, `../` or `~/`, or ends in `.gguf`.
    Path(PathBuf),
    /// A name, of an installed model or of the catalogue.
    Name(ModelName),
    /// `hf:owner/repo[:file or quant]`.
    Hub(HubReference),
    /// `https://...` or `http://...`.
    Url(String),
}

/// A repository of the hub and a file in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubReference {
    /// Who owns it.
    pub owner: String,
    /// Its name.
    pub repo: String,
    /// Which file.
    pub choice: HubChoice,
}

/// Which file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubChoice {
    /// The one that suits most people.
    Best,
    /// The one of a quantisation, such as `Q4_K_M`.
    Quant(String),
    /// The one of this name.
    File(String),
}

/// Why a text names no model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReferenceError {
    /// Not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A hub reference that is not complete.
    #[error("`{text}` is not a hub reference; write hf:owner/repo, hf:owner/repo:Q4_K_M or hf:owner/repo:file.gguf")]
    Hub {
        /// The text, made printable.
        text: String,
    },
    /// An address that cannot be one.
    #[error("`{text}` is not the address of a file; write https://host/path/model.gguf")]
    Url {
        /// The text, made printable and without user and password.
        text: String,
    },
}

/// What a hub reference starts with; the long forms are what people copy out of a browser or an Ollama command.
const HUB_PREFIXES: [&str; 3] = ["hf:", "hf.co/", "huggingface.co/"];

impl Reference {
    /// Reads a reference.
    ///
    /// # Errors
    /// When the text names no model in any of the forms.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        let lower = text.to_ascii_lowercase();
        if lower.starts_with("http://") || lower.starts_with("https://") {
            return url(text);
        }
        if let Some(prefix) = HUB_PREFIXES.iter().find(|prefix| lower.starts_with(*prefix)) {
            let rest = text.get(prefix.len()..).unwrap_or_default();
            let wrong = || ReferenceError::Hub { text: printable(text) };
            return HubReference::parse(rest).map(Self::Hub).ok_or_else(wrong);
        }
        let starts = ["/", "./", "../", "~/"].iter().any(|start| text.starts_with(start));
        if starts || lower.ends_with(".gguf") {
            return Ok(Self::Path(text.into()));
        }
        Ok(Self::Name(ModelName::parse(text)?))
    }

    /// The name under which a model is installed if the user gives none. A file and an address give their file name.
    #[must_use]
    pub fn default_name(&self) -> Option<ModelName> {
        match self {
            Self::Name(name) => Some(name.clone()),
            Self::Path(path) => name_of_file(path.file_name()?.to_str()?),
            Self::Url(url) => name_of_file(path_of_url(url).rsplit('/').next()?),
            Self::Hub(hub) => hub.default_name(),
        }
    }
}

impl HubReference {
    fn parse(text: &str) -> Option<Self> {
        let (repository, choice) = match text.split_once(':') {
            Some((_, "")) => return None,
            Some((repository, choice)) => (repository, Some(choice)),
            None => (text, None),
        };
        let (owner, repo) = repository.split_once('/')?;
        let is_word = |word: &str| {
            word.starts_with(|c: char| c.is_ascii_alphanumeric())
                && word.len() <= 96
                && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        };
        if !is_word(owner) || !is_word(repo) {
            return None;
        }
        let choice = match choice {
            None => HubChoice::Best,
            Some(text) if text.eq_ignore_ascii_case("latest") => HubChoice::Best,
            Some(file) if file.to_ascii_lowercase().ends_with(".gguf") => {
                file.split('/').all(is_word).then(|| HubChoice::File(file.to_owned()))?
            }
            Some(quant) => is_word(quant).then(|| HubChoice::Quant(quant.to_ascii_uppercase()))?,
        };
        Some(Self { owner: owner.to_owned(), repo: repo.to_owned(), choice })
    }

    fn default_name(&self) -> Option<ModelName> {
        let tag = match &self.choice {
            HubChoice::Best => "latest",
            HubChoice::Quant(quant) => quant,
            HubChoice::File(file) => file.rsplit('/').next()?.get(..).map(|file| file.trim_end_matches(".gguf"))?,
        };
        ModelName::from_loose_text(&format!("{}/{}", self.owner, self.repo), tag)
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "hf:{}/{}", self.owner, self.repo)?;
        match &self.choice {
            HubChoice::Best => Ok(()),
            HubChoice::Quant(choice) | HubChoice::File(choice) => write!(formatter, ":{choice}"),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(formatter, "{}", path.display()),
            Self::Name(name) => formatter.write_str(&name.short()),
            Self::Hub(hub) => hub.fmt(formatter),
            Self::Url(url) => formatter.write_str(&without_secrets(url)),
        }
    }
}

fn url(text: &str) -> Result<Reference, ReferenceError> {
    let is_plain = text.chars().all(|c| !c.is_control() && c != ' ');
    let host = text.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    if !is_plain || host.is_empty() {
        return Err(ReferenceError::Url { text: printable(&without_secrets(text)) });
    }
    Ok(Reference::Url(text.to_owned()))
}

/// The path of an address, without query and fragment.
pub(crate) fn path_of_url(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default()
}

/// An address without user, password and query, which may hold keys: for messages and manifests.
pub(crate) fn without_secrets(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = bare.split_once("://") else { return bare.to_owned() };
    let (host, path) = rest.find('/').and_then(|at| rest.split_at_checked(at)).unwrap_or((rest, ""));
    let host = host.rsplit('@').next().unwrap_or(host);
    format!("{scheme}://{host}{path}")
}

/// `SmolLM2-135M-Instruct.Q4_1.gguf` is `smollm2-135m-instruct:q4_1`.
fn name_of_file(file: &str) -> Option<ModelName> {
    let ending = file.len().checked_sub(".gguf".len()).and_then(|at| file.split_at_checked(at));
    let stem = ending.filter(|(_, end)| end.eq_ignore_ascii_case(".gguf")).map_or(file, |(stem, _)| stem);
    let quant = stem.rsplit_once(['.', '-']).filter(|(_, tail)| is_file_type_name(tail));
    let (base, tag) = quant.unwrap_or((stem, "latest"));
    ModelName::from_loose_text(&base.replace('/', "-"), tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_told_apart_and_printed_back() {
        for (text, name) in [
            ("/models/Big Model.Q8_0.gguf", "big-model:q8_0"),
            ("./x", "x:latest"),
            ("model.gguf", "model:latest"),
            ("dir/Some-Model-Q4_K_M.GGUF", "some-model:q4_k_m"),
            ("smollm2:135m", "smollm2:135m"),
            ("hf:Owner/Repo-GGUF", "owner/repo-gguf:latest"),
            ("hf:Owner/Repo:Q4_K_M", "owner/repo:q4_k_m"),
            ("hf:Owner/Repo:sub/file.Q4_0.gguf", "owner/repo:file.q4_0"),
            ("https://example.org/a/b/tiny-f16.gguf", "tiny:f16"),
        ] {
            let reference = Reference::parse(text).unwrap();
            assert_eq!(reference.to_string(), text);
            assert_eq!(reference.default_name().map(|name| name.to_string()).as_deref(), Some(name), "{text}");
        }
        assert_eq!(Reference::parse("hf.co/o/r:q4_0").unwrap().to_string(), "hf:o/r:Q4_0");
        assert!(matches!(Reference::parse("./x"), Ok(Reference::Path(_))));
        assert!(matches!(Reference::parse("HTTPS://h/x.gguf"), Ok(Reference::Url(_))));
    }

    #[test]
    fn what_names_nothing_is_refused_with_an_example() {
        for text in
            ["hf:", "hf:owner", "hf:owner/", "hf:owner/repo:", "hf:../..", "hf:a/b/c", "hf:a/b:../x.gguf", "hf:a/b:?x"]
        {
            let refused = Reference::parse(text).unwrap_err();
            assert!(refused.to_string().contains("hf:owner/repo"), "{text}: {refused}");
        }
        for text in ["http://", "https:///x", "https://h/a b", "https://h/\n"] {
            assert!(matches!(Reference::parse(text), Err(ReferenceError::Url { .. })), "{text}");
        }
        assert!(Reference::parse("").is_err() && Reference::parse("a b").is_err());
    }

    #[test]
    fn secrets_of_an_address_are_not_told() {
        let url = "https://user:word@example.org/m.gguf?token=secret#x";
        let reference = Reference::parse(url).unwrap();
        assert_eq!(reference.to_string(), "https://example.org/m.gguf");
        assert_eq!(reference.default_name().unwrap().to_string(), "m:latest");
    }
}
