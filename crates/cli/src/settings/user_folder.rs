//! The folders below the user's home that Poncho keeps things in, by the rules of the XDG base directories.
//!
//! Used where a command needs a folder that nobody named. It reads the environment and makes no folder.

use std::ffi::OsString;
use std::path::PathBuf;

/// What is kept there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserFolder {
    /// What can be computed again.
    Cache,
    /// What was fetched or made.
    Data,
    /// What a program remembers of its runs.
    State,
}

impl UserFolder {
    /// The folder of Poncho in it; `None` for a user without a home.
    pub(crate) fn find(self) -> Option<PathBuf> {
        let (variable, _) = self.rule();
        self.of(set(variable), set("HOME"))
    }

    /// The variable that names it, and where it is in the home otherwise.
    const fn rule(self) -> (&'static str, &'static str) {
        match self {
            Self::Cache => ("XDG_CACHE_HOME", ".cache"),
            Self::Data => ("XDG_DATA_HOME", ".local/share"),
            Self::State => ("XDG_STATE_HOME", ".local/state"),
        }
    }

    /// A relative path in the variable is ignored, as the rules ask.
    fn of(self, named: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
        let (_, in_home) = self.rule();
        let named = named.map(PathBuf::from).filter(|path| path.is_absolute());
        let base = named.or_else(|| home.map(|home| PathBuf::from(home).join(in_home)))?;
        Some(base.join("poncho"))
    }
}

/// An environment variable; an empty one counts as unset.
pub(crate) fn set(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_follow_the_rules_of_the_platform() {
        for (kind, in_home) in [
            (UserFolder::Cache, "/h/.cache/poncho"),
            (UserFolder::Data, "/h/.local/share/poncho"),
            (UserFolder::State, "/h/.local/state/poncho"),
        ] {
            let folder = |named: Option<&str>, home: Option<&str>| kind.of(named.map(Into::into), home.map(Into::into));
            assert_eq!(folder(Some("/x"), Some("/h")), Some("/x/poncho".into()));
            assert_eq!(folder(Some("relative"), Some("/h")), Some(in_home.into()));
            assert_eq!(folder(None, Some("/h")), Some(in_home.into()));
            assert_eq!(folder(None, None), None);
        }
    }
}
