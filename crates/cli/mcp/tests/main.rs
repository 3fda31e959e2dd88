//! The MCP server over both transports, driven by the client of the official SDK, before a server with a stub model.

#[cfg(test)]
mod support;
#[cfg(test)]
mod tools;
#[cfg(test)]
mod transports;
