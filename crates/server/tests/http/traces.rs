//! Traces: a collector on the loopback gets the spans of a request, and one that is away holds nobody up.

use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::support::{PATIENCE, Server, Setup, asking, eventually, wait_until_held, with};

const PATH: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// Keeps every span that it is sent.
#[derive(Clone)]
struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/otel", listener.local_addr().unwrap());
        let collector = Self { url, spans: Arc::default() };
        let spans = Arc::clone(&collector.spans);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let spans = Arc::clone(&spans);
                let service = service_fn(move |request| take(request, Arc::clone(&spans)));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        collector
    }

    fn spans(&self) -> Vec<Value> {
        self.spans.lock().unwrap().clone()
    }

    /// The spans of a trace, once `count` of them have arrived.
    async fn of_trace(&self, trace: &str, count: usize) -> Vec<Value> {
        let own = || self.spans().into_iter().filter(|span| span["traceId"] == trace).collect::<Vec<Value>>();
        eventually("the spans", || own().len() >= count).await;
        own()
    }
}

async fn take(
    request: Request<Incoming>,
    spans: Arc<Mutex<Vec<Value>>>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/otel/v1/traces"));
    assert_eq!(request.headers()["content-type"], "application/json");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let resource = &body["resourceSpans"][0];
    assert_eq!(attribute(&resource["resource"], "service.name"), &json!({"stringValue": "poncho"}));
    let version = json!({"stringValue": env!("CARGO_PKG_VERSION")});
    assert_eq!(attribute(&resource["resource"], "service.version"), &version);
    assert_eq!(resource["scopeSpans"][0]["scope"]["name"], "poncho-server");
    let sent = resource["scopeSpans"][0]["spans"].as_array().unwrap();
    spans.lock().unwrap().extend(sent.iter().cloned());
    Ok(Response::new(Full::new(Bytes::from_static(b"{}"))))
}

async fn traced(url: &str) -> Server {
    let config = ServerConfig { otlp_endpoint: Some(url.to_owned()), ..ServerConfig::default() };
    Server::start(Setup { config, sequences: 1, ..Setup::default() }).await
}

async fn send(server: &Server, traceparent: &str, body: &Value) -> u16 {
    let headers = [JSON, ("traceparent", traceparent)];
    server.send(Method::POST, PATH, &headers, body.to_string().into()).await.status
}

fn short(user: &str) -> Value {
    with(asking(user), &json!({"max_tokens": 4, "ignore_eos": true}))
}

fn named<'s>(spans: &'s [Value], name: &str) -> &'s Value {
    let found: Vec<&Value> = spans.iter().filter(|span| span["name"] == name).collect();
    assert_eq!(found.len(), 1, "{name} in {spans:#?}");
    found[0]
}

fn nanos(span: &Value, field: &str) -> u128 {
    span[field].as_str().unwrap().parse().unwrap()
}

fn attribute<'s>(span: &'s Value, key: &str) -> &'s Value {
    let all = span["attributes"].as_array().unwrap();
    &all.iter().find(|attribute| attribute["key"] == key).unwrap_or_else(|| panic!("{key} in {span}"))["value"]
}

#[tokio::test]
async fn a_request_becomes_the_spans_of_its_callers_trace() {
    let collector = Collector::start().await;
    let server = traced(&collector.url).await;
    for stream in [false, true] {
        let body = with(short("Tell me a secret"), &json!({"stream": stream}));
        assert_eq!(send(&server, &format!("00-{TRACE}-{CALLER}-01"), &body).await, 200);
        let spans = collector.of_trace(TRACE, 6).await;
        assert_eq!(spans.len(), 6, "{spans:#?}");
        let root = named(&spans, "POST /v1/chat/completions");
        assert_eq!((&root["parentSpanId"], &root["kind"]), (&json!(CALLER), &json!(2)));
        assert_eq!(attribute(root, "http.response.status_code"), &json!({"intValue": "200"}));
        assert_eq!(attribute(root, "http.route"), &json!({"stringValue": PATH}));
        let steps = ["receive", "queue", "restore", "prefill", "decode"].map(|step| named(&spans, step));
        let mut before = nanos(root, "startTimeUnixNano");
        for step in steps {
            assert_eq!((&step["parentSpanId"], &step["kind"]), (&root["spanId"], &json!(1)));
            let (from, until) = (nanos(step, "startTimeUnixNano"), nanos(step, "endTimeUnixNano"));
            assert!(before <= from && from <= until, "{spans:#?}");
            before = from;
        }
        let hit = if stream { "sticky" } else { "cold" };
        assert_eq!(attribute(named(&spans, "restore"), "poncho.hit"), &json!({"stringValue": hit}));
        assert_eq!(attribute(named(&spans, "decode"), "gen_ai.usage.output_tokens"), &json!({"intValue": "4"}));
        let ids: std::collections::BTreeSet<&str> = spans.iter().map(|span| span["spanId"].as_str().unwrap()).collect();
        assert!(ids.len() == 6 && ids.iter().all(|id| id.len() == 16 && *id != CALLER));
        assert!(!format!("{spans:?}").contains("secret"), "no prompt in a trace");
        collector.spans.lock().unwrap().clear();
    }
}

#[tokio::test]
async fn requests_without_a_caller_get_traces_of_their_own_and_unwanted_ones_none() {
    let collector = Collector::start().await;
    let server = traced(&collector.url).await;
    assert_eq!(send(&server, &format!("00-{TRACE}-{CALLER}-00"), &short("Not me")).await, 200);
    assert_eq!(send(&server, "nonsense", &short("x")).await, 200);
    assert_eq!(server.get("/nowhere").await.status, 404);
    eventually("all spans", || collector.spans().len() >= 7).await;
    let spans = collector.spans();
    let traces: std::collections::BTreeSet<&str> = spans.iter().map(|span| span["traceId"].as_str().unwrap()).collect();
    assert_eq!((spans.len(), traces.len()), (7, 2), "{spans:#?}");
    assert!(!traces.contains(TRACE), "its caller did not want it recorded");
    let lost = named(&spans, "GET unknown");
    assert_eq!((&lost["parentSpanId"], &lost["status"]["code"]), (&json!(""), &json!(0)));
    let page = server.get("/metrics").await.text;
    assert!(page.contains("\nponcho_trace_spans_dropped_total 0\n"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_whose_client_left_is_traced_too() {
    let collector = Collector::start().await;
    let server = traced(&collector.url).await;
    server.faults.on_decode(20, DecodeFault::Block);
    let body = with(asking("Hello"), &json!({"max_tokens": 3000, "ignore_eos": true, "stream": true}));
    let headers = [JSON, ("traceparent", &*format!("00-{TRACE}-{CALLER}-01"))];
    let response = server.open(Method::POST, PATH, &headers, body.to_string().into()).await;
    wait_until_held(&server).await;
    drop(response);
    server.faults.release();
    let spans = collector.of_trace(TRACE, 5).await;
    assert_eq!(attribute(named(&spans, "decode"), "poncho.outcome"), &json!({"stringValue": "abandoned"}));
    named(&spans, "POST /v1/chat/completions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_at_the_end_is_still_sent() {
    let collector = Collector::start().await;
    let mut server = traced(&collector.url).await;
    assert_eq!(send(&server, &format!("00-{TRACE}-{CALLER}-01"), &short("x")).await, 200);
    server.begin_shutdown();
    server.stopped().await;
    assert_eq!(collector.spans().len(), 6, "sent before the server returned");
}

/// How many spans were given up.
async fn dropped(server: &Server) -> u64 {
    let page = server.get("/metrics").await.text;
    let line = page.lines().find(|line| line.starts_with("poncho_trace_spans_dropped_total ")).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

async fn wait_until_dropped(server: &Server) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while dropped(server).await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "nothing was dropped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_with_https_gets_tls_and_never_plain_text() {
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = traced(&format!("https://{}", collector.local_addr().unwrap())).await;
    server.get("/health").await;
    let (mut stream, _) = tokio::time::timeout(PATIENCE, collector.accept()).await.unwrap().unwrap();
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head, [22, 3], "a handshake begins with these bytes");
    drop((stream, collector));
    wait_until_dropped(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_redirects_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let location = format!("http://{}/v1/traces", elsewhere.local_addr().unwrap());
    let collector = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = traced(&format!("http://{}", collector.local_addr().unwrap())).await;
    server.get("/health").await;
    let (stream, _) = tokio::time::timeout(PATIENCE, collector.accept()).await.unwrap().unwrap();
    let service = service_fn(move |_: Request<Incoming>| {
        let response = Response::builder().status(307).header("location", &location).body(Full::new(Bytes::new()));
        std::future::ready(response)
    });
    tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    wait_until_dropped(&server).await;
    let followed = tokio::time::timeout(std::time::Duration::from_millis(100), elsewhere.accept()).await;
    assert!(followed.is_err(), "the spans went to an address that nobody gave");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_or_silent_costs_spans_and_nothing_else() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let server = traced(&url).await;
    server.chat(&short("x")).await;
    wait_until_dropped(&server).await;
    // One that takes connections and never answers: the queue fills, and requests go on.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = traced(&format!("http://{}", silent.local_addr().unwrap())).await;
    let (_held, _) = {
        server.get("/health").await;
        tokio::time::timeout(PATIENCE, silent.accept()).await.unwrap().unwrap()
    };
    let mut sender = server.client().await;
    // More spans than the queue holds.
    for _ in 0..4200 {
        let request = Request::get("/health").header("host", "localhost").body(Full::new(Bytes::new())).unwrap();
        sender.ready().await.unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.unwrap();
    }
    assert!(dropped(&server).await > 0);
    server.chat(&short("still there")).await;
}
