//! What pages in a browser may do: nothing, unless their origin was allowed.
//!
//! A middleware for all routes. A server on the loopback without keys is open to every program of the machine, and a page
//! could reach it too if its name were made to point here (DNS rebinding): so it answers to its own names only. Without
//! keys, requests of pages that change something or compute (every method but the safe ones) are refused for all routes
//! at once, unless the page's origin was allowed: browsers send some of them without asking first. Pages of allowed
//! origins get the CORS headers that browsers ask for; nobody else does. It must never widen what a key guards.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::http::app::SharedApp;

/// What a page may send.
const METHODS: &str = "GET, POST, PUT, PATCH, DELETE, HEAD";
/// Headers of answers that a page may read beside the usual ones.
const EXPOSED: &str = "x-request-id, request-id, retry-after";
/// Characters of an origin that an error repeats.
const MOST_SHOWN: usize = 200;
/// Seconds for which a browser need not ask again.
const MAX_AGE: u32 = 600;

/// See the module.
pub(crate) struct Gate {
    /// Names besides those of the loopback; `None` if any name will do.
    hosts: Option<Vec<String>>,
    origins: Vec<HeaderValue>,
    /// Whether pages of other origins are refused; with keys, the key decides.
    refuses_pages: bool,
}

impl Gate {
    /// Names are checked where nothing else protects: on the loopback without keys.
    pub(crate) fn new(config: &ServerConfig, address: Option<SocketAddr>) -> Self {
        let is_loopback = address.is_some_and(|address| address.ip().to_canonical().is_loopback());
        let has_keys = !config.keys.is_empty() || !config.admin_keys.is_empty();
        let hosts = (is_loopback && !has_keys).then(|| config.allowed_hosts.clone());
        Self {
            hosts,
            origins: config.cors.iter().filter_map(|origin| origin.parse().ok()).collect(),
            refuses_pages: !has_keys,
        }
    }

    /// The origin of a page that wants more than to look, if it is neither allowed nor this server's own.
    fn foreign_page(&self, request: &Request) -> Option<String> {
        let headers = request.headers();
        if !self.refuses_pages || request.method().is_safe() || !is_from_page(headers) {
            return None;
        }
        if self.allowed_origin(headers).is_some() || is_same_origin(headers) {
            return None;
        }
        let origin = headers.get(header::ORIGIN).map(|origin| String::from_utf8_lossy(origin.as_bytes()).into_owned());
        Some(origin.unwrap_or_else(|| "unknown".to_owned()).chars().take(MOST_SHOWN).collect())
    }

    /// The name that a request was sent to, if it is not one of ours. No browser leaves it out.
    fn foreign_host(&self, request: &Request) -> Option<String> {
        let hosts = self.hosts.as_ref()?;
        let named = request.headers().get_all(header::HOST).iter();
        let named = named.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let target = request.uri().authority().map(|authority| authority.as_str().to_owned());
        named.chain(target).find(|host| !is_own(host, hosts))
    }

    /// The request's origin, if it is allowed.
    fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        self.origins.contains(origin).then(|| origin.clone())
    }
}

/// Whether a `Host` is the loopback's or was allowed by name, whatever its port.
fn is_own(host: &str, allowed: &[String]) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_loopback = name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    is_loopback
        || name == "localhost"
        || name.ends_with(".localhost")
        || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(&name))
}

/// Whether a page sent the request: browsers say so, and pages cannot prevent it.
pub(crate) fn is_from_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    headers.contains_key(header::ORIGIN) || site.is_some_and(|site| site != "none")
}

/// Whether the page came from the server itself, such as one that a proxy serves under the same name. Browsers say so;
/// those that do not still name the page's origin, which then is the name that the request was sent to.
fn is_same_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match (text(header::ORIGIN).and_then(|origin| origin.split_once("://")), text(header::HOST)) {
        (Some((_, page)), Some(host)) => page.eq_ignore_ascii_case(host),
        _ => false,
    }
}

/// Middleware: see the module.
pub(crate) async fn guard(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    if let Some(host) = app.gate.foreign_host(&request) {
        return ApiError::Host { host }.into_response();
    }
    if let Some(origin) = app.gate.foreign_page(&request) {
        return ApiError::Page { origin }.into_response();
    }
    let origin = app.gate.allowed_origin(request.headers());
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match (&origin, request.method() == Method::OPTIONS && asked.is_some()) {
        // Sent without a key, before the request itself.
        (Some(_), true) => preflight(request.headers()),
        _ => next.run(request).await,
    };
    if !app.gate.origins.is_empty() {
        response.headers_mut().append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
    response
}

fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE));
    // SDKs send headers of their own; an origin that is trusted may send any.
    if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::is_origin;

    #[test]
    fn only_names_of_the_loopback_and_allowed_ones_are_ours() {
        let allowed = ["poncho.example".to_owned()];
        for own in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.:1",
            "app.localhost:3000",
            "127.0.0.1",
            "127.9.8.7:80",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:80",
            "Poncho.Example:8080",
        ] {
            assert!(is_own(own, &allowed), "{own}");
        }
        for foreign in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example:8080",
            "notlocalhost",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "[2001:db8::1]:80",
            "poncho.example.evil",
            "[::1",
            "localhost@evil.example",
        ] {
            assert!(!is_own(foreign, &allowed), "{foreign}");
        }
    }

    #[test]
    fn names_are_checked_where_nothing_else_protects() {
        let with = |keys: &[&str], address: &str| {
            let config =
                ServerConfig { keys: keys.iter().map(|key| (*key).to_owned()).collect(), ..ServerConfig::default() };
            Gate::new(&config, Some(address.parse().unwrap())).hosts.is_some()
        };
        assert!(with(&[], "127.0.0.1:80") && with(&[], "[::1]:80"));
        assert!(!with(&["k"], "127.0.0.1:80") && !with(&[], "0.0.0.0:80"));
    }

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        for good in ["http://localhost:3000", "https://chat.example", "http://[::1]:5173", "app://obsidian.md"] {
            assert!(is_origin(good), "{good}");
        }
        for wrong in [
            "",
            "*",
            "null",
            "chat.example",
            "https://",
            "https://a/",
            "https://a/b",
            "https://A.example",
            "http://a b",
        ] {
            assert!(!is_origin(wrong), "{wrong}");
        }
    }
}
