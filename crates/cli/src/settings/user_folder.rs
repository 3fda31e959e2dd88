//! The folders of Poncho in the home of the user, by the XDG base directory specification.
//!
//! Used if no folder is named. It reads the environment and creates no folder.

use std::ffi::OsString;
use std::path::PathBuf;

/// The kind of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserFolder {
    /// Data that can be computed again.
    Cache,
    /// Data that was downloaded or created.
    Data,
    /// State such as a history.
    State,
}

impl UserFolder {
    /// The folder of Poncho; `None` for a user without a home.
    pub(crate) fn find(self) -> Option<PathBuf> {
        let (variable, _) = self.rule();
        self.of(set(variable), set("HOME"))
    }

    /// Its variable, and its default below the home.
    const fn rule(self) -> (&'static str, &'static str) {
        match self {
            Self::Cache => ("XDG_CACHE_HOME", ".cache"),
            Self::Data => ("XDG_DATA_HOME", ".local/share"),
            Self::State => ("XDG_STATE_HOME", ".local/state"),
        }
    }

    /// A relative path in the variable is ignored, as the specification demands.
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
