//! The errors of this crate: those that end the server, those that a tool answers with, and those of remote servers.
//!
//! A tool's error is text for the model that called it. It must never hold a key.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why the server ends, or does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Other machines could reach it.
    #[error("{address} can be reached from other machines; MCP is served on the loopback only, such as 127.0.0.1:8090")]
    NotLoopback {
        /// The address that was asked for.
        address: SocketAddr,
    },
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}; choose another port")]
    Address {
        /// The address that was asked for.
        address: SocketAddr,
        /// The reason of the system.
        source: io::Error,
    },
    /// The accept loop ended.
    #[error("the MCP server ended: {0}")]
    Accept(#[from] io::Error),
    /// The first message of a client is wrong.
    #[error("the client does not speak MCP: {reason}; start this command from an MCP client, or use --listen")]
    Greeting {
        /// What the SDK says.
        reason: String,
    },
    /// The connection task died.
    #[error("the MCP connection broke: {reason}")]
    Broken {
        /// What the SDK says.
        reason: String,
    },
}

/// Why an MCP server cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// Not an address of HTTP.
    #[error("{url:?} is not the address of an MCP server; write it as https://tools.example/mcp")]
    Address {
        /// As it was given.
        url: String,
    },
    /// A header that HTTP cannot carry.
    #[error("the header {name:?} or its value cannot be sent; use visible characters")]
    Header {
        /// Its name.
        name: String,
    },
    /// The HTTP client.
    #[error("cannot set up HTTPS: {reason}; check the certificates of the system")]
    Client {
        /// What it says.
        reason: String,
    },
}

/// Why a tool has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    #[error("the arguments cannot be used: {reason}")]
    Arguments { reason: String },
    #[error("{reason}. Start one with `poncho serve MODEL`, or name its address with `poncho mcp --url URL`")]
    Unreachable { reason: String },
    #[error("{0:#}")]
    Refused(anyhow::Error),
    #[error("the server at {authority} has no {path}; is it a Poncho of this version?")]
    NoPath { authority: String, path: String },
    #[error("the answer of {path} cannot be read ({reason}); is it a Poncho of this version?")]
    Unreadable { path: String, reason: String },
    #[error("the server did not answer within {} s; try again, or look at its log", limit.as_secs())]
    Late { limit: Duration },
    #[error("the server has no model; install one with `poncho pull`")]
    NoModel,
    #[error("the reply broke off; see the log of the server")]
    BrokeOff,
    #[error("the call was cancelled")]
    Cancelled,
}

impl From<anyhow::Error> for ToolError {
    fn from(error: anyhow::Error) -> Self {
        if error.chain().any(|cause| cause.is::<io::Error>()) {
            return Self::Unreachable { reason: format!("{error:#}") };
        }
        Self::Refused(error)
    }
}
