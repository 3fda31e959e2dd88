//! One request with its times, percentiles, and a proxy that sends requests to a random server or cuts a line.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A reply and when it came.
pub(super) struct Timed {
    pub(super) first: Duration,
    /// From the first token to the end.
    pub(super) rest: Duration,
    pub(super) text: String,
    pub(super) usage: Value,
    /// What Poncho says of it.
    pub(super) facts: Value,
}

impl Timed {
    /// Tokens of the prompt that were computed.
    pub(super) fn computed(&self) -> u64 {
        let cached = self.usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        self.usage["prompt_tokens"].as_u64().unwrap() - cached
    }
}

/// Streams a completion.
pub(super) fn complete(address: SocketAddr, prompt: &str, tokens: usize) -> Timed {
    let body = json!({
        "model": "x", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true}, "poncho": true,
    })
    .to_string();
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_nodelay(true).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
    let length = body.len();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let started = Instant::now();
    connection.write_all((head + &body).as_bytes()).unwrap();
    let (mut first, mut text, mut usage, mut facts) = (None, String::new(), Value::Null, Value::Null);
    let mut all = String::new();
    for line in BufReader::new(connection).lines() {
        let line = line.unwrap();
        let event = line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
        let Some(event) = event else {
            all.push_str(&line);
            continue;
        };
        assert!(event.get("error").is_none_or(Value::is_null), "{event}");
        let piece = event["choices"][0]["text"].as_str().unwrap_or_default();
        // Before it come reports of how far the prompt is.
        if !piece.is_empty() {
            first.get_or_insert_with(|| started.elapsed());
        }
        text.push_str(piece);
        for (known, new) in [(&mut usage, &event["usage"]), (&mut facts, &event["poncho"])] {
            if new.is_object() {
                *known = new.clone();
            }
        }
    }
    assert!(usage.is_object(), "no usage came: {all}");
    // A reply may have no text, such as one token that is half a character.
    let first = first.unwrap_or_else(|| started.elapsed());
    Timed { first, rest: started.elapsed() - first, text, usage, facts }
}

pub(super) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The value below which this many percent of all values lie.
pub(super) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * percent).div_ceil(100).clamp(1, sorted.len()) - 1]
}

/// A proxy for TCP. Its threads end with the process of the test.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    cut: Arc<AtomicBool>,
}

impl Proxy {
    /// Passes everything on to one place, until the line is cut.
    pub(super) fn line(target: SocketAddr) -> Self {
        Self::start(move |_| target, false)
    }

    /// Sends each request to the next server of a random order.
    pub(super) fn random(targets: Vec<SocketAddr>) -> Self {
        Self::start(
            move |number| {
                let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                targets[usize::try_from(mixed >> 40).unwrap() % targets.len()]
            },
            true,
        )
    }

    fn start(target: impl Fn(usize) -> SocketAddr + Send + 'static, closes: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, cut) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let (shared, count) = (Arc::clone(&cut), AtomicUsize::new(0));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let target = target(count.fetch_add(1, Ordering::Relaxed));
                let cut = Arc::clone(&shared);
                std::thread::spawn(move || pass(client, target, &cut, closes));
            }
        });
        Self { address, cut }
    }

    /// Nothing passes while the line is cut; connections stay open, as with a machine that fell silent.
    pub(super) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

fn pass(client: TcpStream, target: SocketAddr, cut: &Arc<AtomicBool>, closes: bool) {
    wait_for(cut);
    let Ok(server) = TcpStream::connect(target) else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (Ok(from), Ok(to)) = (server.try_clone(), client.try_clone()) else { return };
    let back = Arc::clone(cut);
    std::thread::spawn(move || pump(from, to, &back, false));
    pump(client, server, cut, closes);
}

fn wait_for(cut: &AtomicBool) {
    while cut.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Copies until the end. `closes` asks the server to close after its reply, so that each request has a connection of its own.
fn pump(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool, mut closes: bool) {
    let (mut buffer, mut head) = (vec![0; 64 << 10], Vec::new());
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        wait_for(cut);
        let mut bytes = &buffer[..count];
        if closes {
            head.extend_from_slice(bytes);
            let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            head.splice(end..end, b"\r\nconnection: close".iter().copied());
            (bytes, closes) = (head.as_slice(), false);
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
