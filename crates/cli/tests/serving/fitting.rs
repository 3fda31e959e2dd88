//! Settings that fit: what a start without flags chooses, prints and keeps, and what happens if memory is gone.
//!
//! `--memory` stands for the memory of a machine. Contexts are long so that a tiny model needs some.

use std::path::{Path, PathBuf};
use std::process::Command;

use poncho_testkit::{LargeModel, ModelKind, ModelSpec, path_of, write_sparse_model};
use serde_json::{Value, json};

use crate::served::Served;
use crate::support::{poncho, run};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A tiny model with a long context: half a gigabyte for four requests.
fn long_context() -> PathBuf {
    path_of(&ModelSpec { n_ctx_train: 131_072, ..ModelSpec::tiny(ModelKind::Attention) }).unwrap()
}

fn fit(model: &Path, cache: &Path, words: &[&str]) -> Value {
    let mut command = poncho();
    command.arg("fit").arg(model).args(["--json", "--cache-dir"]).arg(cache).args(words);
    let done = run(&mut command);
    assert!(done.code == Some(0) || done.code == Some(1), "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}{}", done.stdout, done.stderr))
}

fn serve(model: &Path, folder: &Path, words: &[&str]) -> Command {
    let mut command = poncho();
    command.arg("serve").arg(model).args(["--port", "0", "--threads", "1", "--name", "m", "--cache-size", "1GiB"]);
    command.arg("--cache-dir").arg(folder.join("kv")).args(words);
    command
}

fn host_needs(plan: &Value) -> u64 {
    ["weights", "context", "compute"].iter().map(|part| plan["needs"]["host"][part].as_u64().unwrap()).sum()
}

fn ask(served: &Served) -> (String, u64) {
    let story: String = (1..=40).map(|line| format!("Line {line} of the story. ")).collect();
    let body = json!({"model": "m", "prompt": story, "max_tokens": 2, "temperature": 0, "poncho": true});
    let answer = served.post("/v1/completions", &body);
    (answer["poncho"]["hit"].as_str().unwrap().to_owned(), answer["poncho"]["cached_tokens"].as_u64().unwrap())
}

/// Another KV type is another namespace: without the kept plan, the second start would find nothing.
#[test]
fn the_second_start_finds_the_rows_of_the_first_with_a_little_less_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (long_context(), folder.path().join("kv"));
    let chosen = |memory: u64, words: &[&str]| {
        let plan = fit(&model, &cache, &[&["--memory", memory.to_string().as_str()][..], words].concat());
        (plan["cache_type_k"].as_str().unwrap().to_owned(), plan["parallel"].as_u64().unwrap())
    };
    // The least memory with which keys and values keep 16 bits; a little less is not enough for a start alone.
    let (mut too_little, mut first) = (300 * MIB, 2048 * MIB);
    while first - too_little > 4 * MIB {
        let middle = (first + too_little) / 2;
        let is_enough = chosen(middle, &[]).0 == "f16";
        *(if is_enough { &mut first } else { &mut too_little }) = middle;
    }
    let second = first - 16 * MIB;
    assert_eq!(chosen(first, &[]), ("f16".to_owned(), 1));
    assert_eq!(chosen(second, &[]).0, "q8_0", "what a start alone would choose");

    let served =
        Served::start_command(&mut serve(&model, folder.path(), &["--memory", &first.to_string()]), folder.path());
    assert!(served.greeting.contains("fit:     1 request at once; 4 do not fit (--parallel)"), "{}", served.greeting);
    assert_eq!(ask(&served).0, "cold");
    assert_eq!(served.stop().0, Some(0));

    assert_eq!(chosen(second, &[]).0, "f16", "the KV type is kept");
    assert_eq!(chosen(second, &["--again"]).0, "q8_0");
    let served =
        Served::start_command(&mut serve(&model, folder.path(), &["--memory", &second.to_string()]), folder.path());
    let (hit, cached) = ask(&served);
    assert!(hit != "cold" && cached >= 512, "{hit} {cached}\n{}", served.greeting);
    assert_eq!(served.stop().0, Some(0));
}

#[test]
fn a_start_without_flags_prints_each_choice_with_its_flag() {
    let folder = tempfile::tempdir().unwrap();
    let served =
        Served::start_command(&mut serve(&long_context(), folder.path(), &["--memory", "8GiB"]), folder.path());
    for line in [
        "fit:     context 131072 tokens, as trained (--ctx-size)",
        "fit:     4 requests at once (--parallel)",
        "fit:     KV cache in f16 (--cache-type-k, --cache-type-v)",
        "of memory for cached states (--cache-ram)",
    ] {
        assert!(served.greeting.contains(line), "{line}\n{}", served.greeting);
    }
    assert!(!served.greeting.contains("--cache-size"), "it was given: {}", served.greeting);
    assert_eq!(served.stop().0, Some(0));
}

#[test]
fn given_values_stay_and_what_does_not_fit_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("kv");
    let given = ["--ctx-size", "65536", "--parallel", "3", "--cache-ram", "7MiB", "--memory", "480MiB"];
    let plan = fit(&long_context(), &cache, &given);
    assert_eq!((&plan["ctx_size"], &plan["parallel"], &plan["cache_ram"]), (&json!(65536), &json!(3), &json!(7 * MIB)));
    assert_eq!((&plan["fits"], &plan["step"]), (&json!(true), &json!("smaller-kv")), "{plan}");
    let mut command = poncho();
    command.arg("fit").arg(long_context()).args(["--no-mmap", "--ctx-size", "131072", "--memory", "300MiB"]);
    let refused = run(command.arg("--cache-dir").arg(&cache));
    assert_eq!(refused.code, Some(1));
    assert!(refused.stdout.contains("does not fit; use a smaller model"), "{}", refused.stdout);
    assert!(!folder.path().join("kv.plans").exists(), "nothing is written");
}

/// The context of a Modelfile was put over a plan that had been made for another one, and did not fit.
#[test]
fn a_plan_counts_with_the_context_and_the_layers_of_a_modelfile() {
    let folder = tempfile::tempdir().unwrap();
    let (models, cache) = (folder.path().join("models"), folder.path().join("kv"));
    let create = |name: &str, parameters: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, format!("FROM {}\n{parameters}", long_context().display())).unwrap();
        let done = run(poncho().args(["create", name, "-f"]).arg(&file).arg("--models-dir").arg(&models));
        assert_eq!(done.code, Some(0), "{}", done.stderr);
    };
    create("long", "PARAMETER num_ctx 65536\nPARAMETER num_gpu 0\n");
    create("short", "PARAMETER num_ctx 4096\n");
    create("held", "PARAMETER num_ctx 65536\nPARAMETER use_mmap false\n");
    let models = models.to_str().unwrap();
    let words = ["--models-dir", models, "--parallel", "3", "--memory", "480MiB"];
    let plan = |name: &str| fit(Path::new(name), &cache, &words);
    let (long, short) = (plan("long"), plan("short"));
    assert_eq!((&long["ctx_size"], &long["gpu_layers"]), (&json!(65536), &json!(0)), "{long}");
    assert_eq!((&long["step"], &long["cache_type_k"]), (&json!("smaller-kv"), &json!("q8_0")), "{long}");
    assert!(host_needs(&long) < 480 * MIB, "{long}");
    assert_eq!((&short["ctx_size"], &short["step"]), (&json!(4096), &json!("wanted")), "one file, two plans: {short}");
    let server = ["--ctx-size", "1024"];
    let over = fit(Path::new("short"), &cache, &[&words[..], &server].concat());
    assert_eq!(over["ctx_size"], 4096, "a Modelfile stands over the server, as when the model is loaded");
    assert_eq!(plan("held")["fits"], true);
    let mut command = poncho();
    let shown = run(command.args(["fit", "long", "--cache-dir"]).arg(&cache).args(words));
    assert!(!shown.stdout.contains("--ctx-size") && shown.stdout.contains("KV cache in q8_0"), "{}", shown.stdout);
}

/// Large models by the arithmetic of a sparse file, measured by llama.cpp without a byte of weights.
#[test]
fn large_models_are_planned_within_the_memory_of_small_machines() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (folder.path().join("large.gguf"), folder.path().join("kv"));
    write_sparse_model(&LargeModel::EIGHT_B, &model).unwrap();
    let mut before = 0;
    for gigabytes in [2, 4, 8, 16, 24, 48] {
        let memory = format!("{gigabytes}GiB");
        let plan = fit(&model, &cache, &["--again", "--memory", &memory]);
        let n_ctx = plan["ctx_size"].as_u64().unwrap();
        if plan["fits"] == true {
            assert!(host_needs(&plan) < gigabytes * GIB, "{plan}");
            assert!(n_ctx >= before, "{plan}");
            before = n_ctx;
        } else {
            let needs = &plan["needs"]["host"];
            let allocated = needs["context"].as_u64().unwrap() + needs["compute"].as_u64().unwrap();
            assert!(plan["step"] == "weights-from-disk" && allocated < gigabytes * GIB / 2, "{plan}");
        }
    }
    // A damaged head must not end the command: the estimate stands.
    let bytes = std::fs::read(path_of(&ModelSpec::tiny(ModelKind::Attention)).unwrap()).unwrap();
    std::fs::write(&model, &bytes[..bytes.len() / 2]).unwrap();
    assert!(fit(&model, &cache, &["--memory", "300MiB"])["ctx_size"].is_number());
}
