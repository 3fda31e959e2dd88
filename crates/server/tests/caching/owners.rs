//! Stored responses belong to the key that made them.

use hyper::Method;
use poncho_server::ServerConfig;
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup};

const PATH: &str = "/v1/responses";

struct Client<'s> {
    server: &'s Server,
    key: &'static str,
}

impl Client<'_> {
    async fn send(&self, method: Method, path: &str, body: Value) -> Answer {
        let key = format!("Bearer {}", self.key);
        let headers = [("content-type", "application/json"), ("authorization", key.as_str())];
        self.server.send(method, path, &headers, body.to_string().into()).await
    }

    async fn create(&self, fields: Value) -> Answer {
        let mut body = json!({"model": "stub", "input": "Hello", "max_output_tokens": 4, "temperature": 0});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.send(Method::POST, PATH, body).await
    }
}

#[tokio::test]
async fn what_one_key_stored_another_does_not_find() {
    let config = ServerConfig { keys: vec!["one".into(), "two".into()], ..ServerConfig::default() };
    let server = Server::start(Setup { config, ..Setup::default() }).await;
    let (one, two) = (Client { server: &server, key: "one" }, Client { server: &server, key: "two" });
    let made = one.create(json!({})).await;
    assert_eq!(made.status, 200, "{}", made.text);
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let item = made.json()["output"][0]["id"].as_str().unwrap().to_owned();
    let own = format!("{PATH}/{id}");
    for (method, path) in [
        (Method::GET, own.clone()),
        (Method::DELETE, own.clone()),
        (Method::GET, format!("{own}/input_items")),
        (Method::POST, format!("{own}/cancel")),
    ] {
        let refused = two.send(method.clone(), &path, json!({})).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (404, &json!("response_not_found")), "{method} {path}");
        let unknown = two.send(method, &path.replace(&id, "resp_0"), json!({})).await;
        assert_eq!(unknown.text.replace("resp_0", &id), refused.text, "nothing reveals that it is there");
    }
    let previous = two.create(json!({"previous_response_id": id})).await;
    assert_eq!((previous.status, &previous.json()["error"]["code"]), (400, &json!("previous_response_not_found")));
    let reference = json!({"input": [{"type": "item_reference", "id": item}]});
    assert_eq!(two.create(reference.clone()).await.status, 404);
    assert_eq!(one.create(json!({"previous_response_id": id})).await.status, 200);
    assert_eq!(one.create(reference).await.status, 200);
    assert_eq!(one.send(Method::GET, &own, json!({})).await.json()["id"], id.as_str());
    assert_eq!(one.send(Method::DELETE, &own, json!({})).await.status, 200);
    assert_eq!(one.send(Method::GET, &own, json!({})).await.status, 404);
}
