//! The metrics page: its format, its numbers, and its agreement with docs/metrics.md.

use std::collections::{BTreeMap, BTreeSet};

use poncho_engine::backend::stub::DecodeFault;
use serde_json::json;

use crate::support::{Server, Setup, asking, eventually, wait_until_held, with};

/// A family of the page.
#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Reads the text format strictly: every family announced once, its samples directly below it and by its name.
fn parse(page: &str) -> BTreeMap<String, Family> {
    assert!(page.ends_with('\n'));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            let kind = lines.next().and_then(|next| next.strip_prefix(&format!("# TYPE {name} ")).map(str::to_owned));
            let kind = kind.unwrap_or_else(|| panic!("{name} has no type"));
            assert!(["counter", "gauge", "histogram"].contains(&kind.as_str()), "{name}: {kind}");
            assert!(is_name(name), "{name}");
            assert!(help.len() > 5 && help.ends_with('.'), "{name}: {help}");
            let family = Family { help: help.to_owned(), kind, samples: Vec::new() };
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} is announced twice");
            current = name.to_owned();
            continue;
        }
        let sample = parse_sample(line);
        let family = families.get_mut(&current).unwrap_or_else(|| panic!("{line} comes before its family"));
        let endings: &[&str] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(endings.iter().any(|ending| sample.name == format!("{current}{ending}")), "{line} under {current}");
        family.samples.push(sample);
    }
    families
}

fn is_name(name: &str) -> bool {
    // The names of another server have its own before a colon.
    let name = name.strip_prefix("vllm:").unwrap_or(name);
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_lowercase())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

fn parse_sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (key, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(key), "{line}");
            let mut value = String::new();
            let mut characters = after.char_indices();
            let close = loop {
                match characters.next().unwrap_or_else(|| panic!("{line}")) {
                    (at, '"') => break at,
                    (_, '\\') => match characters.next().unwrap().1 {
                        'n' => value.push('\n'),
                        escaped @ ('"' | '\\') => value.push(escaped),
                        other => panic!("\\{other} in {line}"),
                    },
                    (_, plain) => value.push(plain),
                }
            };
            assert!(labels.insert(key.to_owned(), value).is_none(), "{line}");
            rest = &after[close + 1..];
            match rest.split_at(1) {
                (",", more) => rest = more,
                ("}", more) => {
                    rest = more;
                    break;
                }
                _ => panic!("{line}"),
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    Sample { name: name.to_owned(), labels, value: value.parse().unwrap_or_else(|_| panic!("{line}")) }
}

/// The value of the only sample with these labels among others.
#[track_caller]
fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> f64 {
    let family = name.trim_end_matches("_count").trim_end_matches("_sum").trim_end_matches("_bucket");
    let fits = |sample: &&Sample| {
        sample.name == name
            && labels.iter().all(|(key, text)| sample.labels.get(*key).is_some_and(|found| found == text))
    };
    let found: Vec<&Sample> = families[family].samples.iter().filter(fits).collect();
    let [one] = found[..] else { panic!("{name} {labels:?}: {found:?}") };
    one.value
}

/// A server that has a bit of everything behind it; its model's name needs escapes.
async fn used() -> (Server, BTreeMap<String, Family>) {
    let odd = "m\"o\\d";
    let server = Server::start(Setup { models: vec!["stub", odd], ..Setup::default() }).await;
    for model in ["stub", "stub", odd] {
        server.chat(&with(asking("Hello"), &json!({"model": model, "max_tokens": 4, "ignore_eos": true}))).await;
        let model = server.engine.get(model).unwrap();
        eventually("the end", || model.status().queue_depth == 0).await;
    }
    let page = server.get("/metrics").await.text;
    let families = parse(&page);
    (server, families)
}

#[tokio::test]
async fn the_page_is_well_formed_and_histograms_add_up() {
    let (_server, families) = used().await;
    let mut histograms = 0;
    for (name, family) in families.iter().filter(|(_, family)| family.kind == "histogram") {
        let mut series: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in family.samples.iter().filter(|sample| sample.name.ends_with("_bucket")) {
            let mut labels = sample.labels.clone();
            let bound = labels.remove("le").unwrap();
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
            series.entry(labels).or_default().push((bound, sample.value));
        }
        for (labels, buckets) in &series {
            assert!(buckets.is_sorted(), "{name} {labels:?}: {buckets:?}");
            let wanted: Vec<(&str, &str)> = labels.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
            let count = value(&families, &format!("{name}_count"), &wanted);
            assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{name} {labels:?}");
            assert!(value(&families, &format!("{name}_sum"), &wanted) >= 0.0);
            histograms += 1;
        }
    }
    // Four kinds of times, two models, of which one was asked cold and warm.
    assert_eq!(histograms, 4 * 3);
}

#[tokio::test]
async fn times_and_tokens_are_told_by_model_and_hit() {
    let (server, families) = used().await;
    for labels in
        [&[("model", "stub"), ("hit", "cold")][..], &[("model", "stub"), ("hit", "sticky")], &[("model", "m\"o\\d")]]
    {
        for name in ["time_to_first_token", "queue_wait", "request_duration"] {
            assert_eq!(value(&families, &format!("poncho_{name}_seconds_count"), labels), 1.0, "{name} {labels:?}");
        }
        assert_eq!(value(&families, "poncho_inter_token_seconds_count", labels), 3.0, "four tokens, three gaps");
    }
    let tokens = |hit, source| {
        value(&families, "poncho_prompt_tokens_total", &[("model", "stub"), ("hit", hit), ("source", source)])
    };
    let prompt = tokens("cold", "new");
    assert!(prompt > 5.0 && tokens("cold", "cached") == 0.0);
    assert!(tokens("sticky", "cached") > 5.0 && tokens("sticky", "cached") + tokens("sticky", "new") == prompt);
    assert_eq!(value(&families, "poncho_replies_total", &[("model", "stub"), ("outcome", "length")]), 2.0);
    for (name, count) in server.engine.cache().counters().fields() {
        // Lookups by nobody but these three requests; writers may still be at work.
        let told = value(&families, &format!("poncho_cache_{name}_total"), &[]);
        assert!(told <= count as f64, "{name}: {told} and {count}");
    }
    assert_eq!(value(&families, "poncho_cache_misses_total", &[]), 1.0, "both models are the same to the cache");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_whose_client_left_and_one_that_failed_are_told_apart() {
    let server = Server::plain().await;
    let body = with(asking("Hello"), &json!({"max_tokens": 3000, "ignore_eos": true, "stream": true}));
    server.faults.on_decode(20, DecodeFault::Block);
    let json = [("content-type", "application/json")];
    let path = "/v1/chat/completions";
    let response = server.open(hyper::Method::POST, path, &json, body.to_string().into()).await;
    wait_until_held(&server).await;
    drop(response);
    server.faults.release();
    let model = server.model();
    eventually("the end of the request", || model.status().queue_depth == 0).await;
    server.faults.on_decode(1, DecodeFault::Panic);
    assert_eq!(server.post(path, &asking("Other")).await.status, 500);
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let families = parse(&server.get("/metrics").await.text);
        let outcomes: BTreeSet<String> =
            families["poncho_replies_total"].samples.iter().map(|sample| sample.labels["outcome"].clone()).collect();
        if outcomes == BTreeSet::from(["abandoned".to_owned(), "failed".to_owned()]) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routers_that_follow_vllm_read_queue_and_usage_under_its_names() {
    let server = Server::plain().await;
    let read = |families: &BTreeMap<String, Family>| {
        let names = ["num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"];
        names.map(|name| value(families, &format!("vllm:{name}"), &[("model_name", "stub")]))
    };
    assert_eq!(read(&parse(&server.get("/metrics").await.text)), [0.0, 0.0, 0.0]);
    let body = with(asking("Hello"), &json!({"max_tokens": 3000, "ignore_eos": true, "stream": true}));
    server.faults.on_decode(20, DecodeFault::Block);
    let json = [("content-type", "application/json")];
    let response = server.open(hyper::Method::POST, "/v1/chat/completions", &json, body.to_string().into()).await;
    wait_until_held(&server).await;
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let [waiting, running, usage] = read(&parse(&server.get("/metrics").await.text));
        if waiting == 0.0 && running == 1.0 && usage > 0.0 && usage < 1.0 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{waiting} {running} {usage}");
    }
    drop(response);
    server.faults.release();
}

#[tokio::test]
async fn the_document_lists_exactly_what_is_there() {
    let (_server, families) = used().await;
    let row = |(name, family): (&String, &Family)| {
        let labels: BTreeSet<&str> =
            family.samples.iter().flat_map(|sample| sample.labels.keys()).map(String::as_str).collect();
        let labels: Vec<String> =
            labels.into_iter().filter(|label| *label != "le").map(|label| format!("`{label}`")).collect();
        format!("| `{name}` | {} | {} | {} |", family.kind, labels.join(", "), family.help)
    };
    let there: BTreeSet<String> = families.iter().map(row).collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let document = std::fs::read_to_string(path).unwrap();
    let written: BTreeSet<String> = document
        .lines()
        .filter(|line| ["| `poncho_", "| `vllm:"].iter().any(|start| line.starts_with(start)))
        .map(str::to_owned)
        .collect();
    let missing: Vec<&str> = there.difference(&written).map(String::as_str).collect();
    let wrong: Vec<&str> = written.difference(&there).map(String::as_str).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "docs/metrics.md lacks:\n{}\nand has what is not there:\n{}",
        missing.join("\n"),
        wrong.join("\n")
    );
}
