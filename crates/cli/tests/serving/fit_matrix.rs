//! The fit matrix: starts without settings on machines of many sizes. None may run out of memory, each has 32,768 tokens
//! of context if that fits, and the second start finds all rows of the first.
//!
//! Hosts are control groups with a limit on memory. Where none can be made, `--memory` stands for the limit, and the test
//! says so. GPUs are given to the planner as numbers. A run of all tests has a small part; `make fit-matrix` sets
//! `PONCHO_FIT_MATRIX`, runs all of it and prints a table (docs/fit.md).

mod group;

use std::path::{Path, PathBuf};
use std::process::Command;

use poncho_testkit::{LargeModel, ModelKind, ModelSpec, default_model_path, path_of, write_sparse_model};
use serde_json::{Value, json};

use self::group::Group;
use crate::served::Served;
use crate::support::{poncho, run};

const GIB: u64 = 1 << 30;
/// The context that a plan has if it fits.
const GOOD: u64 = 32_768;

fn is_whole() -> bool {
    std::env::var_os("PONCHO_FIT_MATRIX").is_some()
}

/// Where a server is started.
enum Host {
    Limited(Group),
    /// No group can be made; the bytes are given with `--memory`.
    Told(u64),
}

impl Host {
    fn new(name: &str, limit: u64) -> Self {
        match Group::new(name, limit) {
            Ok(group) => Self::Limited(group),
            Err(why) => {
                println!("no control group ({why}): --memory stands for the limit");
                Self::Told(limit)
            }
        }
    }

    fn set_limit(&mut self, limit: u64) {
        match self {
            Self::Limited(group) => group.set_limit(limit).unwrap(),
            Self::Told(bytes) => *bytes = limit,
        }
    }

    fn command(&self, command: &mut Command) -> Command {
        match self {
            Self::Limited(group) => group.enter(command),
            Self::Told(bytes) => Group::outside(command.args(["--memory", &bytes.to_string()])),
        }
    }

    fn kills(&self) -> u64 {
        if let Self::Limited(group) = self { group.kills() } else { 0 }
    }

    fn peak(&self) -> String {
        let peak = if let Self::Limited(group) = self { group.peak() } else { None };
        peak.map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes >> 20))
    }
}

/// Attention models with 1, 16 and 32 KiB for a token, and one of each other kind of memory; all trained for long contexts.
/// The default model is a real one.
fn models() -> Vec<(&'static str, PathBuf)> {
    let long = |spec: ModelSpec| path_of(&ModelSpec { n_ctx_train: 131_072, ..spec }).unwrap();
    let attention = ModelSpec::tiny(ModelKind::Attention);
    let mut models = vec![
        ("16 KiB a token", long(ModelSpec { n_layers: 16, head_size: 256, ..attention.clone() })),
        ("hybrid", long(ModelSpec::tiny(ModelKind::Hybrid))),
        ("SmolLM2 135M", default_model_path()),
    ];
    if is_whole() {
        models.push(("32 KiB a token", long(ModelSpec { n_layers: 32, head_size: 256, ..attention.clone() })));
        models.push(("1 KiB a token", long(attention)));
        models.push(("window", long(ModelSpec::tiny(ModelKind::Window))));
        models.push(("recurrent", long(ModelSpec::tiny(ModelKind::Recurrent))));
    }
    models
}

fn fit(host: Option<&Host>, model: &Path, cache: &Path, words: &[&str]) -> Value {
    let mut command = poncho();
    command.arg("fit").arg(model).args(["--json", "--cache-dir"]).arg(cache).args(words);
    let done = match host {
        Some(host) => run(&mut host.command(&mut command)),
        None => run(&mut command),
    };
    assert!(done.code == Some(0) || done.code == Some(1), "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", done.stdout, done.stderr))
}

/// A plan has a good context if some choice of the user's with one fits.
#[track_caller]
fn check_context(plan: &Value, fit: impl Fn(&[&str]) -> Value) {
    let trained = plan["trained_context"].as_u64().unwrap_or(GOOD);
    let (wanted, chosen) = (GOOD.min(trained), plan["ctx_size"].as_u64().unwrap());
    if chosen >= wanted {
        return;
    }
    let context = wanted.to_string();
    for placing in [&["--gpu-layers", "all"][..], &["--gpu-layers", "all", "--cpu-moe"], &["--gpu-layers", "0"]] {
        let least = ["--ctx-size", &context, "--parallel", "1", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"];
        let given = fit(&[&least[..], placing].concat());
        assert_eq!(given["fits"], false, "{chosen} tokens, but {placing:?} has room for {wanted}: {plan} {given}");
    }
}

fn host_needs(plan: &Value) -> u64 {
    ["weights", "context", "compute"].iter().map(|part| plan["needs"]["host"][part].as_u64().unwrap()).sum()
}

/// Asks about three stories. Returns tokens found and tokens in all.
fn ask(served: &Served) -> (u64, u64) {
    let (mut found, mut all) = (0, 0);
    for title in ["The poncho", "A river", "Nine hills"] {
        let story: String = (1..=90).map(|line| format!("{title}, line {line} of it. ")).collect();
        let body = json!({"model": "m", "prompt": story, "max_tokens": 2, "temperature": 0, "poncho": true});
        let answer = served.post("/v1/completions", &body);
        found += answer["poncho"]["cached_tokens"].as_u64().unwrap();
        all += answer["usage"]["prompt_tokens"].as_u64().unwrap();
    }
    (found, all)
}

/// Two starts on one host; the second has a little more or a little less memory.
fn start_twice(name: &str, model: &Path, gigabytes: u64, number: u64) -> String {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("kv");
    let mut host = Host::new(&format!("fit{number}"), gigabytes * GIB);
    let plan = fit(Some(&host), model, &cache, &[]);
    check_context(&plan, |words| fit(Some(&host), model, &cache, &[&["--again"], words].concat()));
    let start = |host: &Host| {
        let mut command = poncho();
        command.arg("serve").arg(model).args(["--port", "0", "--threads", "1", "--name", "m", "--cache-size", "2GiB"]);
        let served = Served::start_command(&mut host.command(command.arg("--cache-dir").arg(&cache)), folder.path());
        let tokens = plan["ctx_size"].as_u64().unwrap();
        assert!(served.greeting.contains(&format!("context {tokens} tokens")), "{plan}\n{}", served.greeting);
        served
    };
    let served = start(&host);
    let (found, all) = ask(&served);
    assert!(found * 100 < all, "{name}: {found} of {all} tokens found, and nothing is stored yet");
    assert_eq!(served.stop().0, Some(0), "{name}");
    let few = gigabytes * GIB / 32;
    host.set_limit(if number.is_multiple_of(2) { gigabytes * GIB - few } else { gigabytes * GIB + few });
    let served = start(&host);
    let (found, all) = ask(&served);
    assert!(found * 10 >= all * 9, "{name} on {gigabytes} GiB: {found} of {all} tokens found\n{}", served.greeting);
    assert_eq!(served.stop().0, Some(0), "{name}");
    assert_eq!(host.kills(), 0, "{name} on {gigabytes} GiB ran out of memory");
    let chosen = [&plan["ctx_size"], &plan["parallel"]].map(Value::to_string).join(" | ");
    let (kind, needs, peak) = (plan["cache_type_k"].as_str().unwrap(), host_needs(&plan) >> 20, host.peak());
    format!("| {gigabytes} GiB | {name} | {chosen} | {kind} | {needs} MiB | {peak} | {found} of {all} |")
}

#[test]
fn no_start_runs_out_of_memory_and_the_second_finds_the_rows_of_the_first() {
    let hosts: &[u64] = if is_whole() { &[2, 4, 8, 16] } else { &[2] };
    println!("| Host | Model | Context | At once | KV | Planned | Peak | Found by the second start |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut number = 0;
    for gigabytes in hosts {
        for (name, model) in models() {
            println!("{}", start_twice(name, &model, *gigabytes, number));
            number += 1;
        }
    }
    println!("{} starts, 0 out of memory", 2 * number);
}

/// Large models by the arithmetic of sparse files, for machines with and without GPUs.
#[test]
fn large_models_fit_machines_with_gpus_and_have_a_good_context_where_possible() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (folder.path().join("large.gguf"), folder.path().join("kv"));
    let shapes = [
        ("7B Q4_0", LargeModel::SEVEN_B_Q4),
        ("32B Q4_0", LargeModel::THIRTY_TWO_B_Q4),
        ("30B experts Q4_0", LargeModel::THIRTY_B_EXPERTS_Q4),
    ];
    let (hosts, gpus): (&[u64], &[u64]) =
        if is_whole() { (&[2, 4, 8, 16, 32, 64], &[0, 4, 12, 24]) } else { (&[16], &[4, 12]) };
    println!("| Model | Host | GPU | Context | At once | KV | Layers on the GPU | Experts on the CPU | Step |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for (name, shape) in shapes {
        write_sparse_model(&shape, &model).unwrap();
        for (host, gpu) in hosts.iter().flat_map(|host| gpus.iter().map(move |gpu| (*host, *gpu))) {
            let (memory, device) = (format!("{host}GiB"), format!("{gpu}GiB"));
            let mut machine = vec!["--with-memory", &memory];
            if gpu > 0 {
                machine.extend(["--with-gpu", &device]);
            }
            let plan = fit(None, &model, &cache, &machine);
            check_context(&plan, |words| fit(None, &model, &cache, &[&machine[..], words].concat()));
            if plan["fits"] == true {
                assert!(host_needs(&plan) < host * GIB, "{plan}");
            }
            for need in plan["needs"]["devices"].as_array().unwrap() {
                let all: u64 = need.as_object().unwrap().values().map(|part| part.as_u64().unwrap()).sum();
                assert!(all < gpu * GIB || plan["step"] == "does-not-fit", "{plan}");
            }
            let shown = |key: &str| plan[key].to_string().replace('"', "").replace("null", "all");
            let experts = if plan["n_cpu_moe"] == 0 { "0".to_owned() } else { shown("n_cpu_moe") };
            let layers = if gpu == 0 { "-".to_owned() } else { shown("gpu_layers") };
            let [context, parallel, kind, step] = ["ctx_size", "parallel", "cache_type_k", "step"].map(shown);
            println!(
                "| {name} | {host} GiB | {gpu} GiB | {context} | {parallel} | {kind} | {layers} | {experts} | {step} |"
            );
        }
    }
}
