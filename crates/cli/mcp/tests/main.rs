//! The MCP server over both transports, driven by the client of the official SDK, before a server with a stub model; and
//! that server as a client of MCP servers.

#[cfg(test)]
mod remote;
#[cfg(test)]
mod responses;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tools;
#[cfg(test)]
mod transports;
