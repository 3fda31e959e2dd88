//! The files of the console: a page, a script, a style sheet and an icon, with their headers.
//!
//! Called by the routes without a key: the files are the same for everybody and say nothing about this server. The policy
//! allows what comes from this server and nothing else, with no exception for inline scripts or styles. The page asks for
//! a key itself and sends it with every call.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use poncho_console::{File, ICON, PAGE, SCRIPT, STYLE};

/// The content security policy of every file.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Whether a request comes from a browser that opens a page.
pub(crate) fn wants_page(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "text/html"))
}

/// `GET /` of a browser.
pub(crate) fn page(headers: &HeaderMap) -> Response {
    answer(&PAGE, headers)
}

/// `GET /console/app.js`.
pub(crate) async fn script(headers: HeaderMap) -> Response {
    answer(&SCRIPT, &headers)
}

/// `GET /console/app.css`.
pub(crate) async fn style(headers: HeaderMap) -> Response {
    answer(&STYLE, &headers)
}

/// `GET /console/icon.svg`.
pub(crate) async fn icon(headers: HeaderMap) -> Response {
    answer(&ICON, &headers)
}

fn answer(file: &'static File, asked: &HeaderMap) -> Response {
    let is_known = asked.get_all(header::IF_NONE_MATCH).iter().any(|known| known == file.tag);
    let takes_gzip = asked.get_all(header::ACCEPT_ENCODING).iter().any(|taken| {
        let taken = taken.to_str().unwrap_or_default();
        taken.split(',').any(|name| name.split(';').next().is_some_and(|name| name.trim() == "gzip"))
    });
    let packed = file.gzip.filter(|_| takes_gzip);
    let mut response = match (is_known, packed) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, Some(packed)) => packed.into_response(),
        (false, None) => file.bytes.into_response(),
    };
    let headers = response.headers_mut();
    if packed.is_some() && !is_known {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let fixed = [
        (header::CONTENT_TYPE, file.kind),
        (header::ETAG, file.tag),
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept, accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
