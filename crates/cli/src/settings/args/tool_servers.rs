//! The flags for MCP servers that requests of `/v1/responses` may use.
//!
//! Filled by clap as a part of the settings of `serve`. A header's value comes from a variable of the environment, so that no
//! key is on a command line; it must never be shown.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use poncho_mcp::RemoteServer;
use poncho_server::ServerConfig;

use crate::settings::args::parse_wait;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ToolServerArgs {
    /// MCP server with tools that requests of /v1/responses may use; no other address is contacted; may be repeated
    #[arg(long, value_name = "LABEL=URL", value_parser = parse_server)]
    pub(crate) mcp_server: Vec<(String, String)>,

    /// Header of all requests to such a server, with its value in an environment variable; may be repeated
    #[arg(long, value_name = "LABEL=HEADER:VARIABLE", value_parser = parse_header)]
    pub(crate) mcp_header: Vec<ToolHeader>,

    /// How long a call of such a tool may take
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_wait)]
    pub(crate) mcp_timeout: Duration,
}

/// A header of a server, and the variable with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolHeader {
    label: String,
    name: String,
    variable: String,
}

impl ToolServerArgs {
    /// Puts the servers into the settings of a server.
    pub(crate) fn set(&self, config: &mut ServerConfig) -> anyhow::Result<()> {
        config.tool_timeout = self.mcp_timeout;
        for (label, url) in &self.mcp_server {
            let own = self.mcp_header.iter().filter(|header| header.label == *label);
            let headers = own.map(ToolHeader::read).collect::<anyhow::Result<Vec<_>>>()?;
            let server = RemoteServer::new(url, &headers).with_context(|| format!("--mcp-server {label}"))?;
            if config.tool_servers.insert(label.clone(), Arc::new(server)).is_some() {
                bail!("--mcp-server {label} is given twice; remove one of them");
            }
        }
        match self.mcp_header.iter().find(|header| !config.tool_servers.contains_key(&header.label)) {
            Some(ToolHeader { label, .. }) => bail!("--mcp-header {label} has no --mcp-server {label}=URL; add it"),
            None => Ok(()),
        }
    }
}

impl ToolHeader {
    fn read(&self) -> anyhow::Result<(String, String)> {
        let Self { label, name, variable } = self;
        let value = std::env::var(variable);
        let value =
            value.with_context(|| format!("--mcp-header {label}={name}:{variable} needs {variable}; set it"))?;
        Ok((name.clone(), value))
    }
}

fn parse_server(text: &str) -> Result<(String, String), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    match text.split_once('=') {
        Some((label, url)) if !label.is_empty() && label.bytes().all(is_plain) && !url.is_empty() => {
            Ok((label.to_owned(), url.to_owned()))
        }
        _ => Err(format!("`{text}` is not an MCP server; write LABEL=URL, such as docs=https://docs.example/mcp")),
    }
}

fn parse_header(text: &str) -> Result<ToolHeader, String> {
    let parts = text.split_once('=').and_then(|(label, rest)| Some((label, rest.split_once(':')?)));
    match parts {
        Some((label, (name, variable))) if ![label, name, variable].contains(&"") => {
            Ok(ToolHeader { label: label.to_owned(), name: name.to_owned(), variable: variable.to_owned() })
        }
        _ => Err(format!(
            "`{text}` is not a header; write LABEL=HEADER:VARIABLE, such as docs=Authorization:DOCS_AUTHORIZATION"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(servers: &[&str], headers: &[&str]) -> ToolServerArgs {
        ToolServerArgs {
            mcp_server: servers.iter().map(|text| parse_server(text).unwrap()).collect(),
            mcp_header: headers.iter().map(|text| parse_header(text).unwrap()).collect(),
            mcp_timeout: Duration::from_secs(5),
        }
    }

    #[test]
    fn servers_are_listed_by_label_and_wrong_ones_are_refused() {
        let mut config = ServerConfig::default();
        args(&["docs=http://127.0.0.1:9/mcp?a=b", "web=https://web.test/mcp"], &[]).set(&mut config).unwrap();
        let urls: Vec<&str> = config.tool_servers.values().map(|server| server.url()).collect();
        assert_eq!(urls, ["http://127.0.0.1:9/mcp?a=b", "https://web.test/mcp"]);
        assert_eq!(config.tool_timeout, Duration::from_secs(5));
        let refused = |servers: &[&str], headers: &[&str]| {
            format!("{:#}", args(servers, headers).set(&mut ServerConfig::default()).unwrap_err())
        };
        assert!(refused(&["docs=ftp://x"], &[]).contains("https://tools.example/mcp"));
        assert!(refused(&["docs=http://x", "docs=http://y"], &[]).contains("twice"));
        assert!(refused(&[], &["docs=Authorization:PATH"]).contains("add it"));
        let unset = refused(&["docs=http://x"], &["docs=Authorization:PONCHO_TEST_THIS_IS_NOT_SET"]);
        assert!(unset.contains("PONCHO_TEST_THIS_IS_NOT_SET; set it"), "{unset}");
        assert!(refused(&["docs=http://x"], &["docs=two words:PATH"]).contains("two words"));
        for wrong in ["docs", "=http://x", "do cs=http://x", "docs="] {
            assert!(parse_server(wrong).unwrap_err().contains("LABEL=URL"), "{wrong}");
        }
        for wrong in ["docs", "docs=Authorization", "docs=:X", "=A:B"] {
            assert!(parse_header(wrong).unwrap_err().contains("LABEL=HEADER:VARIABLE"), "{wrong}");
        }
    }
}
