//! The address of a trace collector.
//!
//! Checked with the other settings; the exporter sends there. Plain HTTP only.

use axum::http::Uri;

use super::ConfigError;

/// Where a collector takes traces, below its address.
const TRACES: &str = "/v1/traces";

/// Where a collector listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// With the port, for the `Host` header.
    pub(crate) authority: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
}

impl Endpoint {
    /// Reads `http://host[:port][/path]`.
    pub(crate) fn read(url: &str) -> Result<Self, ConfigError> {
        let wrong = |reason: &'static str| ConfigError::Endpoint { url: url.to_owned(), reason };
        let uri: Uri = url.trim().parse().map_err(|_| wrong("it is not a valid address"))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong("it does not begin with http://"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(wrong("it may only have a host, a port and a path"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let path = format!("{}{TRACES}", uri.path().trim_end_matches('/'));
        Ok(Self { authority: authority.to_string(), host, port: authority.port_u16().unwrap_or(80), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_addresses_are_taken() {
        let read = |url: &str| Endpoint::read(url).map(|endpoint| (endpoint.host, endpoint.port, endpoint.path));
        assert_eq!(read("http://localhost:4318"), Ok(("localhost".into(), 4318, "/v1/traces".into())));
        assert_eq!(read("http://[::1]:4318/"), Ok(("::1".into(), 4318, "/v1/traces".into())));
        assert_eq!(read(" http://collector/otel/ "), Ok(("collector".into(), 80, "/otel/v1/traces".into())));
        for wrong in ["", "localhost:4318", "https://x", "http://", "http://user:pw@x", "http://x?a=b", "http://x y"] {
            assert!(read(wrong).unwrap_err().to_string().contains("http://"), "{wrong}");
        }
    }
}
