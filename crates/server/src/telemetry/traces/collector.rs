//! A trace collector: the OTLP exporter of the OpenTelemetry project, and the HTTP client that it sends with.
//!
//! Used by `export.rs`. The exporter reads `OTEL_EXPORTER_OTLP_HEADERS` by itself. What it holds must never be logged:
//! these headers are often keys.

use std::error::Error;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use reqwest::Url;
use reqwest::redirect::Policy;

/// See the module.
pub(super) struct Collector {
    /// The host and the port.
    name: String,
    exporter: SpanExporter,
    /// Why the last request had no answer.
    failure: Arc<Mutex<Option<String>>>,
}

impl Collector {
    /// Sends nothing yet. An error is about this machine.
    pub(super) fn new(url: &Url) -> Result<Self, String> {
        let failure = Arc::default();
        let client = Client { http: http_client(url)?, failure: Arc::clone(&failure) };
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(url.as_str())
            .with_protocol(Protocol::HttpJson)
            .with_http_client(client)
            // A collector that is away costs spans; later ones do not wait for it.
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| error.to_string())?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        exporter.set_resource(&Resource::builder_empty().with_service_name("poncho").with_attribute(version).build());
        Ok(Self { name: url.authority().to_owned(), exporter, failure })
    }

    /// For log lines.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Sends spans in one message. An error is why they were not taken.
    pub(super) async fn send(&self, spans: Vec<SpanData>) -> Result<(), String> {
        let sent = self.exporter.export(spans).await;
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        sent.map_err(|error| match error {
            OTelSdkError::InternalFailure(reason) => failure.unwrap_or(reason),
            other => other.to_string(),
        })
    }
}

/// Follows no redirect, which could carry a key elsewhere. Plain HTTP needs no proxy and no certificates.
fn http_client(url: &Url) -> Result<reqwest::Client, String> {
    // The client takes the provider of the process; another part may have installed the same one before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().redirect(Policy::none());
    let client = if is_here(url) { client.no_proxy() } else { client };
    let client = match url.scheme() {
        "https" => client.https_only(true),
        _ => client.no_proxy().tls_certs_only([]),
    };
    client.build().map_err(|error| cause(&error))
}

/// Whether a collector is on this machine, where no proxy finds it.
fn is_here(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Remembers why a request had no answer: the exporter itself only says "network error".
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    failure: Arc<Mutex<Option<String>>>,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        request.headers_mut().values_mut().for_each(|value| value.set_sensitive(true));
        let answer = self.http.send_bytes(request).await;
        if let Err(error) = &answer {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause(error.as_ref()));
        }
        answer
    }
}

/// The innermost cause, such as "Connection refused".
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_is_asked_for_a_collector_of_this_machine() {
        let is_here = |url: &str| is_here(&Url::parse(url).unwrap());
        for url in ["https://localhost:4318/v1/traces", "https://127.0.0.1:4318", "https://[::1]:4318"] {
            assert!(is_here(url), "{url}");
        }
        assert!(!is_here("https://localhost.example.com") && !is_here("https://192.0.2.1:4318"));
    }

    #[tokio::test]
    async fn a_collector_that_is_away_is_told_by_its_cause() {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = gone.local_addr().unwrap();
        drop(gone);
        for scheme in ["http", "https"] {
            let url = Url::parse(&format!("{scheme}://{address}/v1/traces")).unwrap();
            let collector = Collector::new(&url).unwrap();
            assert_eq!(collector.name(), address.to_string());
            let reason = collector.send(Vec::new()).await.unwrap_err();
            assert!(reason.contains("refused"), "{reason}");
        }
    }
}
