//! Files that clients send: too large, too many at once, no room, and pages that may send none.

use std::sync::Arc;

use hyper::Method;
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::StubBackend;
use poncho_models::{Registry, Sha256};
use poncho_server::{RegistryLibrary, ServerConfig, UploadRules};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::models::loading::gated_engine;
use crate::support::{Answer, PATIENCE, Server, small_config};

struct Home {
    server: Server,
    folder: tempfile::TempDir,
}

impl Home {
    async fn new(uploads: UploadRules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = RegistryLibrary::new(Registry::open(folder.path()).unwrap(), Box::new(small_config));
        let config = ServerConfig { library: Some(Arc::new(library)), uploads, ..ServerConfig::default() };
        let engine = gated_engine(StubBackend::new(MemoryKind::Attention)).0;
        Self { server: Server::of(engine, config).await, folder }
    }

    async fn send(&self, bytes: &[u8], headers: &[(&str, &str)]) -> Answer {
        let path = format!("/api/blobs/sha256:{}", Sha256::of(bytes));
        self.server.send(Method::POST, &path, headers, bytes.to_vec()).await
    }

    /// Files that the folder holds.
    fn count(&self) -> usize {
        let count = |folder| std::fs::read_dir(self.folder.path().join(folder)).map_or(0, Iterator::count);
        count("uploads") + count("incoming") + count("blobs")
    }
}

/// Hardening 10: uploads had no bound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_too_large_or_has_no_room_is_refused() {
    let home = Home::new(UploadRules { most_bytes: 1000, reserve: 0, ..UploadRules::default() }).await;
    assert_eq!(home.send(&[1; 1000], &[]).await.status, 201);
    let refused = home.send(&[1; 1001], &[]).await;
    assert_eq!(refused.status, 413, "{}", refused.text);
    assert!(refused.json()["error"].as_str().unwrap().contains("--max-upload"), "{}", refused.text);
    assert_eq!(home.count(), 1);
    let full = Home::new(UploadRules { reserve: u64::MAX, ..UploadRules::default() }).await;
    let refused = full.send(&[1; 10], &[]).await;
    assert_eq!(refused.status, 507, "{}", refused.text);
    let message = refused.json()["error"].as_str().unwrap().to_owned();
    assert!(message.contains("free some space"), "{message}");
    assert!(!message.contains(&full.folder.path().display().to_string()), "no path of this machine: {message}");
    assert_eq!(full.count(), 0);
}

/// Hardening 10: as many uploads as a client liked could be open at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_some_files_may_arrive_at_once() {
    let home = Home::new(UploadRules { at_once: 1, reserve: 0, ..UploadRules::default() }).await;
    let bytes = b"slowly";
    let head = format!(
        "POST /api/blobs/sha256:{} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 6\r\n\r\n",
        Sha256::of(bytes)
    );
    let mut socket = home.server.connect().await;
    socket.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the bytes once it has a place for them.
    let mut asked = [0; 12];
    tokio::time::timeout(PATIENCE, socket.read_exact(&mut asked)).await.expect("nobody asked for the file").unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100");
    let refused = home.send(b"other", &[]).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert_eq!(refused.headers["retry-after"], "1");
    socket.write_all(bytes).await.unwrap();
    let mut rest = String::new();
    tokio::time::timeout(PATIENCE, socket.read_to_string(&mut rest)).await.expect("no answer").unwrap();
    assert!(rest.contains("HTTP/1.1 201"), "{rest}");
    assert_eq!(home.send(b"other", &[]).await.status, 201, "its place is free again");
}

/// Hardening 10: a page of any origin could fill the disk of a server without keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_cannot_send_files() {
    let home = Home::new(UploadRules { reserve: 0, ..UploadRules::default() }).await;
    let evil = ("origin", "https://evil.example");
    for headers in [
        &[evil, ("sec-fetch-site", "cross-site"), ("content-type", "text/plain")][..],
        &[evil],
        &[("sec-fetch-site", "same-site")],
        &[("origin", "null")],
    ] {
        let refused = home.send(b"junk", headers).await;
        assert_eq!(refused.status, 403, "{headers:?}: {}", refused.text);
        assert!(refused.json()["error"].as_str().unwrap().contains("--cors"), "{}", refused.text);
    }
    assert_eq!(home.count(), 0);
    assert_eq!(home.send(b"junk", &[("content-type", "text/plain")]).await.status, 201, "a program may");
}
