//! The address of a trace collector.
//!
//! Checked with the other settings; the exporter sends there. One with a password is refused: it would be logged.

use reqwest::Url;

use super::ConfigError;

/// Where a collector takes traces, below its address.
const TRACES: &str = "/v1/traces";

/// Reads `http://host[:port][/path]`, or the same with `https`. Returns the address that takes traces.
pub(crate) fn traces_url(given: &str) -> Result<Url, ConfigError> {
    let wrong = |reason: &'static str| ConfigError::Endpoint { url: given.to_owned(), reason };
    let mut url = Url::parse(given.trim()).map_err(|_| wrong("it is not a valid address"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("it does not begin with http:// or https://"));
    }
    let has_user = !url.username().is_empty() || url.password().is_some();
    if has_user || url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("it may only have a host, a port and a path"));
    }
    let path = format!("{}{TRACES}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_web_without_secrets_are_taken() {
        for (given, url, authority) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces", "localhost:4318"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces", "[::1]:4318"),
            (" http://collector/otel/ ", "http://collector/otel/v1/traces", "collector"),
            ("https://collector", "https://collector/v1/traces", "collector"),
            ("https://collector:4318/a%20b/", "https://collector:4318/a%20b/v1/traces", "collector:4318"),
        ] {
            let read = traces_url(given).unwrap();
            assert_eq!((read.as_str(), read.authority()), (url, authority), "{given}");
        }
        for wrong in [
            "",
            "localhost:4318",
            "ftp://x",
            "http://",
            "http://x:99999",
            "http://user:pw@x",
            "https://user@x",
            "http://x?a=b",
            "http://x#a",
            "http://x y",
        ] {
            assert!(traces_url(wrong).unwrap_err().to_string().contains("http://"), "{wrong}");
        }
    }
}
