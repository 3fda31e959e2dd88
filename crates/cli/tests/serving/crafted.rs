//! Model files that are whole and say something impossible: uploaded to a server, and changed at random.
//!
//! A server must answer and go on; the process that tries a model may die, but only where our own look at the file was
//! left out on purpose.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread::spawn;
use std::time::Duration;

use poncho_models::Sha256;
use poncho_testkit::{AlteredModel, ModelKind, ModelSpec, TensorType, Value as Written};
use serde_json::{Value, json};

use crate::served::{Served, request, serve_command};
use crate::support::{Run, poncho, run};

/// Far above what a tiny model takes on a busy machine.
const LONGEST_TRIAL: Duration = Duration::from_secs(120);

/// Makes the child leave our own look at a file out.
const UNCHECKED: &str = "_PONCHO_PROBE_UNCHECKED";

fn altered(kind: ModelKind, key: &str, value: Written) -> AlteredModel {
    let mut model = AlteredModel::of(&ModelSpec::tiny(kind)).unwrap();
    model.set(key, value);
    model
}

fn bogus() -> AlteredModel {
    altered(ModelKind::Attention, "llama.rope.scaling.type", Written::Text("bogus".to_owned()))
}

/// A server with a good model and a folder for uploaded ones.
fn serve(folder: &Path, words: &[&str], unchecked: bool) -> Served {
    let mut command = serve_command(&folder.join("kv"));
    command.args(["--port", "0", "--models-dir"]).arg(folder.join("models")).args(words);
    if unchecked {
        command.env(UNCHECKED, "1");
    }
    Served::start_command(&mut command, folder)
}

fn put_blob(address: SocketAddr, path: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    let length = bytes.len();
    write!(stream, "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n")
        .unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Uploads a file and makes a model of it.
fn upload(served: &Served, name: &str, model: &AlteredModel) {
    let bytes = model.to_bytes();
    let digest = format!("sha256:{}", Sha256::of(&bytes));
    let answer = put_blob(served.address, &format!("/api/blobs/{digest}"), &bytes);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    served.post("/api/create", &json!({"model": name, "files": {"model.gguf": digest}, "stream": false}));
}

/// Status and error of a chat with a model.
fn chat(served: &Served, model: &str) -> (u16, String) {
    let body = json!({"model": model, "stream": false, "options": {"num_predict": 2},
        "messages": [{"role": "user", "content": "Hi"}]});
    let (status, text) = request(served.address, "POST", "/api/chat", &body.to_string());
    let answer: Value = serde_json::from_str(&text).unwrap();
    (status, answer["error"].as_str().unwrap_or_default().to_owned())
}

/// The server is the same process and serves its own model.
fn goes_on(served: &mut Served) {
    assert_eq!(served.exit_code(), None, "{}", served.messages());
    assert_eq!(chat(served, "attention"), (200, String::new()));
}

/// Hardening 3: both files ended the server.
#[test]
fn an_uploaded_model_with_an_impossible_value_is_an_error_and_the_server_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    for probing in ["auto", "off"] {
        let mut served = serve(folder.path(), &["--probe-models", probing], false);
        upload(&served, "bogus", &bogus());
        upload(&served, "nextn", &altered(ModelKind::Attention, "llama.nextn_predict_layers", Written::U32(9)));
        for (model, key) in [("bogus", "llama.rope.scaling.type"), ("nextn", "llama.nextn_predict_layers")] {
            let (status, error) = chat(&served, model);
            assert!(status >= 400 && error.contains(key), "{probing} {model}: {status} {error}");
            goes_on(&mut served);
        }
    }
}

/// Hardening 3: a file that our own look does not find out about ends a child, not the server.
#[test]
fn a_model_that_kills_the_process_that_tries_it_is_an_error_and_the_server_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = serve(folder.path(), &[], true);
    upload(&served, "bogus", &bogus());
    for _ in 0..2 {
        let (status, error) = chat(&served, "bogus");
        assert!(status >= 400, "{status}");
        assert!(error.contains("signal 6") && error.contains("GGML_ASSERT"), "{error}");
        goes_on(&mut served);
    }
    let sound = AlteredModel::of(&ModelSpec { seed: 77, ..ModelSpec::tiny(ModelKind::Hybrid) }).unwrap();
    upload(&served, "sound", &sound);
    assert_eq!(chat(&served, "sound"), (200, String::new()), "the trial passes a good model");
    let memo = std::fs::read_to_string(folder.path().join("kv.probed")).unwrap();
    assert_eq!(memo.lines().count(), 2, "the served model and the sound one");
}

/// Hardening 3: attention without an order takes all rows of a call at once, or llama.cpp asserts.
#[test]
fn a_model_whose_tokens_see_each_other_reads_a_prompt_longer_than_one_computation() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = serve(folder.path(), &[], false);
    upload(&served, "both", &altered(ModelKind::Attention, "llama.attention.causal", Written::Bool(false)));
    let long = "x ".repeat(900);
    let body = json!({"model": "both", "stream": false, "options": {"num_predict": 1},
        "messages": [{"role": "user", "content": long}]});
    let (status, text) = request(served.address, "POST", "/api/chat", &body.to_string());
    assert_eq!(status, 200, "{text}");
    goes_on(&mut served);
}

/// Hardening 3: commands that load a model themselves try it first too.
#[test]
fn a_command_that_loads_a_model_survives_what_its_child_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("bogus.gguf");
    bogus().write(&model).unwrap();
    let tokenize = |unchecked: bool| -> Run {
        let mut command = poncho();
        command.args(["tokenize", "--local", "--model"]).arg(&model).arg("Hello");
        command.env("XDG_CACHE_HOME", folder.path()).env("PONCHO_MODELS_DIR", folder.path().join("models"));
        if unchecked {
            command.env(UNCHECKED, "1");
        }
        run(&mut command)
    };
    assert!(tokenize(false).failed().contains("llama.rope.scaling.type"));
    assert!(tokenize(true).failed().contains("signal 6"));
}

/// How a trial of a file ended, and what it said.
fn probe(path: &Path, unchecked: bool) -> (ExitStatus, String) {
    let mut command = poncho();
    command.arg("probe-model").arg(path).env("GGML_NO_BACKTRACE", "1");
    if unchecked {
        command.env(UNCHECKED, "1");
    }
    // Held open until it has ended: its end would be that of the trial.
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let held = child.stdin.take();
    let (ended, waiting) = channel::<()>();
    let guard = spawn(move || {
        // A trial that hangs loses its input, and ends with a code of its own.
        let _ = waiting.recv_timeout(LONGEST_TRIAL);
        drop(held);
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    guard.join().unwrap();
    (output.status, format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn every_sound_model_passes_its_trial() {
    let mut paths: Vec<_> = ModelKind::ALL.map(poncho_testkit::model_path).to_vec();
    paths.push(poncho_testkit::default_model_path());
    for path in paths {
        let (status, said) = probe(&path, false);
        assert_eq!(status.code(), Some(0), "{}: {said}", path.display());
    }
}

/// SplitMix64, so that a number names a mutation for good.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap()
    }

    fn of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    fn number(&mut self) -> u32 {
        let any = u32::try_from(self.next() >> 32).unwrap();
        self.of(&[
            0,
            1,
            2,
            3,
            4,
            5,
            7,
            8,
            16,
            31,
            32,
            33,
            48,
            63,
            64,
            65,
            96,
            127,
            128,
            256,
            511,
            513,
            65_536,
            1 << 28,
            u32::MAX,
            any,
        ])
    }

    /// A value of the same type, or rarely of another.
    fn instead_of(&mut self, value: &Written) -> Written {
        if self.below(12) == 0 {
            return self.of(&[
                Written::U32(3),
                Written::I32(-1),
                Written::Bool(true),
                Written::Text("x".to_owned()),
                Written::I32s(vec![0, 1, 0, 1]),
                Written::I32s(Vec::new()),
                Written::Texts(vec!["a".to_owned()]),
                Written::Raw(0, vec![7]),
                Written::Raw(10, vec![1, 0, 0, 0, 0, 0, 0, 0]),
                Written::Raw(12, vec![0, 0, 0, 0, 0, 0, 0xf8, 0x7f]),
            ]);
        }
        match value {
            Written::U16(_) => Written::U16(u16::try_from(self.number() & 0xffff).unwrap()),
            Written::U32(_) if self.below(6) == 0 => {
                Written::I32s((0..4).map(|_| self.number().cast_signed()).collect())
            }
            Written::U32(_) => Written::U32(self.number()),
            Written::I32(_) => Written::I32(self.number().cast_signed()),
            Written::F32(_) => Written::F32(self.of(&[
                0.0,
                -0.0,
                1.0,
                -1.0,
                1e-38,
                1e38,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::NAN,
                f32::MIN_POSITIVE,
            ])),
            Written::Bool(old) => Written::Bool(!old),
            Written::Text(_) => Written::Text(
                self.of(&[
                    "",
                    "bogus",
                    "llama",
                    "gpt2",
                    "bert",
                    "t5",
                    "rwkv",
                    "none",
                    "test",
                    "plamo2",
                    "gemma4",
                    "gpt-4o",
                    "tekken",
                    "none\0",
                    "linear",
                    "yarn",
                    "longrope",
                    "mamba2",
                    "gemma3",
                    "qwen2",
                    "phi-3",
                    "\u{0}",
                    "{{ messages }}",
                    "{% for m in messages %}",
                    "{{ raise_exception('no') }}",
                    "adapter",
                    "qwen3",
                    "deci",
                ]
                .map(str::to_owned)),
            ),
            Written::I32s(old) => {
                let mut new = old.clone();
                match self.below(4) {
                    0 => new.truncate(self.below(old.len() + 1)),
                    1 => new.extend(old),
                    _ => (0..=self.below(3)).for_each(|_| {
                        let at = self.below(new.len().max(1));
                        let number = self.number().cast_signed();
                        if let Some(place) = new.get_mut(at) {
                            *place = self.of(&[number, 6, 0, 2])
                        }
                    }),
                }
                Written::I32s(new)
            }
            Written::Texts(old) => {
                let mut new = old.clone();
                match self.below(4) {
                    0 => new.truncate(self.below(old.len() + 1)),
                    1 => new.extend(["<|new|>".to_owned(), "a b".to_owned()]),
                    _ => {
                        let at = self.below(new.len().max(1));
                        let text =
                            self.of(&["", "a", " ", "\0", "<0x41>", "[EMPTY_3]", "\u{120}x", "no merge", "<|im_end|>"]);
                        if let Some(place) = new.get_mut(at) {
                            *place = text.to_owned()
                        }
                    }
                }
                Written::Texts(new)
            }
            Written::Raw(kind, bytes) => Written::Raw(*kind, bytes.clone()),
        }
    }
}

/// Keys that the generator does not write, with a value to begin from.
fn further(architecture: &str) -> Vec<(String, Written)> {
    let own = |name: &str, value: Written| (format!("{architecture}.{name}"), value);
    vec![
        own("rope.scaling.type", Written::Text("linear".to_owned())),
        own("rope.scaling.factor", Written::F32(1.0)),
        own("rope.scaling.original_context_length", Written::U32(4096)),
        own("rope.scaling.attn_factor", Written::F32(1.0)),
        own("rope.dimension_count", Written::U32(64)),
        own("rope.dimension_count_swa", Written::U32(64)),
        own("rope.dimension_sections", Written::I32s(vec![8, 8, 8, 8])),
        own("nextn_predict_layers", Written::U32(1)),
        own("expert_count", Written::U32(4)),
        own("expert_used_count", Written::U32(2)),
        own("expert_group_count", Written::U32(2)),
        own("expert_group_used_count", Written::U32(1)),
        own("pooling_type", Written::U32(1)),
        own("classifier.pooling_type", Written::U32(1)),
        own("classifier.activation", Written::Text("gelu".to_owned())),
        own("classifier.output_labels", Written::Texts(vec!["yes".to_owned(), "no".to_owned()])),
        own("attention.causal", Written::Bool(true)),
        own("attention.key_length", Written::U32(64)),
        own("attention.value_length", Written::U32(64)),
        own("attention.key_length_swa", Written::U32(64)),
        own("attention.value_length_swa", Written::U32(64)),
        own("attention.key_length_mla", Written::U32(64)),
        own("attention.value_length_mla", Written::U32(64)),
        own("attention.sliding_window", Written::U32(64)),
        own("attention.sliding_window_pattern", Written::U32(2)),
        own("attention.layer_norm_epsilon", Written::F32(1e-5)),
        own("attention.clamp_kqv", Written::F32(1.0)),
        own("attention.max_alibi_bias", Written::F32(1.0)),
        own("attention.scale", Written::F32(1.0)),
        own("attn_logit_softcapping", Written::F32(1.0)),
        own("final_logit_softcapping", Written::F32(1.0)),
        own("embedding_length_out", Written::U32(64)),
        own("decision.block_count", Written::U32(1)),
        own("use_parallel_residual", Written::Bool(true)),
        own("dense_2_feat_in", Written::U32(64)),
        own("ssm.dt_b_c_rms", Written::Bool(true)),
        own("token_shift_count", Written::U32(2)),
        own("wkv.head_size", Written::U32(64)),
        ("split.no".to_owned(), Written::U16(0)),
        ("split.count".to_owned(), Written::U16(1)),
        ("split.tensors.count".to_owned(), Written::I32(1)),
        ("general.alignment".to_owned(), Written::U32(32)),
        ("tokenizer.ggml.add_sep_token".to_owned(), Written::Bool(false)),
        ("tokenizer.ggml.token_type_count".to_owned(), Written::U32(2)),
        ("tokenizer.ggml.unknown_token_id".to_owned(), Written::U32(2)),
        ("tokenizer.ggml.seperator_token_id".to_owned(), Written::U32(2)),
        ("tokenizer.ggml.scores".to_owned(), Written::I32s(vec![0; 4])),
        ("tokenizer.ggml.suppress_tokens".to_owned(), Written::I32s(vec![0, -1])),
        ("tokenizer.ggml.remove_extra_whitespaces".to_owned(), Written::Bool(true)),
        ("tokenizer.ggml.precompiled_charsmap".to_owned(), Written::Raw(9, vec![0; 12])),
        ("tokenizer.chat_template.tool_use".to_owned(), Written::Text("{{ messages }}".to_owned())),
        ("prism.hadamard.version".to_owned(), Written::U32(1)),
    ]
}

/// A generated model with one to three changes, and their names.
fn mutated(kind: ModelKind, seed: u64) -> (AlteredModel, String) {
    let mut random = Random(seed);
    let mut model = AlteredModel::of(&ModelSpec::tiny(kind)).unwrap();
    let mut known: Vec<(String, Written)> =
        model.metadata().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    known.extend(further(kind.architecture()));
    let tensors: Vec<String> = model.tensors().map(str::to_owned).collect();
    let mut said = Vec::new();
    for _ in 0..=random.below(3) {
        match random.below(14) {
            0 => {
                let name = random.of(&tensors);
                let kind = random.of(&[TensorType::F32, TensorType::F16, TensorType::I16, TensorType::I32]);
                model.set_tensor_type(&name, kind);
                said.push(format!("{name}: {kind:?}"));
            }
            1 => {
                let name = random.of(&tensors);
                let shape: Vec<u32> = (0..=random.below(3)).map(|_| random.of(&[0, 1, 2, 32, 64, 128])).collect();
                model.set_shape(&name, &shape);
                said.push(format!("{name}: {shape:?}"));
            }
            2 => {
                let (key, _) = random.of(&known);
                model.remove(&key);
                said.push(format!("without {key}"));
            }
            _ => {
                let (key, value) = random.of(&known);
                let value = random.instead_of(&value);
                let shown: String = format!("{value:?}").chars().take(120).collect();
                said.push(format!("{key} = {shown}"));
                model.set(&key, value);
            }
        }
    }
    (model, said.join(", "))
}

/// Hardening 3: whatever is changed, our own look finds what llama.cpp would die of. `PONCHO_MUTATIONS` is how many files
/// of each kind are tried, `PONCHO_MUTATION_SEED` where to begin.
#[test]
fn no_changed_model_kills_the_process_that_tries_it() {
    let setting = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text}")))
    };
    let (count, first) = (setting("PONCHO_MUTATIONS", 25), setting("PONCHO_MUTATION_SEED", 1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut deaths = Vec::new();
    let mut passed = 0;
    for kind in ModelKind::ALL {
        for seed in first..first + count {
            let (model, changes) = mutated(kind, seed);
            model.write(&path).unwrap();
            let (status, said) = probe(&path, false);
            passed += u64::from(status.success());
            if status.signal().is_some() || !matches!(status.code(), Some(0 | 1)) {
                let last: Vec<&str> = said.lines().rev().take(2).collect();
                let death = format!("{kind:?} {seed}: {changes}: {status}: {last:?}");
                // A long run reports at once.
                eprintln!("{death}");
                deaths.push(death);
            }
        }
    }
    assert!(deaths.is_empty(), "{} deaths:\n{}", deaths.len(), deaths.join("\n"));
    // Changes that are all refused would prove little.
    assert!(passed > 0, "no changed model passed");
}
