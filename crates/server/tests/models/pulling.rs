//! `/api/pull` over a library that fetches nothing: the lines, the shared download, the client that leaves.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use http_body_util::BodyExt;
use hyper::Method;
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::StubBackend;
use poncho_server::{LibraryError, LibraryModel, ModelLibrary, PullStep, ServerConfig};
use serde_json::{Value, json};

use crate::models::loading::gated_engine;
use crate::support::{PATIENCE, Server, eventually, read};

/// A download that goes on as far as a test lets it.
#[derive(Default)]
struct Source {
    /// Whether it may come to its end.
    may_end: Mutex<bool>,
    changed: Condvar,
    begun: AtomicUsize,
    ended: Mutex<Vec<Result<(), LibraryError>>>,
}

impl Source {
    fn open(&self) {
        *self.may_end.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn fetch(&self, name: &str, step: &mut dyn FnMut(PullStep) -> ControlFlow<()>) -> Result<(), LibraryError> {
        if name == "missing" {
            return Err(LibraryError::Unknown { name: name.to_owned(), message: "no such model".to_owned() });
        }
        let interrupted = || LibraryError::Interrupted { name: name.to_owned() };
        let mut tell = |told| if step(told).is_break() { Err(interrupted()) } else { Ok(()) };
        tell(PullStep::Manifest)?;
        let mut completed = 1;
        loop {
            tell(PullStep::Bytes { digest: "sha256:0123456789abcdef".to_owned(), total: Some(1000), completed })?;
            completed = (completed + 1).min(999);
            let may_end = self.may_end.lock().unwrap();
            let wait = std::time::Duration::from_millis(1);
            if *self.changed.wait_timeout(may_end, wait).unwrap().0 {
                break;
            }
        }
        tell(PullStep::Verifying)?;
        tell(PullStep::Writing)
    }
}

struct Shop(Arc<Source>);

impl ModelLibrary for Shop {
    fn find(&self, _name: &str) -> Result<Option<LibraryModel>, LibraryError> {
        Ok(None)
    }

    fn list(&self) -> Result<Vec<LibraryModel>, LibraryError> {
        Ok(Vec::new())
    }

    fn pull(&self, name: &str, step: &mut dyn FnMut(PullStep) -> ControlFlow<()>) -> Result<(), LibraryError> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let ended = self.0.fetch(name, step);
        self.0.ended.lock().unwrap().push(ended.clone());
        ended
    }
}

async fn server() -> (Server, Arc<Source>) {
    let source = Arc::new(Source::default());
    let (engine, _) = gated_engine(StubBackend::new(MemoryKind::Attention));
    let library: Option<Arc<dyn ModelLibrary>> = Some(Arc::new(Shop(Arc::clone(&source))));
    (Server::of(engine, ServerConfig { library, ..ServerConfig::default() }).await, source)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lines_are_those_that_clients_know() {
    let (server, source) = server().await;
    source.open();
    let answer = server.post("/api/pull", &json!({"model": "tiny"})).await;
    let lines = answer.lines();
    let statuses: Vec<&str> = lines.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!(statuses.first(), Some(&"pulling manifest"));
    let end = &statuses[statuses.len() - 3..];
    assert_eq!(end, ["verifying sha256 digest", "writing manifest", "success"]);
    for line in lines.iter().filter(|line| line.get("digest").is_some()) {
        assert_eq!((&line["digest"], &line["total"]), (&json!("sha256:0123456789abcdef"), &json!(1000)));
        assert_eq!(line["status"], "pulling 0123456789ab");
        assert!(line["completed"].as_u64().unwrap() <= 1000);
    }
    let whole = server.ask("/api/pull", &json!({"name": "tiny", "stream": false})).await;
    assert_eq!(whole, json!({"status": "success"}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_the_last_line_or_the_status() {
    let (server, _) = server().await;
    let lines = server.post("/api/pull", &json!({"model": "missing"})).await.lines();
    assert_eq!(lines.last().unwrap(), &json!({"error": "model 'missing' not found"}));
    let refused = server.post("/api/pull", &json!({"model": "missing", "stream": false})).await;
    assert_eq!((refused.status, refused.json()), (404, json!({"error": "model 'missing' not found"})));
    assert_eq!(server.post("/api/pull", &json!({})).await.status, 400);
    assert_eq!(server.post("/api/pull", &json!({"model": 5})).await.status, 400);
    let bare = Server::plain().await;
    let refused = bare.post("/api/pull", &json!({"model": "x"})).await;
    assert!(refused.status == 501 && refused.text.contains("--models-dir"), "{}", refused.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_share_a_download_and_the_last_one_ends_it() {
    let (server, source) = server().await;
    let json = [("content-type", "application/json")];
    let body = json!({"model": "tiny"}).to_string();
    let open = async || server.open(Method::POST, "/api/pull", &json, body.clone().into()).await;
    let (mut one, mut two) = (open().await, open().await);
    for stream in [&mut one, &mut two] {
        // Both hear of the bytes.
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let frame = tokio::time::timeout_at(deadline, stream.frame()).await.expect("no line").unwrap().unwrap();
            if String::from_utf8_lossy(frame.data_ref().unwrap()).contains("completed") {
                break;
            }
        }
    }
    assert_eq!(source.begun.load(Ordering::SeqCst), 1);
    drop(one);
    // The other one still hears something.
    assert!(two.frame().await.unwrap().is_ok());
    assert!(source.ended.lock().unwrap().is_empty(), "somebody still waits");
    drop(two);
    eventually("the end of the download", || {
        source.ended.lock().unwrap().as_slice() == [Err(LibraryError::Interrupted { name: "tiny".to_owned() })]
    })
    .await;
    source.open();
    let lines: Vec<Value> = read(open().await).await.lines();
    assert_eq!(lines.last().unwrap(), &json!({"status": "success"}));
    assert_eq!(source.begun.load(Ordering::SeqCst), 2, "asking again begins again");
}
