//! What the transports add: cancelling, progress, keys, origins, and the loopback.

use std::sync::atomic::Ordering;
use std::time::Duration;

use poncho_engine::backend::stub::DecodeFault;
use poncho_mcp::{ServeError, listen, serve_streams};
use poncho_server::ServerConfig;
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest};
use rmcp::service::PeerRequestOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    ASKED, PATIENCE, Poncho, Session, connect, error, eventually, http_server, over_http, over_streams, result,
};

fn asking() -> CallToolRequestParams {
    CallToolRequestParams::new("ask").with_arguments(json!({"prompt": ASKED}).as_object().unwrap().clone())
}

async fn until_held(poncho: &Poncho) {
    let faults = poncho.faults.clone();
    assert!(tokio::task::spawn_blocking(move || faults.wait_until_held(PATIENCE)).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_prompt_reports_its_progress() {
    for is_http in [false, true] {
        // A server for each: what follows a reply in the background would shift the number of the decode.
        let config = ServerConfig { stream_keep_alive: Duration::from_millis(20), ..ServerConfig::default() };
        let poncho = Poncho::with(config, None).await;
        let session = if is_http { over_http(&poncho.client).await } else { over_streams(&poncho.client).await };
        poncho.faults.on_decode(poncho.faults.counts().decodes + 1, DecodeFault::Block);
        let heard = session.service().heard.clone();
        let asked = session.call_tool(asking());
        let waited = async {
            until_held(&poncho).await;
            let deadline = tokio::time::Instant::now() + PATIENCE;
            while heard.load(Ordering::SeqCst) < 2 {
                assert!(tokio::time::Instant::now() < deadline, "no progress was reported");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            poncho.faults.release();
        };
        let (reply, ()) = tokio::join!(asked, waited);
        assert_ne!(reply.unwrap().is_error, Some(true));
    }
}

/// Waits until the last request has ended because its client left.
async fn until_cancelled(session: &Session) {
    let is_over = |seen: &serde_json::Value| seen["requests"][0]["outcome"] == "abandoned";
    eventually(session, "requests", &json!({"limit": 1}), is_over).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_ends_the_request_at_the_server() {
    let poncho = Poncho::start().await;
    let session = over_streams(&poncho.client).await;
    poncho.faults.on_decode(poncho.faults.counts().decodes + 1, DecodeFault::Block);
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(asking()));
    let running = session.send_cancellable_request(request, PeerRequestOptions::default()).await.unwrap();
    until_held(&poncho).await;
    running.cancel(None).await.unwrap();
    until_cancelled(&session).await;
    poncho.faults.release();
    result(&session, "ask", json!({"prompt": ASKED, "max_tokens": 1})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_over_http_ends_its_request() {
    let poncho = Poncho::start().await;
    let url = http_server(&poncho.client).await;
    let leaving = connect(&url, None).await.unwrap();
    poncho.faults.on_decode(poncho.faults.counts().decodes + 1, DecodeFault::Block);
    let call = tokio::spawn(async move { leaving.call_tool(asking()).await.map(drop) });
    until_held(&poncho).await;
    call.abort();
    let staying = connect(&url, None).await.unwrap();
    until_cancelled(&staying).await;
    poncho.faults.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_used_and_never_lent() {
    let config = ServerConfig { keys: vec!["right".to_owned()], ..ServerConfig::default() };
    let poncho = Poncho::with(config, Some("right")).await;
    let streams = over_streams(&poncho.client).await;
    assert_eq!(result(&streams, "models", json!({})).await["models"][0]["name"], "stub");
    let url = http_server(&poncho.client).await;
    for wrong in [None, Some("wrong"), Some("righ"), Some("")] {
        assert!(connect(&url, wrong).await.is_err(), "{wrong:?} was let in");
    }
    let session = connect(&url, Some("right")).await.unwrap();
    assert_eq!(result(&session, "models", json!({})).await["models"][0]["name"], "stub");

    let keyless = poncho_client::Client::new(&poncho.client.url(), None).unwrap();
    let said = error(&over_streams(&keyless).await, "models", json!({})).await;
    assert!(said.contains("requires an API key") && !said.contains("right"), "{said}");
}

/// The status of a raw request.
async fn status(address: &str, headers: &str) -> u16 {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /mcp HTTP/1.1\r\n{headers}content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
        connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_borrowed_names_are_refused_over_http() {
    let poncho = Poncho::start().await;
    let url = http_server(&poncho.client).await;
    let address = url.strip_prefix("http://").unwrap().strip_suffix("/mcp").unwrap();
    for (headers, expected) in [
        (format!("host: {address}\r\n"), 200),
        ("host: localhost\r\n".to_owned(), 200),
        ("host: evil.example\r\n".to_owned(), 403),
        (format!("host: {address}\r\norigin: http://evil.example\r\n"), 403),
        (format!("host: {address}\r\norigin: null\r\n"), 403),
        (format!("host: {address}\r\norigin: http://{address}\r\n"), 403),
    ] {
        assert_eq!(status(address, &headers).await, expected, "{headers}");
    }
}

#[tokio::test]
async fn only_the_loopback_is_listened_on() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8090"] {
        let refused = listen(address.parse().unwrap()).await.unwrap_err();
        assert!(matches!(refused, ServeError::NotLoopback { .. }), "{refused}");
    }
    let taken = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let said = listen(taken.local_addr().unwrap()).await.unwrap_err().to_string();
    assert!(said.contains("cannot listen on 127.0.0.1:"), "{said}");
}

#[tokio::test]
async fn a_stream_that_ends_or_makes_no_sense_ends_the_server() {
    let client = poncho_client::Client::new("http://127.0.0.1:1", None).unwrap();
    serve_streams(client.clone(), tokio::io::empty(), tokio::io::sink()).await.unwrap();
    serve_streams(client, std::io::Cursor::new(b"nonsense\n".to_vec()), tokio::io::sink()).await.unwrap();
}
