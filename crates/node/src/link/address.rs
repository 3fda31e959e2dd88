//! The address of a node on the network: a host and a port.
//!
//! Read from flags; `link.rs` connects to it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    host: String,
    port: u16,
}

impl NodeAddress {
    /// The name or the address of the machine, without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is this machine, as far as the text says.
    #[must_use]
    pub fn is_this_machine(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl FromStr for NodeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not HOST:PORT, for example 10.0.0.7:7070 or gpu-1.example:7070");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(host) if host.parse::<IpAddr>().is_ok() => host,
            None if !host.is_empty() && !host.contains([':', '/', '@', ' ', '[', ']']) => host,
            Some(_) | None => return Err(wrong()),
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(formatter, "[{}]:{}", self.host, self.port);
        }
        write!(formatter, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, host, is_here) in [
            ("127.0.0.1:7070", "127.0.0.1", true),
            ("localhost:1", "localhost", true),
            ("[::1]:80", "::1", true),
            ("10.0.0.7:7070", "10.0.0.7", false),
            ("gpu-1.example:7070", "gpu-1.example", false),
        ] {
            let address: NodeAddress = text.parse().unwrap();
            assert_eq!((address.host(), address.is_this_machine(), address.to_string()), (host, is_here, text.into()));
        }
        for wrong in ["", "host", ":1", "host:", "host:99999", "::1:80", "http://host:80", "[host]:80", "a b:1"] {
            assert!(wrong.parse::<NodeAddress>().unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
    }
}
