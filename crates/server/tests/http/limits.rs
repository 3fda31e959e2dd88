//! Heads that are too long or too many, and clients that send drop by drop.

use std::time::Duration;

use poncho_server::ServerConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{PATIENCE, Server, Setup, asking, with};

const PATH: &str = "/v1/chat/completions";

/// Sends a text and reads until the server closes.
async fn talk(server: &Server, text: &str) -> String {
    let mut socket = server.connect().await;
    // The server may close before all of it was sent.
    let _ = socket.write_all(text.as_bytes()).await;
    rest(&mut socket).await
}

async fn rest(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A close that throws away what was not read shows as an error; what came before it counts.
    let _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("it stayed open");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn heads_are_bounded_in_length_and_in_number() {
    let server = Server::plain().await;
    let head = |more: &str| format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n");
    let headers = |count: usize| (0..count).map(|number| format!("x-{number}: y\r\n")).collect::<String>();
    let long = |bytes: usize| format!("x-long: {}\r\n", "y".repeat(bytes));
    assert!(talk(&server, &head(&headers(90))).await.starts_with("HTTP/1.1 200 "));
    assert!(talk(&server, &head(&headers(110))).await.starts_with("HTTP/1.1 431 "));
    assert!(talk(&server, &head(&long(20 << 10))).await.starts_with("HTTP/1.1 200 "));
    // A connection that is closed with bytes unread may lose the answer on its way.
    let refused =
        |answer: &str| answer.is_empty() || answer.starts_with("HTTP/1.1 431 ") || answer.starts_with("HTTP/1.1 414 ");
    let answer = talk(&server, &head(&long(100 << 10))).await;
    assert!(refused(&answer), "{answer}");
    let path = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "p".repeat(70 << 10));
    let answer = talk(&server, &path).await;
    assert!(refused(&answer), "{answer}");
    for broken in
        ["\0\0\0\0\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /health HTTP/1.1\r\nbad header\r\n\r\n", "{}\r\n\r\n"]
    {
        let answer = talk(&server, broken).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{broken:?}: {answer}");
    }
    server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
}

/// A long body is still read: the limit of the head is not the body's.
#[tokio::test]
async fn bodies_may_be_longer_than_heads() {
    let server = Server::plain().await;
    let answer = server.post("/tokenize", &json!({"content": "x".repeat(100 << 10)})).await;
    assert_eq!((answer.status, answer.json()["tokens"].as_array().unwrap().len()), (200, 100 << 10));
}

/// Each drop comes well within the limit, all of them do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_by_drop_does_not_help() {
    let limit = Duration::from_millis(300);
    let config = ServerConfig { header_timeout: limit, body_timeout: limit, ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let body = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
    );
    for (start, drop) in [("GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: ", "y"), (&*body, " ")] {
        let mut socket = server.connect().await;
        socket.write_all(start.as_bytes()).await.unwrap();
        let (mut reading, mut writing) = socket.split();
        let drip = async {
            // Ends when the server closed its side; far more drops than the limit allows.
            for _ in 0..10_000 {
                if writing.write_all(drop.as_bytes()).await.is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let mut answer = Vec::new();
        let closed = async {
            let _ = reading.read_to_end(&mut answer).await;
        };
        let given_up = tokio::time::timeout(PATIENCE, async {
            tokio::select! { () = drip => false, () = closed => true }
        });
        assert!(given_up.await.expect("it stayed open"), "the server did not close");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
}

/// Reads answers until `count` of them have come whole; all of them have a length.
async fn answers(socket: &mut TcpStream, count: usize) -> String {
    let (mut read, mut buffer) = (String::new(), [0; 4096]);
    let whole = |text: &str| {
        let mut parts = text.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.split_once("\r\n\r\n"));
        let ended = |(head, body): (&str, &str)| {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map(str::parse);
            length.is_none_or(|length| length == Ok(body.len()))
        };
        parts.clone().count() == count && parts.all(ended)
    };
    let all = async {
        while !whole(&read) {
            let taken = socket.read(&mut buffer).await.unwrap();
            assert!(taken > 0, "closed after {read:?}");
            read.push_str(&String::from_utf8_lossy(&buffer[..taken]));
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("it answers");
    read
}

/// A refusal does not wait for the body; a client that sends the head first must not lose its next request for it.
#[tokio::test]
async fn a_refused_request_leaves_its_connection_usable() {
    let config = ServerConfig { max_body: 1000, ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    for (path, length, status) in [("/v1/messages/nothing", 2, "404"), ("/health", 2, "405"), (PATH, 5000, "413")] {
        let mut socket = server.connect().await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        // The server has the head alone for a while.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let body = format!("{:length$}GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", "{}");
        socket.write_all(body.as_bytes()).await.unwrap();
        let read = answers(&mut socket, 2).await;
        assert!(read.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {read}");
        assert!(read.contains("HTTP/1.1 200 ") && !read.contains("connection: close"), "{path}: {read}");
    }
}

/// A body that does not come, or comes only on request, is not waited for: then the answer says that it closes.
#[tokio::test]
async fn a_refused_request_without_its_body_says_that_it_closes() {
    let server = Server::plain().await;
    for more in
        ["content-length: 2\r\n", "content-length: 2\r\nexpect: 100-continue\r\n", "content-length: 99999999\r\n"]
    {
        let mut socket = server.connect().await;
        let head = format!("POST /v1/messages/nothing HTTP/1.1\r\nhost: localhost\r\n{more}\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let read = rest(&mut socket).await;
        assert!(read.starts_with("HTTP/1.1 404 ") && read.contains("connection: close"), "{more}: {read}");
    }
}
