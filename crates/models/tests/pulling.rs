//! Downloads by address against a loopback server: whole, broken off, resumed, replaced, wrong, refused, stopped.

use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;

use poncho_models::{Installed, Progress, PullError, PullOptions, Reference, Sha256, SourceKind, ignore_progress};

use crate::loopback::{Reply, Server, serve_file};
use crate::support::{Place, gguf, name};

/// A model that is large enough to be cut.
fn model() -> Vec<u8> {
    [gguf("model", 1), vec![7; 300_000]].concat()
}

/// No second attempts, no waiting.
pub(crate) fn options() -> PullOptions {
    let mut options = PullOptions::default();
    options.retries = 0;
    options.retry_pause = Duration::ZERO;
    options.silence = Duration::from_secs(120);
    options
}

fn pull_with(place: &Place, url: &str, options: &PullOptions) -> Result<Installed, PullError> {
    let reference = Reference::parse(url).unwrap();
    place.open().pull(&reference, options, &mut ignore_progress)
}

fn pull(place: &Place, url: &str) -> Result<Installed, PullError> {
    pull_with(place, url, &options())
}

#[test]
fn a_file_is_fetched_checked_and_named() {
    let place = Place::new();
    let server = Server::start(|request| serve_file(request, &model(), "\"1\""));
    let mut steps = Vec::new();
    let reference = Reference::parse(&server.url("/dir/Some-Model-Q4_1.gguf?key=secret")).unwrap();
    let installed = place.open().pull(&reference, &options(), &mut |step| {
        steps.push(step);
        ControlFlow::Continue(())
    });
    let installed = installed.unwrap();
    assert_eq!(installed.name.to_string(), "some-model:q4_1");
    assert_eq!(fs::read(&installed.model).unwrap(), model());
    assert_eq!(installed.manifest.source.kind, SourceKind::Url);
    assert_eq!(installed.manifest.source.reference, server.url("/dir/Some-Model-Q4_1.gguf"), "no key is stored");
    let all = model().len() as u64;
    let last = Progress::Downloading { digest: None, done: all, total: Some(all) };
    assert!(steps.contains(&last) && steps.ends_with(&[Progress::Installing]), "{steps:?}");
    assert_eq!(place.names_in("partial"), Vec::<String>::new());
    assert_eq!(server.seen()[0].header("authorization"), None);
}

#[test]
fn a_broken_download_goes_on_where_it_stopped() {
    let place = Place::new();
    let mut requests = 0;
    let server = Server::start(move |request| {
        requests += 1;
        let reply = serve_file(request, &model(), "\"1\"");
        if requests == 1 { reply.cut(100_000) } else { reply }
    });
    let url = server.url("/m.gguf");
    let broken = pull(&place, &url).unwrap_err();
    assert!(matches!(broken, PullError::Interrupted { done: 100_000, total: Some(_), .. }), "{broken}");
    assert!(broken.to_string().contains("run the same command again"), "{broken}");
    assert_eq!(place.open().list().unwrap(), [], "no half file has a name");
    let installed = pull(&place, &url).unwrap();
    assert_eq!(fs::read(&installed.model).unwrap(), model());
    let second = &server.seen()[1];
    assert_eq!((second.range_start(), second.header("if-range")), (Some(100_000), Some("\"1\"")));
}

#[test]
fn a_broken_download_is_tried_again_as_long_as_bytes_arrive() {
    let place = Place::new();
    // Never more than 50,000 bytes at once, and now and then an error.
    let mut requests = 0;
    let server = Server::start(move |request| {
        requests += 1;
        if requests % 3 == 0 { Reply::new(503, "busy") } else { serve_file(request, &model(), "\"1\"").cut(50_000) }
    });
    let mut patient = options();
    patient.retries = 1;
    let installed = pull_with(&place, &server.url("/m.gguf"), &patient).unwrap();
    assert_eq!(fs::read(&installed.model).unwrap(), model());
}

#[test]
fn a_server_that_ignores_ranges_or_has_another_file_starts_anew() {
    for (etag, ignores) in [("\"1\"", true), ("\"2\"", false), ("", true)] {
        let place = Place::new();
        let mut requests = 0;
        let server = Server::start(move |request| {
            requests += 1;
            match requests {
                1 => Reply::new(200, vec![b'G', b'G', b'U', b'F', 9, 9, 9]).with("etag", "\"1\"").cut(6),
                _ if ignores => Reply::new(200, model()),
                _ => serve_file(request, &model(), etag),
            }
        });
        let url = server.url("/m.gguf");
        assert!(matches!(pull(&place, &url), Err(PullError::Interrupted { done: 6, .. })));
        assert_eq!(fs::read(&pull(&place, &url).unwrap().model).unwrap(), model(), "{etag} {ignores}");
    }
}

#[test]
fn without_a_tag_or_a_hash_nothing_is_appended() {
    let place = Place::new();
    let mut requests = 0;
    let server = Server::start(move |_| {
        requests += 1;
        let reply = Reply::new(200, model()).with("etag", "W/\"weak\"");
        if requests == 1 { reply.cut(1000) } else { reply }
    });
    pull(&place, &server.url("/m.gguf")).unwrap_err();
    pull(&place, &server.url("/m.gguf")).unwrap();
    assert_eq!(server.seen()[1].header("range"), None);
}

#[test]
fn a_part_that_was_not_asked_for_is_not_believed() {
    let place = Place::new();
    let mut requests = 0;
    let server = Server::start(move |request| {
        requests += 1;
        match requests {
            1 => serve_file(request, &model(), "\"1\"").cut(1000),
            2 => Reply::new(206, &model()[500..]).with("content-range", "bytes 500-9/10").with("etag", "\"1\""),
            3 => Reply::new(416, "").with("content-range", "bytes */5"),
            _ => serve_file(request, &model(), "\"1\""),
        }
    });
    let mut patient = options();
    patient.retries = 5;
    let installed = pull_with(&place, &server.url("/m.gguf"), &patient).unwrap();
    assert_eq!(fs::read(&installed.model).unwrap(), model());
}

#[test]
fn bytes_with_another_hash_are_thrown_away() {
    let place = Place::new();
    let server = Server::start(|request| serve_file(request, &model(), "\"1\""));
    let mut checked = options();
    checked.sha256 = Some(Sha256::of(b"something else"));
    let refused = pull_with(&place, &server.url("/m.gguf"), &checked).unwrap_err();
    assert!(matches!(refused, PullError::WrongHash { .. }), "{refused}");
    assert_eq!((place.open().list().unwrap().len(), place.names_in("partial").len()), (0, 0));
    checked.sha256 = Some(Sha256::of(&model()));
    pull_with(&place, &server.url("/m.gguf"), &checked).unwrap();
}

#[test]
fn refusals_are_told_apart() {
    let server = Server::start(|request| match request.path.as_str() {
        "/404.gguf" => Reply::new(404, "no"),
        "/401.gguf" => Reply::new(401, "who"),
        "/403.gguf" => Reply::new(403, "no"),
        "/500.gguf" => Reply::new(500, "oops"),
        "/page.gguf" => Reply::new(200, "<!DOCTYPE html><html>sign in</html>"),
        "/short.gguf" => Reply { announced: None, ..Reply::new(200, &gguf("model", 1)[..300]) },
        "/lora.gguf" => Reply::new(200, gguf("adapter", 1)),
        "/huge.gguf" => Reply { announced: Some(1 << 60), ..Reply::new(200, "GGUF") },
        _ => Reply::new(302, "").with("location", "/loop.gguf"),
    });
    let place = Place::new();
    for (path, expected) in [
        ("/404.gguf", "does not exist (HTTP 404)"),
        ("/401.gguf", "set HF_TOKEN to an access token"),
        ("/403.gguf", "HTTP 403"),
        ("/500.gguf", "answered HTTP 500; try again later"),
        ("/page.gguf", "an HTML page"),
        ("/short.gguf", "cut short"),
        ("/lora.gguf", "LoRA adapter"),
        ("/huge.gguf", "are available; free some space"),
        ("/loop.gguf", "cannot be reached"),
    ] {
        let refused = pull(&place, &server.url(path)).unwrap_err();
        assert!(refused.to_string().contains(expected), "{path}: {refused}");
        let is_right = match path {
            "/404.gguf" => matches!(refused, PullError::NotFound { status: 404, .. }),
            "/401.gguf" | "/403.gguf" => matches!(refused, PullError::Denied { with_token: false, .. }),
            "/500.gguf" => matches!(refused, PullError::Server { status: 500, .. }),
            "/huge.gguf" => matches!(refused, PullError::NoRoom { .. }),
            "/loop.gguf" => matches!(refused, PullError::Unreachable { .. }),
            _ => matches!(refused, PullError::NotAModel { .. }),
        };
        assert!(is_right, "{path}: {refused:?}");
    }
    let closed = server.url("/gone.gguf");
    drop(server);
    let refused = pull(&place, &closed).unwrap_err();
    assert!(matches!(refused, PullError::Unreachable { .. }), "{refused}");
    assert_eq!(place.open().list().unwrap(), []);
}

#[test]
fn redirects_are_followed_with_their_range() {
    let place = Place::new();
    let mut sent = 0;
    let server = Server::start(move |request| match request.path.as_str() {
        "/start.gguf" => Reply::new(302, "").with("location", "/moved/file"),
        _ => {
            sent += 1;
            let reply = serve_file(request, &model(), "\"1\"");
            if sent == 1 { reply.cut(4000) } else { reply }
        }
    });
    pull(&place, &server.url("/start.gguf")).unwrap_err();
    let installed = pull(&place, &server.url("/start.gguf")).unwrap();
    assert_eq!(installed.name.to_string(), "start:latest");
    assert_eq!(server.seen()[3].range_start(), Some(4000));
}

#[test]
fn a_stopped_download_is_kept_and_goes_on() {
    let place = Place::new();
    let server = Server::start(|request| serve_file(request, &model(), "\"1\""));
    let reference = Reference::parse(&server.url("/m.gguf")).unwrap();
    let stopped = place.open().pull(&reference, &options(), &mut |step| match step {
        Progress::Downloading { done, .. } if done > 0 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(PullError::Stopped)));
    let partial = place.names_in("partial");
    assert_eq!(partial.len(), 1);
    let kept = fs::metadata(place.root().join("partial").join(&partial[0]).join("data")).unwrap().len();
    assert!(kept > 0);
    let installed = pull(&place, &server.url("/m.gguf")).unwrap();
    assert_eq!(fs::read(&installed.model).unwrap(), model());
    assert_eq!(server.seen()[1].range_start(), Some(usize::try_from(kept).unwrap()));
}

#[test]
fn a_file_of_this_machine_is_pulled_by_its_path() {
    let place = Place::new();
    let path = place.file("Local-F16.gguf", &gguf("model", 3));
    let installed = pull(&place, path.to_str().unwrap()).unwrap();
    assert_eq!(installed.name, name("local:f16"));
    let mut renamed = options();
    renamed.name = Some(name("mine:1"));
    assert_eq!(pull_with(&place, path.to_str().unwrap(), &renamed).unwrap().name, name("mine:1"));
}
