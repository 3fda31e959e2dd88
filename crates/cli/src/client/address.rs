//! The address and the key of the server that a command uses, from its flags and the settings of `poncho serve`.
//!
//! Used by `connection.rs` and by `poncho config`. A key of the settings file belongs to the server of that file, so it
//! must never be sent to a server that the user names with a URL.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::bail;

use super::args::ServerArgs;
use crate::settings::{ADDRESS_VARIABLE, Origin, configured};

/// Where `poncho serve` listens if nothing else is set.
const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: u16 = 8080;

/// What a command asks of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// What a client may do.
    Client,
    /// What the administrator may do: an administrator's key is preferred.
    Administrator,
}

/// The address of a server, and what chose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) url: String,
    /// The flags, variables and lines that the address comes from.
    pub(crate) sources: Vec<Origin>,
}

/// The server that the user names.
pub(crate) fn named(server: &ServerArgs) -> Option<Address> {
    if let Some(url) = &server.url {
        return Some(Address { url: url.clone(), sources: vec![Origin::Flag("--url".to_owned())] });
    }
    let url = std::env::var(ADDRESS_VARIABLE).ok().filter(|url| !url.is_empty())?;
    Some(Address { url, sources: vec![Origin::Variable(ADDRESS_VARIABLE.to_owned())] })
}

/// Where `poncho serve` listens with the effective settings. A server on all interfaces is reached over the loopback.
///
/// # Errors
/// If the settings file is not valid, or if the port is not known before the server starts.
pub(crate) fn of_settings() -> anyhow::Result<Address> {
    of(configured("host")?, configured("port")?)
}

/// A value and its source.
type Setting = Option<(OsString, Origin)>;

/// The same for these settings.
///
/// # Errors
/// If the port is not known before the server starts.
pub(crate) fn of(host: Setting, port: Setting) -> anyhow::Result<Address> {
    let mut sources: Vec<Origin> = Vec::new();
    for (_, origin) in host.iter().chain(&port) {
        if !sources.contains(origin) {
            sources.push(origin.clone());
        }
    }
    let host = host.map_or_else(|| DEFAULT_HOST.to_owned(), |(host, _)| host.to_string_lossy().into_owned());
    let host = match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        _ => host,
    };
    let port = match port.and_then(|(port, origin)| Some((port.to_str()?.parse::<u16>().ok()?, origin))) {
        Some((0, origin)) => {
            bail!("{origin} sets port 0, so the server picks a port when it starts; name its address with --url")
        }
        Some((port, _)) => port,
        None => DEFAULT_PORT,
    };
    Ok(Address { url: format!("http://{host}:{port}"), sources })
}

/// The key for a server: the flag over `PONCHO_API_KEY` over the settings file.
///
/// # Errors
/// If the settings file is not valid.
pub(crate) fn key(server: &ServerArgs, is_named: bool, access: Access) -> anyhow::Result<Option<String>> {
    if let Some(key) = server.api_key.clone().filter(|key| !key.is_empty()) {
        return Ok(Some(key));
    }
    let names = match access {
        Access::Client => ["api_key", "admin_key"],
        Access::Administrator => ["admin_key", "api_key"],
    };
    for name in names {
        let Some((key, origin)) = configured(name)? else { continue };
        // A variable of the user is meant for this command; a line of the file for the server that reads it.
        if !is_named || matches!(origin, Origin::Variable(_)) {
            return Ok(Some(key.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: &str, by: &str) -> Setting {
        Some((value.into(), Origin::Variable(by.to_owned())))
    }

    #[test]
    fn the_address_is_the_one_that_serve_listens_on() {
        let url = |host: Setting, port: Setting| of(host, port).unwrap().url;
        assert_eq!(url(None, None), "http://127.0.0.1:8080");
        assert_eq!(url(set("0.0.0.0", "a"), set("9000", "b")), "http://127.0.0.1:9000");
        assert_eq!(url(set("::", "a"), None), "http://[::1]:8080");
        assert_eq!(url(set("fe80::1", "a"), None), "http://[fe80::1]:8080");
        assert_eq!(url(set("box.test", "a"), None), "http://box.test:8080");
        let both = of(set("h", "OLLAMA_HOST"), set("1", "OLLAMA_HOST")).unwrap();
        assert_eq!(both.sources, [Origin::Variable("OLLAMA_HOST".to_owned())], "each source once");
    }

    #[test]
    fn a_port_that_the_server_picks_has_no_address() {
        let said = of(None, set("0", "PONCHO_PORT")).unwrap_err().to_string();
        assert!(said.contains("PONCHO_PORT sets port 0") && said.contains("--url"), "{said}");
    }
}
