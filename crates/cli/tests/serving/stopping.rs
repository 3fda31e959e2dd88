//! Stopping a server: once in order, twice at once.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::served::{Served, request, serve_command};
use crate::support::{poncho, run};

/// Waits until something holds, for as long as any machine may need.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(120), "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_second_signal_does_not_wait_for_requests_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(folder.path());
    // A request with an endless body is in flight until its time is up, a minute from now.
    let mut open = TcpStream::connect(served.address).unwrap();
    open.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{").unwrap();
    let in_flight = |served: &Served| {
        let (_, page) = served.ask("GET", "/metrics");
        page.lines().any(|line| line.starts_with("poncho_http_in_flight") && line.ends_with(" 1"))
    };
    until("the request is in flight", || in_flight(&served));
    served.interrupt();
    // Everyday use 11: 30 s of silence.
    assert_eq!(served.next_line(), "waiting for 1 reply (30 s), Ctrl-C again to stop\n");
    until("no more work is taken", || served.ask("GET", "/health/ready").0 == 503);
    assert_eq!(served.exit_code(), None, "it waits for the request");
    served.interrupt();
    let mut code = None;
    until("it ends", || {
        code = served.exit_code();
        code.is_some()
    });
    assert_eq!(code, Some(130));
}

/// `poncho serve MODEL | tee log`: Ctrl-C ends `tee` too.
#[test]
fn states_are_saved_even_if_nobody_reads_the_output_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("kv");
    let mut command = serve_command(&cache);
    command.args(["--port", "0"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (mut output, mut greeting) = (BufReader::new(child.stdout.take().unwrap()), String::new());
    while !greeting.contains("Ctrl-C") {
        assert!(output.read_line(&mut greeting).unwrap() > 0, "it did not start: {greeting}");
    }
    let url = greeting.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let address = url.trim_start_matches("http://").trim_end_matches("/v1").parse().unwrap();
    let body = json!({"model": "any", "max_tokens": 1, "prompt": "What is a poncho? ".repeat(60)}).to_string();
    assert_eq!(request(address, "POST", "/v1/completions", &body).0, 200);
    drop(output);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let stat = run(poncho().args(["cache", "stat", "--json", "--cache-dir"]).arg(&cache));
    let stat: Value = serde_json::from_str(&stat.stdout).unwrap();
    assert!(stat["rows"].as_u64().unwrap() > 0, "{stat}");
}
