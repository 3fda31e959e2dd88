//! Functions that a client offers in a named group, as Codex does with its own helpers and those of MCP servers.
//!
//! A template knows one list of functions, so the model sees each under a joined name; called by `tools` on the way in
//! and by `compose` and `messages`, which give the client the two names back. It must never guess a border inside a
//! name: only names that this request's groups have are taken apart.

use super::types::ToolBody;
use crate::http::body::Object;

/// The `type` of such a group.
pub(crate) const NAMESPACE: &str = "namespace";

/// A function of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grouped {
    /// What the model calls it.
    pub(crate) called: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// What the model calls a function of a group.
pub(crate) fn joined(namespace: &str, name: &str) -> String {
    format!("{namespace}__{name}")
}

/// All functions that a request offers in groups.
pub(crate) fn grouped(bodies: &[Object<ToolBody>]) -> Vec<Grouped> {
    let groups = bodies.iter().filter(|body| body.kind == NAMESPACE);
    let functions = groups.flat_map(|body| {
        let namespace = body.name.clone().unwrap_or_default();
        body.tools.iter().flatten().filter_map(move |tool| {
            let name = tool.name.clone()?;
            Some(Grouped { called: joined(&namespace, &name), namespace: namespace.clone(), name })
        })
    });
    functions.collect()
}
