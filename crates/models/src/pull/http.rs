//! One GET request, and what its failures mean.
//!
//! Used by the hub's listing and by downloads. Redirects are followed; a token goes to the host it was meant for only.

use std::io;

use ureq::http::{Response, StatusCode};
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::reference::without_secrets;

use super::error::PullError;
use super::options::PullOptions;

/// A certificate file in place of the built-in roots, as other tools read it.
const CERTIFICATES: &str = "SSL_CERT_FILE";

/// What to ask for.
#[derive(Debug, Default)]
pub(super) struct Get<'a> {
    pub(super) token: Option<&'a str>,
    /// From which byte on.
    pub(super) from: u64,
    /// Only if the file is still the one of this tag.
    pub(super) if_range: Option<&'a str>,
}

/// The client for an address; proxies are taken from the environment, but not for this machine.
pub(super) fn agent(options: &PullOptions, url: &str) -> Agent {
    let roots = std::env::var_os(CERTIFICATES).and_then(|path| std::fs::read(path).ok()).and_then(|pem| {
        let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect();
        (!certificates.is_empty()).then(|| RootCerts::new_with_certs(&certificates))
    });
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(10)
        .timeout_connect(Some(options.silence.min(std::time::Duration::from_secs(30))))
        .timeout_recv_response(Some(options.silence))
        .timeout_per_read(Some(options.silence))
        .user_agent(concat!("poncho/", env!("CARGO_PKG_VERSION")));
    if is_this_machine(url) {
        config = config.proxy(None);
    }
    if let Some(roots) = roots {
        config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
    }
    config.build().into()
}

fn is_this_machine(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    ["127.", "localhost", "[::1]"].iter().any(|known| host.starts_with(known))
}

/// Sends it. Answers other than 200, 206 and 416 are errors.
pub(super) fn get(agent: &Agent, url: &str, ask: &Get<'_>) -> Result<Response<Body>, PullError> {
    // Bytes are counted and hashed: they must come as they are.
    let mut request = agent.get(url).header("accept-encoding", "identity");
    if let Some(token) = ask.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    if ask.from > 0 {
        request = request.header("range", format!("bytes={}-", ask.from));
        if let Some(tag) = ask.if_range {
            request = request.header("if-range", tag);
        }
    }
    let response = request.call().map_err(|error| unreachable(url, &error))?;
    let status = response.status();
    let url = without_secrets(url);
    match status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(PullError::Denied { url, status: status.as_u16(), with_token: ask.token.is_some() })
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(PullError::NotFound { url, status: status.as_u16() }),
        status => Err(PullError::Server { url, status: status.as_u16() }),
    }
}

fn unreachable(url: &str, error: &ureq::Error) -> PullError {
    let reason = match error {
        ureq::Error::HostNotFound => "the host's name is unknown".to_owned(),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            "nothing listens there".to_owned()
        }
        ureq::Error::Timeout(_) => "it did not answer in time".to_owned(),
        error => error.to_string(),
    };
    PullError::Unreachable { url: without_secrets(url), reason }
}

/// A header as text.
pub(super) fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}
