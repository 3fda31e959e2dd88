//! Shared by the tests that need a server: the real binary on a free port, and a small client for it.
//!
//! It is killed when the test is over. Waiting ends with the server's own output, so a server that fails to start ends
//! the test with what it said.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use poncho_testkit::{ModelKind, model_path};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::poncho;

/// A server that listens.
pub(crate) struct Served {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: PathBuf,
    pub(crate) address: SocketAddr,
    /// All that it printed up to the line that says how to stop it.
    pub(crate) greeting: String,
}

/// `poncho serve` with a tiny model for one request at a time, ready for a port and more flags.
pub(crate) fn serve_command(cache: &Path) -> Command {
    let mut command = serve_without_model(cache);
    command.args(["--parallel", "1", "--model"]).arg(model_path(ModelKind::Attention));
    command
}

/// `poncho serve`, ready for a port, a model or none, and more flags.
pub(crate) fn serve_without_model(cache: &Path) -> Command {
    let mut command = poncho();
    command.args(["serve", "--ctx-size", "4096", "--threads", "1", "--cache-dir"]).arg(cache);
    command
}

impl Served {
    /// A tiny model on a free port.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_command(serve_command(&folder.join("kv")).args(["--port", "0"]), folder)
    }

    /// A model on a free port, for as many requests at a time as there are by default.
    pub(crate) fn start_model(model: &Path, folder: &Path) -> Self {
        let mut command = serve_without_model(&folder.join("kv"));
        Self::start_command(command.args(["--port", "0", "--cache-size", "20GiB", "--model"]).arg(model), folder)
    }

    /// Any command that becomes a server; its messages go to a file in the folder.
    pub(crate) fn start_command(command: &mut Command, folder: &Path) -> Self {
        let stderr = folder.join("stderr");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(std::fs::File::create(&stderr).unwrap());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        while !greeting.contains("Ctrl-C") {
            if stdout.read_line(&mut greeting).unwrap() == 0 {
                let _ = child.wait();
                panic!("it did not start: {greeting}{}", std::fs::read_to_string(&stderr).unwrap());
            }
        }
        let url = greeting.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
        let address = url.trim_start_matches("http://").trim_end_matches("/v1").parse().unwrap();
        Self { child, stdout, stderr, address, greeting }
    }

    /// The base URL of OpenAI's clients, as the greeting has it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn messages(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap()
    }

    /// The next line that it prints after the greeting.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Status and body of a request without one.
    pub(crate) fn ask(&self, method: &str, path: &str) -> (u16, String) {
        request(self.address, method, path, "")
    }

    /// The answer to a request with a JSON body, which must be good.
    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, text) = request(self.address, "POST", path, &body.to_string());
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Presses Ctrl-C.
    pub(crate) fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// `None` while it runs.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap())
    }

    /// Ends it as Ctrl-C does. Returns its exit code and what it printed last.
    pub(crate) fn stop(self) -> (Option<i32>, String) {
        self.end(Signal::INT)
    }

    /// The same with the signal that a service manager sends.
    pub(crate) fn terminate(self) -> (Option<i32>, String) {
        self.end(Signal::TERM)
    }

    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        let mut last = String::new();
        self.stdout.read_to_string(&mut last).unwrap();
        (self.child.wait().unwrap().code(), last)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have been stopped already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own: status and body.
pub(crate) fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let answer = exchange(address, &format!("{method} {path}"), "", body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => (status, unchunk(body)),
        false => (status, body.to_owned()),
    }
}

/// One request with more headers, each ended by a line break; the whole answer with its head.
pub(crate) fn exchange(address: SocketAddr, method_and_path: &str, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method_and_path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}connection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn unchunk(mut rest: &str) -> String {
    let mut whole = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        whole.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    whole
}
