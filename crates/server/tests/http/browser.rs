//! Browsers: names that are not the server's, origins, preflights, and content types that a page may not use.

use hyper::Method;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, asking, with};

const PATH: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");
const PAGE: &str = "https://chat.example";

fn short() -> Vec<u8> {
    with(asking("x"), &json!({"max_tokens": 1})).to_string().into()
}

async fn configured(config: ServerConfig) -> Server {
    Server::start(Setup { config, ..Setup::default() }).await
}

#[tokio::test]
async fn a_foreign_name_is_refused_in_the_shape_of_the_family() {
    let server = configured(ServerConfig { allowed_hosts: vec!["poncho.lan".into()], ..ServerConfig::default() }).await;
    let send = async |path: &str, host: &str| server.send_as(host, Method::POST, path, &[JSON], short()).await;
    for own in ["localhost:8080", "127.0.0.1", "[::1]:80", "Poncho.LAN:8080"] {
        assert_eq!(send(PATH, own).await.status, 200, "{own}");
    }
    let refused = |answer: &Answer, path: &[&str]| {
        assert_eq!(answer.status, 403, "{}", answer.text);
        let message = path.iter().fold(answer.json(), |value, key| value[key].clone());
        let message = message.as_str().unwrap_or_default().to_owned();
        assert!(message.contains("evil.example") && message.contains("--allow-host"), "{}", answer.text);
    };
    let openai = send(PATH, "evil.example:8080").await;
    refused(&openai, &["error", "message"]);
    let error = &openai.json()["error"];
    assert_eq!((&error["code"], &error["type"]), (&json!("host_not_allowed"), &json!("permission_error")));
    let anthropic = send("/v1/messages", "evil.example").await;
    refused(&anthropic, &["error", "message"]);
    assert_eq!(anthropic.json()["error"]["type"], "permission_error");
    refused(&send("/api/chat", "evil.example").await, &["error"]);
    for path in ["/health", "/metrics", "/v1/models", "/nowhere"] {
        assert_eq!(server.send_as("evil.example", Method::GET, path, &[], Vec::new()).await.status, 403, "{path}");
    }
    assert_eq!(send(PATH, "localhost").await.status, 200, "the next request works");
}

#[tokio::test]
async fn with_a_key_any_name_will_do() {
    let server = configured(ServerConfig { keys: vec!["k".into()], ..ServerConfig::default() }).await;
    let headers = [JSON, ("authorization", "Bearer k")];
    assert_eq!(server.send_as("poncho.example", Method::POST, PATH, &headers, short()).await.status, 200);
}

fn preflight(origin: &str) -> [(&str, &str); 3] {
    [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
    ]
}

#[tokio::test]
async fn pages_get_nothing_unless_their_origin_is_allowed() {
    let closed = Server::plain().await;
    let asked = closed.send(Method::OPTIONS, PATH, &preflight(PAGE), Vec::new()).await;
    assert_eq!(asked.status, 405);
    let answered = closed.send(Method::POST, PATH, &[JSON, ("origin", PAGE)], short()).await;
    assert_eq!(answered.status, 403, "{}", answered.text);
    let is_cors = |name: &str| name.starts_with("access-control-") || name == "vary";
    for answer in [asked, answered] {
        assert!(!answer.headers.keys().any(|name| is_cors(name.as_str())), "{:?}", answer.headers);
    }
    let config = ServerConfig { cors: vec![PAGE.into()], keys: vec!["k".into()], ..ServerConfig::default() };
    let open = configured(config).await;
    let asked = open.send(Method::OPTIONS, PATH, &preflight(PAGE), Vec::new()).await;
    assert_eq!((asked.status, asked.text.as_str()), (204, ""), "without a key: browsers send none here");
    assert_eq!(asked.headers["access-control-allow-origin"], PAGE);
    assert_eq!(asked.headers["access-control-allow-headers"], "authorization,content-type,x-stainless-os");
    let methods: Vec<&str> = asked.headers["access-control-allow-methods"].to_str().unwrap().split(", ").collect();
    // Every method of the table of routes.
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] {
        assert!(methods.contains(&method), "{method}: {methods:?}");
    }
    assert_eq!(asked.headers["vary"], "origin");
    let key = ("authorization", "Bearer k");
    let answered = open.send(Method::POST, PATH, &[JSON, key, ("origin", PAGE)], short()).await;
    assert_eq!((answered.status, &answered.headers["access-control-allow-origin"]), (200, &PAGE.parse().unwrap()));
    assert!(!answered.headers.contains_key("access-control-allow-credentials"));
    // An error is readable too, whatever its family, or a page could not tell its user what is wrong.
    for path in [PATH, "/v1/messages", "/api/chat"] {
        let unauthorized = open.send(Method::POST, path, &[JSON, ("origin", PAGE)], short()).await;
        assert_eq!(
            (unauthorized.status, &unauthorized.headers["access-control-allow-origin"]),
            (401, &PAGE.parse().unwrap())
        );
    }
    for other in [
        "https://chat.example:8443",
        "http://chat.example",
        "https://chat.example.evil",
        "null",
        "https://Chat.example",
    ] {
        let asked = open.send(Method::OPTIONS, PATH, &preflight(other), Vec::new()).await;
        assert_eq!(asked.status, 405, "{other}");
        assert!(!asked.headers.contains_key("access-control-allow-origin"), "{other}");
        assert_eq!(asked.headers["vary"], "origin", "a cache between must not mix them up");
    }
}

#[tokio::test]
async fn ollamas_clients_need_not_announce_json_and_pages_must() {
    let server = Server::plain().await;
    let body = json!({"model": "stub", "prompt": "x", "stream": false, "options": {"num_predict": 1}}).to_string();
    let send = async |path: &str, headers: &[(&str, &str)]| {
        server.send(Method::POST, path, headers, body.clone().into()).await
    };
    let form = ("content-type", "application/x-www-form-urlencoded");
    for careless in [&[][..], &[form], &[("content-type", "application/json; charset=utf-8")]] {
        let answer = send("/api/generate", careless).await;
        assert_eq!(answer.status, 200, "{careless:?}: {}", answer.text);
    }
    assert_eq!(send("/api/show", &[form]).await.status, 200);
    for headers in [
        &[form, ("origin", "https://evil.example")][..],
        &[("origin", "null")],
        &[form, ("sec-fetch-site", "cross-site")],
    ] {
        let answer = send("/api/generate", headers).await;
        assert_eq!(answer.status, 403, "{headers:?}: {}", answer.text);
    }
    for (path, headers) in [
        ("/api/generate", &[("content-type", "text/plain")][..]),
        (PATH, &[form]),
        (PATH, &[]),
        ("/v1/messages", &[form]),
        ("/api/cache/clear", &[form]),
        ("/api/cache/gc", &[form]),
        ("/tokenize", &[]),
    ] {
        let answer = send(path, headers).await;
        assert_eq!(answer.status, 415, "{path} {headers:?}: {}", answer.text);
        let error: Value = answer.json()["error"].clone();
        let message = error["message"].as_str().or(error.as_str()).unwrap();
        assert!(message.contains("application/json"), "{message}");
    }
}

/// Hardening 10: each route looked at pages by itself or not at all, and uploads did not.
#[tokio::test]
async fn a_page_of_another_origin_changes_nothing_on_any_route() {
    let server = Server::plain().await;
    let (evil, text) = (("origin", "https://evil.example"), ("content-type", "text/plain"));
    let site = ("sec-fetch-site", "cross-site");
    let mut tried = 0;
    for (method, path) in documented(&server).await.into_iter().filter(|(method, _)| !method.is_safe()) {
        for headers in [&[evil, site, text][..], &[evil, JSON], &[evil], &[site], &[("origin", "null"), text]] {
            let answer = server.send(method.clone(), &path, headers, b"{}".to_vec()).await;
            assert_eq!(answer.status, 403, "{method} {path} {headers:?}: {}", answer.text);
        }
        tried += 1;
    }
    assert!(tried > 20, "the document was not read: {tried}");
    // Also where no route is yet, and where the method is not one of the route's.
    for (method, path) in [(Method::POST, "/nowhere"), (Method::PUT, PATH), (Method::PATCH, "/health")] {
        assert_eq!(server.send(method.clone(), path, &[evil], Vec::new()).await.status, 403, "{method} {path}");
    }
    // Looking stays possible, without the headers that would let the page read the answer.
    let looked = server.send(Method::GET, "/health", &[evil, site], Vec::new()).await;
    assert_eq!((looked.status, looked.headers.get("access-control-allow-origin")), (200, None));
}

#[tokio::test]
async fn pages_of_the_server_itself_and_of_allowed_origins_may_use_it() {
    let server = configured(ServerConfig { cors: vec![PAGE.into()], ..ServerConfig::default() }).await;
    let site = |value| ("sec-fetch-site", value);
    for (headers, status) in [
        (&[JSON, ("origin", PAGE), site("cross-site")][..], 200),
        (&[JSON, ("origin", "http://localhost:8080"), site("same-origin")], 200),
        (&[JSON, ("origin", "http://localhost")], 200),
        (&[JSON, site("none")], 200),
        (&[JSON], 200),
        (&[JSON, ("origin", "http://localhost:3000")], 403),
        (&[JSON, ("origin", "http://localhost"), site("same-site")], 403),
        (&[JSON, ("origin", "https://chat.example.evil")], 403),
    ] {
        let answer = server.send(Method::POST, PATH, headers, short()).await;
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text);
    }
    let error = server.send(Method::POST, PATH, &[JSON, ("origin", "null")], short()).await.json()["error"].clone();
    assert_eq!((&error["code"], &error["type"]), (&json!("origin_not_allowed"), &json!("permission_error")));
    // With a key the key decides: a page that knows it was given it.
    let keyed = configured(ServerConfig { keys: vec!["k".into()], ..ServerConfig::default() }).await;
    let key = ("authorization", "Bearer k");
    let foreign = ("origin", "https://other.example");
    assert_eq!(keyed.send(Method::POST, PATH, &[JSON, key, foreign], short()).await.status, 200);
    assert_eq!(keyed.send(Method::POST, PATH, &[JSON, foreign], short()).await.status, 401);
}

/// Every method and path of the API's document, which a test holds against the table of routes.
async fn documented(server: &Server) -> Vec<(Method, String)> {
    let document = server.get("/openapi.json").await.json();
    let mut found = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let path = path.replace("{id}", "x").replace("{digest}", "sha256:x");
            found.push((method.to_uppercase().parse().unwrap(), path));
        }
    }
    found
}
