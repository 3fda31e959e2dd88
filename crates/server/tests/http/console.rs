//! The files of the console: who gets the page, its headers, and that it needs no key.

use hyper::Method;
use poncho_server::ServerConfig;

use crate::support::{Server, Setup};

const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8");

#[tokio::test]
async fn a_browser_gets_the_page_and_others_the_line_that_they_look_for() {
    let config = ServerConfig { keys: vec!["secret".to_owned()], ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let page = server.send(Method::GET, "/", &[BROWSER], Vec::new()).await;
    assert_eq!((page.status, page.headers["content-type"].to_str().unwrap()), (200, "text/html; charset=utf-8"));
    assert!(page.text.contains("<title>Poncho</title>"), "{}", page.text);
    for accept in ["*/*", "application/json", "text/plain", ""] {
        let line = server.send(Method::GET, "/", &[("accept", accept)], Vec::new()).await;
        assert_eq!(line.text, "Poncho is running", "{accept}");
    }
    assert_eq!(server.get("/").await.text, "Poncho is running");
}

#[tokio::test]
async fn the_files_allow_nothing_but_this_server_and_are_sent_once() {
    let server = Server::plain().await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/console/app.js", "text/javascript; charset=utf-8"),
        ("/console/app.css", "text/css; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let file = server.send(Method::GET, path, &[BROWSER], Vec::new()).await;
        assert_eq!((file.status, file.headers["content-type"].to_str().unwrap()), (200, kind), "{path}");
        let policy = file.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        for exception in ["unsafe", "data:", "http:", "https:", "*", "nonce", "sha256"] {
            assert!(!policy.contains(exception), "{exception} in {policy}");
        }
        assert_eq!(file.headers["x-content-type-options"], "nosniff");
        let tag = file.headers["etag"].to_str().unwrap();
        let again = server.send(Method::GET, path, &[BROWSER, ("if-none-match", tag)], Vec::new()).await;
        assert_eq!((again.status, again.text.as_str()), (304, ""), "{path}");
    }
}
