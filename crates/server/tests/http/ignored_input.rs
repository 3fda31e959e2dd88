//! Everyday use 9: nothing that a request says is ignored silently. `docs/ignored-input.md` lists every place; each row of
//! its tables is sent to a server, whole and streamed, and the answer must be what the row says.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use hyper::Method;
use hyper::header::HeaderValue;
use poncho_models::{ModelName, Registry, ignore_progress};
use poncho_server::{LibraryError, LibraryModel, ModelLibrary, PullStep, RegistryLibrary, ServerConfig};
use poncho_testkit::{ModelKind, model_path};
use serde_json::{Value, json};

use crate::support::{Answer, Server, Setup, small_config};

const STREAMING: [&str; 7] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
    "/infill",
];

/// A row of the document.
#[derive(Debug)]
struct Row {
    method: Method,
    path: String,
    /// JSON that is added to a request, a header, or the query of the address.
    input: String,
    /// The code of a warning, or `refused`.
    answer: String,
    field: String,
}

fn rows() -> Vec<Row> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ignored-input.md");
    let text = fs::read_to_string(file).unwrap();
    let mut endpoint = None;
    let mut rows = Vec::new();
    for line in text.lines() {
        if line.starts_with('#') {
            let heading = line.strip_prefix("### `").and_then(|rest| rest.strip_suffix('`'));
            endpoint = heading.and_then(|heading| heading.split_once(' '));
        }
        let (Some((method, path)), Some(cells)) = (endpoint, line.strip_prefix("| `")) else { continue };
        let cells: Vec<&str> = cells.trim_end_matches(" |").split(" | ").map(|cell| cell.trim_matches('`')).collect();
        let [input, answer, field] = cells[..] else { panic!("{line}") };
        let [input, answer, field] = [input, answer, field].map(str::to_owned);
        rows.push(Row { method: method.parse().unwrap(), path: path.to_owned(), input, answer, field });
    }
    rows
}

/// A good request.
fn good(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    match path {
        "/v1/chat/completions" | "/v1/chat/completions/input_tokens" | "/api/cache/explain" | "/apply-template" => {
            json!({"model": "stub", "messages": messages, "max_tokens": 4})
        }
        "/v1/completions" => json!({"model": "stub", "prompt": "Hi", "max_tokens": 4}),
        "/v1/responses" => json!({"model": "stub", "input": "Hi", "max_output_tokens": 4}),
        "/v1/responses/input_tokens" => json!({"model": "stub", "input": "Hi"}),
        "/infill" => json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 4}),
        "/rerank" | "/v1/rerank" => json!({"model": "stub", "query": "a", "documents": ["b"]}),
        "/v1/messages" | "/v1/messages/count_tokens" => {
            json!({"model": "stub", "messages": messages, "max_tokens": 4})
        }
        "/v1/embeddings" | "/api/embed" => json!({"model": "stub", "input": "Hi"}),
        "/api/embeddings" => json!({"model": "stub", "prompt": "Hi"}),
        "/api/chat" | "/api/chat/input_tokens" => {
            json!({"model": "stub", "messages": messages, "options": {"num_predict": 4}})
        }
        "/api/generate" => json!({"model": "stub", "prompt": "Hi", "options": {"num_predict": 4}}),
        "/api/show" | "/api/models/load" | "/api/models/unload" => json!({"model": "stub"}),
        "/api/pull" => json!({"model": "new", "stream": false}),
        "/api/create" => json!({"model": "made", "from": "base"}),
        "/api/copy" => json!({"source": "base", "destination": "copy"}),
        "/api/delete" => json!({"model": "base"}),
        "/tokenize" => json!({"content": "Hi"}),
        "/detokenize" => json!({"tokens": [1]}),
        "/api/cache/evict" => json!({"bytes": 0}),
        "/api/cache/gc" | "/api/cache/clear" => json!({}),
        "/api/verify" => json!({"prompt": "a", "draft": "b"}),
        "/api/draft" => json!({"prompt": "a", "count": 1}),
        "/api/speculate" => json!({"draft_model": "stub", "prompt": "a", "max_tokens": 4}),
        "/api/adapters" => json!({"digest": format!("sha256:{}", "0".repeat(64))}),
        "/api/adapters/{id}" => json!({"scale": 1}),
        "/api/cache/rows/{id}/verify" => json!({}),
        other => panic!("{other} has no good request here; add one"),
    }
}

/// Adds fields, also inside of objects.
fn merge(body: &mut Value, more: &Value) {
    match (body, more) {
        (Value::Object(body), Value::Object(more)) => {
            for (name, value) in more {
                merge(body.entry(name).or_insert(Value::Null), value);
            }
        }
        (body, more) => *body = more.clone(),
    }
}

impl Row {
    /// The request, or `None` if the answer does not stream.
    async fn send(&self, server: &Server, response: &str, streams: bool) -> Option<Answer> {
        if self.method == Method::GET {
            assert!(self.input.starts_with('?'), "{self:?}");
            let path = format!("{}{}", self.path.replace("{id}", response), self.input);
            return if streams { None } else { Some(server.get(&path).await) };
        }
        let mut body = good(&self.path);
        let is_json = self.input.starts_with('{');
        if is_json {
            merge(&mut body, &serde_json::from_str(&self.input).unwrap_or_else(|error| panic!("{error}: {self:?}")));
        }
        if STREAMING.contains(&self.path.as_str()) {
            merge(&mut body, &json!({"stream": streams}));
        } else if streams {
            return None;
        }
        let mut headers = vec![("content-type", "application/json")];
        let is_query = self.input.starts_with('?');
        headers.extend(self.input.split_once(": ").filter(|_| !is_json && !is_query));
        let path = format!("{}{}", self.path.replace("{id}", "1"), if is_query { &self.input } else { "" });
        Some(server.send(self.method.clone(), &path, &headers, body.to_string().into()).await)
    }

    fn check(&self, answer: &Answer) {
        let text = &answer.text;
        if self.answer == "refused" {
            assert_eq!(answer.status, 400, "{self:?}: {text}");
            assert!(text.contains(&self.field), "{self:?}: {text}");
            return;
        }
        assert_eq!(answer.status, 200, "{self:?}: {text}");
        let warnings = warnings(answer);
        let fits = |warning: &Value| warning["code"] == self.answer.as_str() && warning["field"] == self.field.as_str();
        assert!(warnings.iter().any(fits), "{self:?}: {text}");
        for warning in &warnings {
            let message = warning["message"].as_str().unwrap();
            assert!(message.len() > 20 && message.contains([';', ':']), "it says what to do: {message}");
        }
    }
}

/// The warnings of an answer, which has them at its end and once.
fn warnings(answer: &Answer) -> Vec<Value> {
    let lines = answer.text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let found = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(Value::is_object);
    let reports = found.filter_map(|mut event| {
        let report =
            if event["response"].is_object() { &mut event["response"]["poncho"] } else { &mut event["poncho"] };
        Some(report["warnings"].take()).filter(Value::is_array)
    });
    let reports: Vec<Value> = reports.collect();
    assert!(reports.len() <= 1, "{}", answer.text);
    let in_body = reports.into_iter().flat_map(|report| report.as_array().cloned().unwrap_or_default());
    in_body.chain(answer.headers.get_all("warning").iter().map(of_header)).collect()
}

/// The warning of a header.
fn of_header(header: &HeaderValue) -> Value {
    let text = header.to_str().unwrap();
    let text = text.strip_prefix("299 poncho \"").and_then(|rest| rest.strip_suffix('"')).unwrap();
    let (code, message) = text.split_once(": ").unwrap();
    json!({"code": code, "field": message.split('`').nth(1), "message": message})
}

/// A response that is kept.
async fn stored_response(server: &Server) -> String {
    let stored = server.post("/v1/responses", &good("/v1/responses")).await.json();
    stored["id"].as_str().unwrap().to_owned()
}

/// A library with one model, which takes templates from clients.
fn library(folder: &Path) -> RegistryLibrary {
    let registry = Registry::open(folder).unwrap();
    let base = ModelName::parse("base").unwrap();
    registry.import(&model_path(ModelKind::Attention), &base, &mut ignore_progress).unwrap();
    let parsed = |template: &str| {
        if template.contains("endfor") { Ok(()) } else { Err("a for has no end".to_owned()) }
    };
    RegistryLibrary::new(registry, Box::new(small_config)).with_client_templates(true).with_template_check(parsed)
}

/// A library that finds and pulls what a test wants.
#[derive(Default)]
struct Shelf {
    model: Option<LibraryModel>,
}

impl ModelLibrary for Shelf {
    fn find(&self, name: &str) -> Result<Option<LibraryModel>, LibraryError> {
        Ok(self.model.clone().filter(|model| model.name() == name))
    }

    fn list(&self) -> Result<Vec<LibraryModel>, LibraryError> {
        Ok(self.model.clone().into_iter().collect())
    }

    fn pull(&self, _name: &str, _step: &mut dyn FnMut(PullStep) -> ControlFlow<()>) -> Result<(), LibraryError> {
        Ok(())
    }
}

async fn server(library: Option<Arc<dyn ModelLibrary>>, any_model: bool) -> Server {
    let config = ServerConfig { library, any_model, ..ServerConfig::default() };
    Server::start(Setup { config, fills_gaps: true, ..Setup::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_of_the_document_is_answered_as_it_says() {
    let rows = rows();
    assert!(rows.len() > 120, "{} rows were found", rows.len());
    let folder = tempfile::tempdir().unwrap();
    let serving = server(Some(Arc::new(library(folder.path()))), false).await;
    let pulling = server(Some(Arc::new(Shelf::default())), false).await;
    let response = stored_response(&serving).await;
    let mut checked = 0;
    for row in &rows {
        let server = if row.path == "/api/pull" { &pulling } else { &serving };
        for streams in [false, true] {
            if let Some(answer) = row.send(server, &response, streams).await {
                row.check(&answer);
                checked += 1;
            }
        }
    }
    assert!(checked > rows.len(), "rows of replies are checked twice");
}

/// The list is complete: an endpoint that takes a body answers to a field that it does not know, and the document says how.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_with_a_body_has_a_table() {
    let (rows, server) = (rows(), server(None, false).await);
    let document = server.get("/openapi.json").await.json();
    let mut missing = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            // Files are sent as they are.
            let is_json = operation["requestBody"]["content"]["application/json"].is_object();
            let is_row = |row: &&Row| row.path == *path && row.method.as_str().eq_ignore_ascii_case(method);
            let own: Vec<&Row> = rows.iter().filter(is_row).collect();
            let answers = |row: &&Row| row.answer == "unknown_field" || row.answer == "refused";
            if is_json && !own.iter().any(answers) {
                missing.push(format!("{} {path}", method.to_uppercase()));
            }
        }
    }
    assert!(missing.is_empty(), "docs/ignored-input.md has no misspelt field for {missing:?}");
    for path in ["/v1/chat/completions", "/v1/rerank", "/infill", "/api/cache/explain", "/v1/messages"] {
        assert!(document["paths"][path]["post"].is_object(), "{path}");
    }
}

/// The operations of the document: method, path with its places filled, a good body if it takes one.
fn operations(document: &Value, response: &str) -> Vec<(Method, String, Option<Value>)> {
    let mut all = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let is_json = operation["requestBody"]["content"]["application/json"].is_object();
            let id = if path.starts_with("/v1/responses/") { response } else { "1" };
            let filled = path.replace("{id}", id).replace("{digest}", "sha256:1");
            all.push((method.to_uppercase().parse().unwrap(), filled, is_json.then(|| good(path))));
        }
    }
    all.sort_by_key(|(method, _, _)| *method == Method::DELETE);
    all
}

async fn call(server: &Server, method: &Method, path: &str, body: Option<&Value>) -> Answer {
    let json = ("content-type", "application/json");
    let headers = if body.is_some() { vec![json] } else { Vec::new() };
    let body = body.map(Value::to_string).unwrap_or_default();
    server.send(method.clone(), path, &headers, body.into()).await
}

/// Every endpoint answers to a parameter that it does not have: with a warning, or with an error that names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_endpoint_ignores_an_unknown_parameter_silently() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(Some(Arc::new(library(folder.path()))), false).await;
    let document = server.get("/openapi.json").await.json();
    let response = stored_response(&server).await;
    let operations = operations(&document, &response);
    assert!(operations.len() > 70, "{} operations were found", operations.len());
    let mut silent = Vec::new();
    for (method, path, body) in &operations {
        // It answers that it is not built, whatever is asked; the other would fetch from the network.
        if path == "/api/push" || path == "/api/pull" {
            continue;
        }
        let answer = call(&server, method, &format!("{path}?xy%7Azy=1"), body.as_ref()).await;
        let is_refused = answer.status == 400 && answer.text.contains("xyzzy");
        let is_warned = warnings(&answer).iter().any(|warning| warning["field"] == "?xyzzy");
        let is_own = answer.text.contains("xyzzy: ");
        if !is_refused && !is_warned || is_refused != is_own {
            silent.push(format!("{method} {path}: {} {}", answer.status, answer.text));
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_for_an_endpoint_that_takes_none_is_reported() {
    let server = server(None, false).await;
    let document = server.get("/openapi.json").await.json();
    let response = stored_response(&server).await;
    let (mut silent, mut count) = (Vec::new(), 0);
    for (method, path, body) in operations(&document, &response) {
        let takes_file = path.starts_with("/api/blobs/") && method == Method::POST;
        if body.is_some() || takes_file || path == "/api/push" {
            continue;
        }
        count += 1;
        let answer = call(&server, &method, &path, Some(&json!({"a": 1}))).await;
        if !warnings(&answer).iter().any(|warning| warning["field"] == "body") {
            silent.push(format!("{method} {path}: {} {}", answer.status, answer.text));
        }
        let plain = call(&server, &method, &path, None).await;
        assert!(warnings(&plain).is_empty(), "{method} {path}: {plain:?}");
    }
    assert!(silent.is_empty() && count > 30, "{count}: {silent:#?}");
}

/// What the document of the API lists is used, and a value that cannot be read is refused, not dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn known_parameters_are_read_or_refused() {
    let server = server(None, false).await;
    let response = stored_response(&server).await;
    for (path, status) in [
        ("/api/cache/rows?offset=0&limit=5", 200),
        ("/api/cache/rows?limit", 400),
        ("/api/cache/rows?limit=", 400),
        ("/api/cache/rows?limit=1&limit=2", 400),
        ("/api/cache/rows?l%69mit=0", 400),
        ("/api/requests?follow=2", 400),
        ("/api/adapters?model=stub", 200),
        ("/api/adapters?model=gpt-99", 404),
        ("/props?model=st%75b", 200),
        ("/props?model=gpt-99", 404),
        ("/slots?model=gpt-99", 404),
        ("/v1/models?beta=true", 200),
        ("/v1/responses/ID?stream=false", 200),
        ("/v1/responses/ID?stream=yes", 400),
        ("/v1/responses/ID/input_items?limit=3&order=asc", 200),
        ("/v1/responses/ID/input_items?limit", 400),
    ] {
        let answer = server.get(&path.replace("ID", &response)).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
        assert!(warnings(&answer).is_empty(), "{path}: {:?}", answer.headers);
    }
    let twice = server.get(&format!("/v1/responses/{response}/input_items?limit=3&limit=4")).await;
    assert_eq!(warnings(&twice)[0]["field"], "?limit", "{:?}", twice.headers);
}

/// A client cannot put anything into a header but the name that it sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warning_header_is_bounded_and_has_one_line() {
    let server = server(None, false).await;
    let long: Vec<String> = (0..40).map(|number| format!("{number}%0D%0Ax:%22y%C3%A9{}", "z".repeat(100))).collect();
    let answer = server.get(&format!("/v1/models?{}", long.join("&"))).await;
    assert_eq!((answer.status, answer.headers.get("x")), (200, None));
    let bytes: usize = answer.headers.get_all("warning").iter().map(|value| value.len()).sum();
    assert!(bytes < 5000, "{bytes}");
    assert_eq!(warnings(&answer).len(), 17);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_request_has_no_warnings_and_no_object() {
    let server = server(None, false).await;
    for path in STREAMING.into_iter().chain(["/v1/embeddings", "/api/embed", "/tokenize", "/apply-template"]) {
        let answer = server.post(path, &good(path)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        assert!(!answer.text.contains("\"poncho\""), "{path}: {}", answer.text);
    }
    // These ask for what happens anyway.
    let body = json!({"model": "stub", "messages": [{"role": "user", "content": "Hi", "name": null}], "max_tokens": 2,
        "store": false, "service_tier": "auto", "modalities": ["text"], "metadata": {}, "user": null});
    let answer = server.chat(&body).await;
    assert_eq!(answer["poncho"], Value::Null, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_no_model_has_is_reported_where_another_model_answers() {
    let server = server(None, true).await;
    let others = [
        "/v1/embeddings",
        "/api/embed",
        "/api/embeddings",
        "/api/show",
        "/tokenize",
        "/detokenize",
        "/api/cache/explain",
        "/v1/chat/completions/input_tokens",
        "/v1/responses/input_tokens",
        "/api/chat/input_tokens",
        "/v1/messages/count_tokens",
        "/apply-template",
        "/rerank",
    ];
    for path in STREAMING.into_iter().chain(others) {
        let mut body = good(path);
        merge(&mut body, &json!({"model": "gpt-99"}));
        let answer = server.post(path, &body).await;
        let found = warnings(&answer);
        let [warning] = &found[..] else { panic!("{path}: {}", answer.text) };
        assert_eq!((&warning["code"], &warning["field"]), (&json!("unknown_model"), &json!("model")), "{path}");
        let message = warning["message"].as_str().unwrap();
        assert!(message.contains("gpt-99") && message.contains("stub") && message.contains("/v1/models"), "{message}");
    }
    let found = warnings(&server.get("/props?model=gpt-99").await);
    assert_eq!(found[0]["code"], "unknown_model", "{found:?}");
    assert_eq!(server.get("/slots?model=gpt-99").await.status, 404, "a list has no place for a warning");
    for path in ["/api/models/load", "/api/models/unload", "/api/verify", "/api/draft", "/api/speculate"] {
        let mut body = good(path);
        merge(&mut body, &json!({"model": "gpt-99"}));
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status, 404, "{path} must not change or ask another model: {}", answer.text);
    }
}

/// A model that was created by an earlier version keeps answering, and says that its Modelfile is not applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_modelfile_that_cannot_be_used_is_reported_and_not_replaced_silently() {
    let mut model = LibraryModel::new(small_config("stub", Path::new("stub")));
    model.defaults.template = Some("{{ range .Messages }}{{ end }}".to_owned());
    let server = server(Some(Arc::new(Shelf { model: Some(model) })), false).await;
    let answer = server.post("/v1/chat/completions", &good("/v1/chat/completions")).await;
    let found = warnings(&answer);
    let [warning] = &found[..] else { panic!("{}", answer.text) };
    assert_eq!(warning["code"], "unusable_modelfile");
    assert!(warning["message"].as_str().unwrap().contains("{{ range .Messages }}"), "{warning}");
}

/// A client cannot make an answer large.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_warnings_of_an_answer_are_bounded() {
    let server = server(None, false).await;
    let mut body = good("/v1/chat/completions");
    for number in 0..500 {
        merge(&mut body, &json!({format!("{number}{}", "x".repeat(5000)): "y".repeat(5000)}));
    }
    let answer = server.post("/v1/chat/completions", &body).await;
    assert!(answer.text.len() < 10_000, "{} bytes", answer.text.len());
    let found = warnings(&answer);
    assert_eq!((found.len(), &found[16]["code"]), (17, &json!("more_warnings")));
}
