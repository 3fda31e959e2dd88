//! A server that answers exactly what a test wants: for replies that no model would write, and for waiting.
//!
//! One thread for each connection, one request a connection, as the client sends them. It ends with the test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// Longer than any step of a test takes on a loaded machine.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// How a reply ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With its numbers, as it should.
    Whole,
    /// As it should, but only when the test says so.
    Released,
    /// Not: it waits until the client goes away.
    Never,
    /// The connection breaks.
    Broken,
}

/// What is answered to a chat.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) pieces: Vec<&'static str>,
    pub(crate) end: End,
}

pub(crate) struct FakeServer {
    pub(crate) url: String,
    /// Bodies of posted requests with their paths.
    pub(crate) posted: Receiver<(String, Value)>,
    /// A client went away before its reply ended.
    pub(crate) left: Receiver<()>,
    /// Lets one reply end that waits for it.
    pub(crate) release: Sender<()>,
    script: Arc<Mutex<Script>>,
}

/// What the threads of a server share with its test.
struct Shared {
    post: Sender<(String, Value)>,
    leave: Sender<()>,
    released: Mutex<Receiver<()>>,
    script: Arc<Mutex<Script>>,
}

impl FakeServer {
    pub(crate) fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ((post, posted), (leave, left), (release, released)) = (channel(), channel(), channel());
        let script = Arc::new(Mutex::new(script));
        let shared = Shared { post, leave, released: Mutex::new(released), script: Arc::clone(&script) };
        let shared = Arc::new(shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer(stream.unwrap(), &shared));
            }
        });
        Self { url, posted, left, release, script }
    }

    /// What is answered from now on.
    pub(crate) fn now(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }
}

/// Writes may fail: the client of a test that is over is gone.
fn answer(mut stream: TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return };
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    if method == "POST" {
        let _ = shared.post.send((path.clone(), serde_json::from_slice(&body).unwrap()));
    }
    let whole = match path.as_str() {
        "/v1/chat/completions" => return reply(stream, reader, shared),
        "/v1/models" => Some(json!({"object": "list", "data": [{
            "id": "fake", "owned_by": "poncho", "context_length": 32768, "capabilities": ["completion", "tools"]
        }]})),
        "/api/models/unload" => Some(json!({"status": "unloaded"})),
        _ => None,
    };
    let (status, body) = match whole {
        Some(body) => ("200 OK", body),
        None => ("404 Not Found", json!({"error": {"message": "there is no such path"}})),
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
    let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
}

fn reply(mut stream: TcpStream, mut reader: BufReader<TcpStream>, shared: &Shared) {
    let script = shared.script.lock().unwrap().clone();
    let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    let mut send = |data: String| {
        let event = format!("data: {data}\n\n");
        let _ = write!(stream, "{:x}\r\n{event}\r\n", event.len());
    };
    for piece in &script.pieces {
        send(json!({"choices": [{"delta": {"content": piece}, "finish_reason": null}]}).to_string());
    }
    if script.end == End::Released {
        shared.released.lock().unwrap().recv_timeout(BOUND).unwrap();
    }
    match script.end {
        End::Broken => {}
        End::Never => {
            // Returns when the client closes its side.
            let _ = reader.read(&mut [0]);
            let _ = shared.leave.send(());
        }
        End::Whole | End::Released => {
            send(json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}).to_string());
            let usage =
                json!({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}});
            send(json!({"choices": [], "usage": usage, "poncho": {"hit": "partial"}}).to_string());
            send("[DONE]".to_owned());
            let _ = write!(stream, "0\r\n\r\n");
        }
    }
}
