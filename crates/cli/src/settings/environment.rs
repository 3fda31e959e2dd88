//! The environment variables of a process, so that tests can give others.
//!
//! Read by the layers of settings. It must never be changed: a process has one environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// The environment of a process; an empty variable counts as unset.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    pub(crate) fn of_process() -> Self {
        Self(std::env::vars_os().collect())
    }

    #[cfg(test)]
    pub(super) fn of(variables: &[(&str, &str)]) -> Self {
        Self(variables.iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<OsString> {
        self.0.get(OsStr::new(name)).filter(|value| !value.is_empty()).cloned()
    }

    /// Names of variables with a prefix.
    pub(super) fn starting_with(&self, prefix: &str) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|name| name.to_str()).filter(move |name| name.starts_with(prefix))
    }
}
