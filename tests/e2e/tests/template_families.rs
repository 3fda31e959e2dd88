//! Tool turns on every chat template of llama.cpp's test set: called, sent back, and found again to the token.
//!
//! Each template gets a tiny generated model of its own, with the template's marks as tokens, on real
//! llama.cpp. The templates come from `scripts/fetch/llama_cpp.py`. Where they are missing the tests fail.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use poncho_cache::{Cache, CacheConfig};
use poncho_engine::backend::{ContextOptions, TokenizeMode};
use poncho_engine::{Engine, Model, ModelConfig};
use poncho_server::ServerConfig;
use poncho_testkit::vocabulary::Special;
use poncho_testkit::{ChatSpec, Mark, ModelKind, ModelSpec, path_of};
use serde_json::{Value, json};

use crate::scripted::{Script, ScriptedBackend};
use crate::support::{Server, with};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// Templates on which a conversation does not come to its end, with the words that say so. After a tool's answer this one
/// opens no new turn, and llama.cpp's grammar for it wants the mark of one all the same.
const KNOWN: [(&str, &str); 1] = [("deepseek-ai-DeepSeek-V3.2", "turn 1: not one call")];

/// Families with models that write calls in another way than their templates do, or with templates that leave calls out.
const ODD_SCRIPTS: &[(&str, &str)] = &[
    ("openai-gpt-oss-120b", "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS"),
    ("LFM2-8B-A1B", "<|tool_call_start|>[NAME(PYTHON)]<|tool_call_end|>"),
    ("LFM2.5-Instruct", "<|tool_call_start|>[NAME(PYTHON)]<|tool_call_end|>"),
    (
        "Apriel-1.6-15b-Thinker-fixed",
        r#"
[BEGIN FINAL RESPONSE]
<tool_calls>[{"name": "NAME", "arguments": ARGUMENTS}]</tool_calls>"#,
    ),
    (
        "CohereForAI-c4ai-command-r-plus-tool_use",
        r#"I look.
Action:
```json
[
    {
        "tool_name": "NAME",
        "parameters": ARGUMENTS
    }
]```"#,
    ),
    (
        "deepseek-ai-DeepSeek-V3.2",
        r#"</think>

<｜DSML｜function_calls>
<｜DSML｜invoke name="NAME">
DSML</｜DSML｜invoke>
</｜DSML｜function_calls>"#,
    ),
];

/// How a client talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    OpenAi,
    OpenAiStream,
    Anthropic,
}

/// What a client learns from an answer.
#[derive(Debug)]
struct Told {
    /// The message to send back.
    reply: Value,
    /// The answer of the tool, as the client sends it.
    result: Value,
    prompt: usize,
    completion: usize,
    cached: usize,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tools/llama.cpp/models/templates")
}

/// The names and texts of all templates.
fn templates() -> Vec<(String, String)> {
    let entries = fs::read_dir(folder()).unwrap_or_else(|error| {
        panic!("{}: {error}; run `make test` or scripts/fetch/llama_cpp.py", folder().display())
    });
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found: Vec<(String, String)> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "jinja"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();
    found.sort();
    assert!(found.len() > 60, "only {} templates; run scripts/fetch/llama_cpp.py", found.len());
    found
}

/// Marks that look like nothing else: MiniMax's.
const ODD_MARKS: [&str; 4] = ["]~!b[", "]~b]", "[e~[", "]<]minimax[>["];

/// What a model that was trained with this template has as tokens of their own.
fn marks(template: &str) -> Vec<Mark> {
    let usual = Special::ALL.map(Special::text);
    let mut marks: Vec<Mark> = Vec::new();
    let mut add = |text: &str| {
        if !usual.contains(&text) && !marks.iter().any(|mark| mark.text == text) {
            // llama.cpp makes those that end a turn control tokens by itself.
            marks.push(Mark { text: text.to_owned(), is_control: false });
        }
    };
    for odd in ODD_MARKS.iter().filter(|odd| template.contains(**odd)) {
        add(odd);
    }
    for (start, open) in template.char_indices().filter(|(_, c)| matches!(c, '<' | '[')) {
        let close = if open == '<' { '>' } else { ']' };
        let Some(end) = template[start..].find(close).filter(|end| *end < 48) else { continue };
        let text = &template[start..=start + end];
        let inside = &text[1..end];
        let bare = inside.trim_start_matches('/').trim_matches(['|', '｜']);
        let is_word = |c: char| c.is_alphanumeric() || "_-:.▁\"".contains(c);
        if bare.is_empty() || !bare.chars().all(is_word) {
            continue;
        }
        let is_upper = bare.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        match open {
            '<' => add(text),
            _ if is_upper && bare.len() > 2 => add(text),
            _ => {}
        }
    }
    marks
}

/// A model with a template, loaded under its name.
fn load(engine: &Engine, kind: ModelKind, name: &str, template: &str) -> Model {
    let chat = ChatSpec { template: template.to_owned(), marks: marks(template) };
    // Tests in other processes use the same templates, and each removes its file: no two may share one.
    let n_ctx_train = 32768 + std::process::id() % 4096;
    let spec = ModelSpec { chat: Some(chat), n_layers: 2, width: 32, n_ctx_train, ..ModelSpec::tiny(kind) };
    let path = path_of(&ModelSpec { head_size: if kind == ModelKind::Hybrid { 32 } else { 64 }, ..spec }).unwrap();
    let context = ContextOptions { n_ctx: 16384, n_seq_max: 2, threads: Some(1), ..ContextOptions::default() };
    let config = ModelConfig { context, ..ModelConfig::new(name, &path) };
    let model = engine.load(config).unwrap();
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    model
}

/// A server with models that write what a test wants.
struct Scripted {
    server: Server,
    script: Script,
}

impl std::ops::Deref for Scripted {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

async fn server() -> Scripted {
    let script = Script::default();
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(1 << 28)).unwrap());
    let engine = Engine::new(Arc::new(ScriptedBackend(Arc::clone(&script))), cache);
    Scripted { server: Server::of(Arc::new(engine), ServerConfig::default()).await, script }
}

/// Parameters with few allowed values: a call ends whatever the model would like to write.
fn parameters() -> [(&'static str, Value); 2] {
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let level = json!({"type": "integer", "description": "How bright", "minimum": 1, "maximum": 9});
    let hourly = json!({"type": "boolean", "description": "For each hour"});
    [
        ("get_weather", object(json!({"hourly": hourly, "days": level}), json!(["hourly", "days"]))),
        ("set_lamp", object(json!({"level": level}), json!(["level"]))),
    ]
}

const QUESTION: &str = "How is the weather?";
const RESULT: &str = "Sunny, 21 degrees.";

/// The fields of a request, without its messages
fn request(model: &Model, wire: Wire) -> Value {
    let tools = parameters().map(|(name, schema)| match wire {
        Wire::Anthropic => json!({"name": name, "description": "A tool.", "input_schema": schema}),
        _ => json!({"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}),
    });
    let body =
        json!({"model": model.id(), "temperature": 0, "seed": 3, "max_tokens": 500, "tools": tools, "poncho": true});
    if wire == Wire::Anthropic {
        return with(body, &json!({"tool_choice": {"type": "any", "disable_parallel_tool_use": true}}));
    }
    with(body, &json!({"tool_choice": "required", "parallel_tool_calls": false}))
}

/// What the template writes for a call of a tool where the model would write it; the grammar says how far that is right.
async fn script(server: &Server, model: &Model, turn: usize) -> Vec<u32> {
    let (name, arguments, python) = [
        ("set_lamp", r#"{"level":5}"#, "level=5"),
        ("get_weather", r#"{"days":3,"hourly":true}"#, "days=3, hourly=True"),
    ][turn % 2];
    let call = json!({"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}});
    let asked = json!([{"role": "user", "content": QUESTION}]);
    let called = json!([asked[0], {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": RESULT}]);
    let rendered = async |messages: Value| {
        let body = with(request(model, Wire::OpenAi), &json!({"messages": messages}));
        let answer = server.post("/apply-template", &body).await;
        if answer.status == 200 { answer.json()["prompt"].as_str().unwrap().to_owned() } else { String::new() }
    };
    let odd = ODD_SCRIPTS.iter().find(|(odd, _)| *odd == model.id());
    let text = match odd {
        Some((_, text)) => {
            let dsml = python.to_lowercase().split(", ").filter_map(|one| one.split_once('=')).fold(
                String::new(),
                |all, (key, value)| {
                    format!("{all}<｜DSML｜parameter name=\"{key}\" string=\"false\">{value}</｜DSML｜parameter>\n")
                },
            );
            let text = text.replace("NAME", name).replace("ARGUMENTS", arguments).replace("PYTHON", python);
            text.replace("\nDSML<", &format!("\n{dsml}<"))
        }
        None => written_after(&rendered(asked).await, &rendered(called).await),
    };
    model.tokenize(&text, TokenizeMode { add_special: false, parse_special: true }).unwrap()
}

/// What a conversation has after a prompt, up to the tool's answer; thinking that the prompt opened is closed.
fn written_after(prompt: &str, conversation: &str) -> String {
    let common = prompt.bytes().zip(conversation.bytes()).take_while(|(one, other)| one == other).count();
    let common = (0..=common).rev().find(|at| prompt.is_char_boundary(*at)).unwrap_or(0);
    // The two may part inside of a mark.
    let inside = prompt[..common]
        .rfind(['<', '['])
        .filter(|at| common < prompt.len() && !prompt[*at..common].contains(['>', ']']));
    let written = conversation[inside.unwrap_or(common)..].split_once(RESULT).map_or("", |(turn, _)| turn);
    let opened = prompt.trim_end();
    let last = opened.rfind(['<', '[']).map_or("", |at| &opened[at..]);
    let close = format!("{}/{}", &last[..last.len().min(1)], &last[last.len().min(1)..]);
    let thinks = last.ends_with(['>', ']']) && last.to_lowercase().contains("think") && !last.contains(['/', '|']);
    if thinks && !written.contains(&close) { format!("{close}\n{written}") } else { written.to_owned() }
}

fn size(value: &Value) -> usize {
    value.as_u64().and_then(|value| usize::try_from(value).ok()).unwrap_or_else(|| panic!("{value} is not a size"))
}

/// Sends a turn and reads the answer; what is wrong with it, if something is.
async fn ask(server: &Server, wire: Wire, body: &Value) -> Result<Told, String> {
    match wire {
        Wire::OpenAi => {
            let answer = server.post(CHAT, body).await;
            if answer.status != 200 {
                return Err(format!("{}: {}", answer.status, answer.text));
            }
            let answer = answer.json();
            let choice = &answer["choices"][0];
            told(&choice["message"], &choice["finish_reason"], &answer["usage"])
        }
        Wire::OpenAiStream => {
            let body = with(body.clone(), &json!({"stream": true, "stream_options": {"include_usage": true}}));
            let answer = server.post(CHAT, &body).await;
            if answer.status != 200 {
                return Err(format!("{}: {}", answer.status, answer.text));
            }
            let chunks = answer.chunks();
            let deltas = || chunks.iter().filter_map(|chunk| chunk["choices"].get(0)).map(|choice| &choice["delta"]);
            let content: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
            let mut calls: Vec<Value> = Vec::new();
            for piece in deltas().filter_map(|delta| delta["tool_calls"].as_array()).flatten() {
                let place = size(&piece["index"]);
                if place == calls.len() {
                    calls.push(piece.clone());
                } else {
                    let arguments = &mut calls[place]["function"]["arguments"];
                    let more = piece["function"]["arguments"].as_str().unwrap_or_default();
                    *arguments = format!("{}{more}", arguments.as_str().unwrap_or_default()).into();
                }
            }
            let finish =
                chunks.iter().filter_map(|chunk| chunk["choices"].get(0)).map(|choice| &choice["finish_reason"]);
            let finish = finish.rev().find(|finish| !finish.is_null()).cloned().unwrap_or_default();
            let usage = chunks.iter().map(|chunk| &chunk["usage"]).rfind(|usage| usage.is_object());
            told(&json!({"content": content, "tool_calls": calls}), &finish, usage.unwrap_or(&Value::Null))
        }
        Wire::Anthropic => {
            let answer = server.post(MESSAGES, body).await;
            if answer.status != 200 {
                return Err(format!("{}: {}", answer.status, answer.text));
            }
            let answer = answer.json();
            let blocks = answer["content"].as_array().unwrap();
            let Some(call) = blocks.iter().find(|block| block["type"] == "tool_use") else {
                return Err(format!("no call: {answer}"));
            };
            is_a_call(&call["name"], &call["input"])?;
            let result = json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": call["id"], "content": RESULT}]});
            let usage = &answer["usage"];
            let cached = size(&usage["cache_read_input_tokens"]);
            Ok(Told {
                reply: json!({"role": "assistant", "content": blocks}),
                result,
                prompt: size(&usage["input_tokens"]) + cached + size(&usage["cache_creation_input_tokens"]),
                completion: size(&usage["output_tokens"]),
                cached,
            })
        }
    }
}

fn told(message: &Value, finish: &Value, usage: &Value) -> Result<Told, String> {
    let [call] = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default() else {
        return Err(format!("not one call: {finish} {message}"));
    };
    if finish != "tool_calls" {
        return Err(format!("ended with {finish}: {message}"));
    }
    let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
    let arguments: Value = serde_json::from_str(arguments).map_err(|error| format!("{error}: {message}"))?;
    is_a_call(&call["function"]["name"], &arguments)?;
    let call = json!({"id": call["id"], "type": "function", "function": call["function"]});
    Ok(Told {
        result: json!({"role": "tool", "tool_call_id": call["id"], "content": RESULT}),
        reply: json!({"role": "assistant", "content": message["content"], "tool_calls": [call]}),
        prompt: size(&usage["prompt_tokens"]),
        completion: size(&usage["completion_tokens"]),
        cached: size(&usage["prompt_tokens_details"]["cached_tokens"]),
    })
}

fn is_a_call(name: &Value, arguments: &Value) -> Result<(), String> {
    let is_level = |value: &Value| value.as_u64().is_some_and(|level| (1..=9).contains(&level));
    let fits = match name.as_str() {
        Some("get_weather") => is_level(&arguments["days"]) && arguments["hourly"].is_boolean(),
        Some("set_lamp") => is_level(&arguments["level"]),
        _ => false,
    };
    if fits { Ok(()) } else { Err(format!("no call of ours: {name} {arguments}")) }
}

/// A conversation of three turns, each of which must find all that was computed before it.
async fn converse(server: &Scripted, model: &Model, wire: Wire) -> Result<(), String> {
    let mut messages = vec![json!({"role": "user", "content": QUESTION})];
    let mut computed = 0;
    for turn in 0..3 {
        let body = with(request(model, wire), &json!({"messages": messages}));
        let next = script(server, model, turn).await;
        server.script.lock().unwrap().clone_from(&next);
        let told = ask(server, wire, &body).await.map_err(|error| format!("turn {turn}: {error}"))?;
        if told.cached < computed {
            let place = parting(server, wire, &body, told.cached).await;
            return Err(format!("turn {turn}: {} of {computed} tokens were found: {place}", told.cached));
        }
        // The token that ends a reply was drawn and never computed.
        computed = told.prompt + told.completion - 1;
        messages.extend([told.reply, told.result]);
    }
    Ok(())
}

/// The text of a prompt around a token.
async fn parting(server: &Server, wire: Wire, body: &Value, place: usize) -> String {
    if wire == Wire::Anthropic {
        return String::new();
    }
    let tokens = server.ask("/apply-template", body).await["tokens"].as_array().unwrap().clone();
    let text = async |tokens: &[Value]| {
        let body = json!({"model": body["model"], "tokens": tokens});
        server.ask("/detokenize", &body).await["content"].as_str().unwrap().to_owned()
    };
    let (before, after) = tokens.split_at(place.min(tokens.len()));
    let before = text(&before[before.len().saturating_sub(60)..]).await;
    format!("{before:?} HERE {:?}", text(&after[..after.len().min(120)]).await)
}

/// Has the conversation on each of these templates and reports what went wrong.
async fn check(kind: ModelKind, wire: Wire, templates: impl Iterator<Item = (String, String)>) {
    let server = server().await;
    let (mut failed, mut count) = (Vec::new(), 0);
    for (name, template) in templates {
        let model = load(&server.engine, kind, &name, &template);
        let known = KNOWN.iter().find(|(known, _)| *known == name).map(|(_, words)| *words);
        match (converse(&server, &model, wire).await, known) {
            (Ok(()), None) => {}
            (Err(error), Some(words)) if error.starts_with(words) => {}
            (Ok(()), Some(_)) => failed.push(format!("{name}: works now; take it off the list")),
            (Err(error), _) => failed.push(format!("{name}: {error}")),
        }
        drop(model);
        let engine = Arc::clone(&server.engine);
        tokio::task::spawn_blocking(move || engine.unload(&name).unwrap()).await.unwrap();
        count += 1;
    }
    assert!(failed.is_empty(), "{} of {count} templates:\n{}", failed.len(), failed.join("\n"));
}

/// Every n-th template, so that the parts can run beside each other.
fn part(place: usize, of: usize) -> impl Iterator<Item = (String, String)> {
    templates().into_iter().skip(place).step_by(of)
}

#[tokio::test]
async fn every_template_first_part() {
    check(ModelKind::Attention, Wire::OpenAi, part(0, 2)).await;
}

#[tokio::test]
async fn every_template_second_part() {
    check(ModelKind::Attention, Wire::OpenAi, part(1, 2)).await;
}

/// Some families, of every kind of format.
const SOME: [&str; 8] = [
    "Qwen3-Coder",
    "Kimi-K2-Instruct",
    "Apertus-8B-Instruct",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "meetkai-functionary-medium-v3.2",
    "deepseek-ai-DeepSeek-V3.1",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "google-gemma-2-2b-it",
];

fn some() -> impl Iterator<Item = (String, String)> {
    templates().into_iter().filter(|(name, _)| SOME.contains(&name.as_str()))
}

#[tokio::test]
async fn some_templates_streamed() {
    check(ModelKind::Attention, Wire::OpenAiStream, some()).await;
}

#[tokio::test]
async fn some_templates_in_anthropics_words() {
    check(ModelKind::Attention, Wire::Anthropic, some()).await;
}

#[tokio::test]
async fn some_templates_on_a_model_that_cannot_be_cut() {
    check(ModelKind::Recurrent, Wire::OpenAi, some()).await;
}

#[test]
fn the_documentation_lists_every_template() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/tools-and-hygiene.md");
    let page = fs::read_to_string(page).unwrap();
    let missing: Vec<String> =
        templates().into_iter().map(|(name, _)| name).filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/tools-and-hygiene.md does not name {missing:?}");
}
