//! Sessions belong to the key that named them: the same name under two keys means two sessions, in every family.

use std::time::Duration;

use hyper::Method;
use poncho_engine::backend::stub::DecodeFault;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, asking, eventually, wait_until_held, with};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "Tell me of a session that nobody else may have";

struct Client<'s> {
    server: &'s Server,
    key: &'static str,
}

impl Client<'_> {
    async fn send(&self, method: Method, path: &str, session: Option<&str>, body: &Value) -> Answer {
        let key = format!("Bearer {}", self.key);
        let mut headers = vec![("content-type", "application/json"), ("authorization", key.as_str())];
        headers.extend(session.map(|name| ("x-poncho-session", name)));
        self.server.send(method, path, &headers, body.to_string().into()).await
    }

    /// Sends a request that must go well.
    async fn call(&self, path: &str, session: Option<&str>, body: &Value) {
        let answer = self.send(Method::POST, path, session, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }

    /// The sessions that it may see.
    async fn sessions(&self) -> Value {
        self.send(Method::GET, "/api/sessions", None, &json!({})).await.json()["sessions"].clone()
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.sessions().await;
        listed.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }
}

async fn server_with_two_keys() -> Server {
    let config = ServerConfig { keys: vec!["one".into(), "two".into()], ..ServerConfig::default() };
    Server::start(Setup { config, sequences: 16, ..Setup::default() }).await
}

/// The number of sessions that the engine holds for all owners.
fn held(server: &Server) -> usize {
    let model = server.model();
    model.sessions().len()
}

/// A request of each family; all of them also take a session.
fn calls(text: &str) -> [(&'static str, Value); 6] {
    let messages = json!([{"role": "user", "content": text}]);
    let short = json!({"num_predict": 4, "temperature": 0});
    [
        (CHAT, json!({"model": "stub", "messages": messages, "max_tokens": 4, "temperature": 0})),
        ("/v1/completions", json!({"model": "stub", "prompt": text, "max_tokens": 4, "temperature": 0})),
        ("/v1/responses", json!({"model": "stub", "input": text, "max_output_tokens": 4, "temperature": 0})),
        ("/v1/messages", json!({"model": "stub", "messages": messages, "max_tokens": 4, "temperature": 0})),
        ("/api/chat", json!({"model": "stub", "messages": messages, "stream": false, "options": short})),
        ("/api/generate", json!({"model": "stub", "prompt": text, "stream": false, "options": short})),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_under_another_key_is_another_session_in_every_family() {
    let server = server_with_two_keys().await;
    let (one, two) = (Client { server: &server, key: "one" }, Client { server: &server, key: "two" });
    for ((path, first), (_, second)) in calls(TEXT).into_iter().zip(calls("Something else, of another length")) {
        for in_header in [true, false] {
            let session = in_header.then_some("the same");
            let named = |body: &Value| match in_header {
                true => body.clone(),
                false => with(body.clone(), &json!({"session_id": "the same"})),
            };
            one.call(path, session, &named(&first)).await;
            let own = one.sessions().await;
            assert_eq!((own.as_array().unwrap().len(), &own[0]["id"]), (1, &json!("the same")), "{path}");
            assert_eq!(two.sessions().await, json!([]), "{path}");
            two.call(path, session, &named(&second)).await;
            assert_eq!(one.sessions().await, own, "{path}: what the other did is not seen in it");
            let other = two.sessions().await;
            assert_eq!((other.as_array().unwrap().len(), &other[0]["id"]), (1, &json!("the same")), "{path}");
            assert_ne!(other[0]["key"], own[0]["key"], "{path}: it holds another conversation");
            assert_eq!(held(&server), 2, "{path}");
            let end = async |client: &Client<'_>| {
                let ended = client.send(Method::DELETE, "/api/sessions/the%20same", None, &json!({})).await;
                assert_eq!((ended.status, &ended.json()["id"]), (200, &json!("the same")), "{}", ended.text);
            };
            end(&one).await;
            assert_eq!((one.sessions().await, two.sessions().await), (json!([]), other), "{path}");
            end(&two).await;
        }
    }
    assert_eq!(held(&server), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_can_neither_see_nor_end_a_session() {
    let server = server_with_two_keys().await;
    let (one, two) = (Client { server: &server, key: "one" }, Client { server: &server, key: "two" });
    let body = with(asking(TEXT), &json!({"max_tokens": 4, "session_id": "private"}));
    assert_eq!(one.send(Method::POST, CHAT, None, &body).await.status, 200);
    assert_eq!(two.names().await, Vec::<String>::new());
    // Also not by a name that the server itself may use for it.
    for name in ["private", "1private", "1%1Fprivate"] {
        let refused = two.send(Method::DELETE, &format!("/api/sessions/{name}"), None, &json!({})).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (404, &json!("session_not_found")), "{name}");
    }
    let unknown = two.send(Method::DELETE, "/api/sessions/nothing", None, &json!({})).await;
    let private = two.send(Method::DELETE, "/api/sessions/private", None, &json!({})).await;
    assert_eq!(unknown.text.replace("nothing", "private"), private.text, "nothing reveals that it is there");
    assert_eq!(one.names().await, ["private"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_busy_only_for_its_own_key() {
    let server = server_with_two_keys().await;
    let (one, two) = (Client { server: &server, key: "one" }, Client { server: &server, key: "two" });
    server.faults.on_decode(1, DecodeFault::Block);
    let body = with(asking(TEXT), &json!({"max_tokens": 4, "session_id": "s"}));
    let model = server.model();
    let meanwhile = async {
        wait_until_held(&server).await;
        eventually("both requests", || model.status().queue_depth == 2).await;
        server.faults.release();
    };
    let other = async {
        wait_until_held(&server).await;
        two.send(Method::POST, CHAT, None, &body).await
    };
    let (first, other, ()) = tokio::join!(one.send(Method::POST, CHAT, None, &body), other, meanwhile);
    assert_eq!((first.status, other.status), (200, 200), "{} {}", first.text, other.text);
    // The key's own second request gets to know it, by the name that the client gave. A request takes its place in the queue
    // before it reaches the worker, so the first one is kept busy for a second after that.
    server.faults.on_decode(1, DecodeFault::Block);
    server.faults.busy_decodes(Duration::from_millis(5));
    let longer = with(asking("Something new"), &json!({"max_tokens": 200, "ignore_eos": true, "session_id": "s"}));
    let again = async {
        wait_until_held(&server).await;
        let refused = tokio::join!(one.send(Method::POST, CHAT, None, &longer), async {
            eventually("the second request", || model.status().queue_depth == 2).await;
            server.faults.release();
        });
        refused.0
    };
    let (first, again) = tokio::join!(one.send(Method::POST, CHAT, None, &longer), again);
    assert_eq!((first.status, again.status, &again.json()["error"]["code"]), (200, 409, &json!("session_busy")));
    let message = again.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("the session s is busy"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_explanation_shows_no_text_of_another_key() {
    let server = server_with_two_keys().await;
    let (one, two) = (Client { server: &server, key: "one" }, Client { server: &server, key: "two" });
    let chat = |end: &str| with(asking(&format!("{TEXT} and {end}")), &json!({"max_tokens": 4}));
    assert_eq!(one.send(Method::POST, CHAT, None, &chat("the password is 4711")).await.status, 200);
    let guess = chat("the password is unknown to me");
    let explained = two.send(Method::POST, "/api/cache/explain", None, &guess).await;
    assert!(!explained.text.contains("4711"), "{}", explained.text);
    let explained = explained.json();
    assert_eq!((&explained["cause"], &explained["agree"]), (&json!("never_seen"), &json!(0)), "{explained}");
    assert!(["cached", "row", "offset"].iter().all(|field| explained[field].is_null()), "{explained}");
}
