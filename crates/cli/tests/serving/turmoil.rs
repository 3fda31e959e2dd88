//! The engine's process is ended at random moments under eight streams of all dialects, with models of every memory kind.
//!
//! With `--exact` each stream must bring what it brings undisturbed, byte for byte. `PONCHO_TURMOIL` sets the number of
//! ends for each memory kind; `make turmoil` makes 200 of them and prints how long clients waited.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use poncho_testkit::{ModelKind, model_path};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::served::{Served, serve_without_model};
use crate::serving::stopping::until;
use crate::serving::surviving::{engine_of, kill};

/// Ends for each memory kind in a run of all tests.
const FEW: u32 = 3;

/// One number after the other, the same in each run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

/// Eight requests: all dialects, seeded sampling, a schema, a tool, log probabilities, two replies to one prompt.
pub(crate) fn requests() -> Vec<(&'static str, Value)> {
    let names = json!({"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 8, "maxItems": 8});
    let schema = json!({"type": "object", "properties": {"names": names}, "required": ["names"]});
    let tool =
        json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"]});
    let message = |text: &str| json!([{"role": "user", "content": text}]);
    let prompt = "Once upon a time there was a poncho that kept everything warm";
    vec![
        (
            "/v1/completions",
            json!({"model": "x", "prompt": prompt, "stream": true, "max_tokens": 150, "seed": 7,
            "temperature": 0.9, "frequency_penalty": 0.4, "ignore_eos": true}),
        ),
        (
            "/v1/completions",
            json!({"model": "x", "prompt": prompt, "stream": true, "max_tokens": 120, "temperature": 0,
            "ignore_eos": true, "n": 2, "seed": 5}),
        ),
        (
            "/v1/completions",
            json!({"model": "x", "prompt": "A short beginning", "stream": true, "max_tokens": 80,
            "temperature": 0, "ignore_eos": true, "logprobs": 2}),
        ),
        (
            "/v1/chat/completions",
            json!({"model": "x", "messages": message("names, please"), "stream": true, "seed": 3,
            "max_tokens": 400, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
        ),
        (
            "/v1/chat/completions",
            json!({"model": "x", "messages": message("the weather?"), "stream": true, "seed": 4,
            "max_tokens": 400, "tools": [{"type": "function", "function": {"name": "weather", "parameters": tool}}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
        ),
        (
            "/v1/messages",
            json!({"model": "x", "messages": message("tell me more"), "stream": true, "max_tokens": 150,
            "temperature": 0}),
        ),
        (
            "/v1/responses",
            json!({"model": "x", "input": "and then?", "stream": true, "max_output_tokens": 150,
            "temperature": 0}),
        ),
        (
            "/api/chat",
            json!({"model": "x", "messages": message("what else?"), "stream": true,
            "options": {"seed": 9, "num_predict": 150}}),
        ),
    ]
}

/// What a stream brought: all texts by the event and the place that they came in, without names and times.
pub(crate) type Brought = BTreeMap<String, String>;

fn collect(value: &Value, place: &str, brought: &mut Brought) {
    const TEXTS: [&str; 9] = [
        "text",
        "content",
        "arguments",
        "partial_json",
        "thinking",
        "delta",
        "finish_reason",
        "stop_reason",
        "done_reason",
    ];
    match value {
        Value::Object(fields) => {
            let index = fields.get("index").and_then(Value::as_u64).map(|index| index.to_string()).unwrap_or_default();
            for (name, value) in fields {
                let place = format!("{place}/{name}{index}");
                match value {
                    Value::String(text) if TEXTS.contains(&name.as_str()) => {
                        brought.entry(place).or_default().push_str(text);
                    }
                    Value::Array(_) | Value::Object(_) => collect(value, &place, brought),
                    _ => {}
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, place, brought)),
        _ => {}
    }
}

/// Streams a reply. Returns what it brought, and its longest silence.
pub(crate) fn stream(address: SocketAddr, path: &str, body: &Value) -> (Brought, Duration) {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(180))).unwrap();
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nanthropic-version: 2023-06-01\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    connection.write_all((head + &body).as_bytes()).unwrap();
    let (mut brought, mut last, mut silence) = (Brought::new(), Instant::now(), Duration::ZERO);
    for line in BufReader::new(connection).lines() {
        let line = line.unwrap();
        let data = line.strip_prefix("data: ").unwrap_or(&line);
        let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
        if !event.is_object() {
            continue;
        }
        assert!(event.get("error").is_none_or(Value::is_null), "{path}: {event}");
        silence = silence.max(last.elapsed());
        last = Instant::now();
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        collect(&event, &kind, &mut brought);
    }
    assert!(!brought.is_empty(), "{path} brought nothing");
    (brought, silence)
}

fn turmoil(kind: ModelKind, seed: u64) {
    let ends: u32 = std::env::var("PONCHO_TURMOIL").ok().and_then(|count| count.parse().ok()).unwrap_or(FEW);
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve_without_model(&folder.path().join("kv"));
    // Ends by hand are not the model's fault.
    command.args(["--port", "0", "--parallel", "4", "--save-min-tokens", "16", "--exact", "--crash-limit", "0"]);
    let served = Served::start_command(command.arg("--model").arg(model_path(kind)), folder.path());
    let undisturbed = Instant::now();
    let expected: Vec<Brought> = requests().iter().map(|(path, body)| stream(served.address, path, body).0).collect();
    let whole = u64::try_from(undisturbed.elapsed().as_millis()).unwrap();
    let (mut dice, mut done, mut silences) = (Dice(seed), 0, Vec::new());
    while done < ends {
        let address = served.address;
        let asked: Vec<_> = requests()
            .into_iter()
            .map(|(path, body)| std::thread::spawn(move || stream(address, path, &body)))
            .collect();
        // In the middle of prompts, of replies, of saves.
        std::thread::sleep(Duration::from_millis(dice.below(whole)));
        let aborts = dice.below(3) == 0;
        // An end after the last reply may still be under repair.
        let mut first = None;
        until("the server has an engine", || {
            first = engine_of(&served);
            first.is_some()
        });
        let first = first.unwrap();
        kill(first, if aborts { Signal::ABORT } else { Signal::KILL });
        done += 1;
        // And once more while the next one loads its model, restores states, or reads prompts.
        if done < ends && dice.below(2) == 0 {
            let mut second = None;
            until("the engine is started again", || {
                second = engine_of(&served).filter(|engine| *engine != first);
                second.is_some()
            });
            std::thread::sleep(Duration::from_millis(dice.below(400)));
            // Two crashes would blame a request that is there both times.
            kill(second.unwrap(), Signal::KILL);
            done += 1;
        }
        for ((asked, expected), (path, _)) in asked.into_iter().zip(&expected).zip(requests()) {
            let (brought, silence) = asked.join().unwrap_or_else(|_| panic!("{kind:?} {path} after {done} ends"));
            assert_eq!(&brought, expected, "{kind:?} {path} after {done} ends");
            silences.push(silence);
        }
    }
    silences.sort();
    let (middle, longest) = (silences[silences.len() / 2], silences[silences.len() - 1]);
    eprintln!("{kind:?}: {done} ends, longest silence of a stream: median {middle:.1?}, maximum {longest:.1?}");
    assert_eq!(served.stop().0, Some(0));
}

#[test]
fn streams_of_an_attention_model_end_right_in_turmoil() {
    turmoil(ModelKind::Attention, 1);
}

#[test]
fn streams_of_a_window_model_end_right_in_turmoil() {
    turmoil(ModelKind::Window, 2);
}

#[test]
fn streams_of_a_recurrent_model_end_right_in_turmoil() {
    turmoil(ModelKind::Recurrent, 3);
}

#[test]
fn streams_of_a_hybrid_model_end_right_in_turmoil() {
    turmoil(ModelKind::Hybrid, 4);
}
