//! Clients that keep their connection open and read nothing: they lose it, and nobody else notices.
//!
//! They ask for far more than sockets hold (several replies with many alternatives for each token), with a small buffer
//! on their side, so that the server has to wait for them.

use std::time::Duration;

use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{PATIENCE, Server, Setup, asking, eventually, with};

const PATH: &str = "/v1/chat/completions";

/// Bytes that a client which does not read has room for.
const LITTLE: u32 = 4096;

/// About 20 MB of answer, which no socket takes by itself.
fn huge() -> Value {
    with(
        asking("Say a lot"),
        &json!({"max_tokens": 3500, "ignore_eos": true, "n": 4, "logprobs": true, "top_logprobs": 20}),
    )
}

async fn server(max_connections: usize) -> Server {
    let write_timeout = Duration::from_millis(200);
    let config = ServerConfig { write_timeout, max_connections, ..ServerConfig::default() };
    Server::start(Setup { config, ..Setup::default() }).await
}

/// Sends a request over a connection with little room and does not read.
async fn send(server: &Server, body: &Value, room: u32) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(room).unwrap();
    let mut stream = socket.connect(server.address()).await.unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    stream
}

/// What can still be read of a connection that the server closed.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // The close throws away what was not taken, which shows as an error; what came before it counts.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("it stayed open");
    all
}

fn abandoned(page: &str) -> Option<&str> {
    let line = page.lines().find(|line| line.starts_with("poncho_replies_total") && line.contains("abandoned"))?;
    line.rsplit(' ').next()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_nobody_reads_is_cancelled() {
    let server = server(64).await;
    server.until_ready().await;
    // Held with far more written than sockets take, and far from its end, if it comes so far: on a busy machine it is cancelled
    // before that.
    server.faults.on_decode(2500, DecodeFault::Block);
    let stalled = send(&server, &with(huge(), &json!({"stream": true})), LITTLE).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let page = server.get("/metrics").await.text;
        if abandoned(&page) == Some("4") {
            assert!(page.contains("\nponcho_http_in_flight 0\n"), "{page}");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the server still waits for its reader: {page}");
    }
    server.faults.clear();
    server.faults.release();
    let model = server.model();
    eventually("the end of the requests", || model.status().queue_depth == 0).await;
    assert!(model.status().generated_tokens < 4 * 3500, "they were cancelled: {:?}", model.status());
    assert!(rest(stalled).await.len() < 10 << 20, "the rest was thrown away");
    server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_reads_gives_its_connection_back() {
    for streams in [false, true] {
        // One place: the next client comes in when the stalled one is out.
        let server = server(1).await;
        let stalled = send(&server, &with(huge(), &json!({"stream": streams})), LITTLE).await;
        server.chat(&with(asking("x"), &json!({"max_tokens": 1}))).await;
        let read = rest(stalled).await;
        assert!(read.len() < 10 << 20, "{} bytes arrived", read.len());
        assert!(read.is_empty() || read.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&read));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_do_not_notice() {
    let server = server(64).await;
    let mut stalled = Vec::new();
    for _ in 0..2 {
        stalled.push(send(&server, &with(huge(), &json!({"stream": true, "n": 2})), LITTLE).await);
    }
    let alone = Server::plain().await;
    for number in 0..4 {
        let body = with(asking(&format!("Stream {number}")), &json!({"max_tokens": 40}));
        let told = crate::support::joined(&server.stream(PATH, &body).await.chunks(), 0, "content");
        assert_eq!(alone.chat(&body).await["choices"][0]["message"]["content"], told);
    }
    let model = server.model();
    eventually("the end of all", || model.status().queue_depth == 0).await;
}

/// However slowly it reads, it is a reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_slowly_gets_everything() {
    let config = ServerConfig { write_timeout: Duration::from_secs(20), ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let body = with(huge(), &json!({"stream": true, "n": 1, "max_tokens": 2000}));
    let mut stream = send(&server, &body, 64 << 10).await;
    let mut text = Vec::new();
    let mut piece = vec![0; 1000];
    while !text.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n") {
        let count = tokio::time::timeout(PATIENCE, stream.read(&mut piece)).await.expect("it hangs").unwrap();
        assert_ne!(count, 0, "it ended early after {} bytes", text.len());
        text.extend_from_slice(&piece[..count]);
    }
    assert!(text.len() > 1 << 20, "{}", text.len());
}
