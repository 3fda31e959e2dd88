//! Recorded conversations: the file format, and the requests in it.
//!
//! Used by the replay and the comparison. A trace contains its messages once and lists for each request which of them were
//! sent; docs/replay.md describes the fields. Messages and tools are passed on byte for byte. An impossible request is an
//! error: a replay that leaves something out would measure something else.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

/// A recorded conversation, or several that ran side by side.
#[derive(Debug)]
pub(crate) struct Trace {
    /// The file's name without its ending.
    pub(crate) name: String,
    /// What was sent, in the order in which it was.
    pub(crate) requests: Vec<TraceRequest>,
}

/// What one request sent, and what came back.
#[derive(Debug)]
pub(crate) struct TraceRequest {
    /// The conversation that it belongs to, where several ran side by side.
    pub(crate) thread: Option<String>,
    /// The system prompt, if there is one, and the messages.
    pub(crate) messages: Vec<Box<RawValue>>,
    pub(crate) tools: Vec<Box<RawValue>>,
    /// The text of the recorded reply; none if the trace ends before it.
    pub(crate) reply: Option<String>,
}

#[derive(Deserialize)]
struct File {
    system: Option<String>,
    #[serde(default)]
    systems: Vec<String>,
    tools: Option<Vec<Box<RawValue>>>,
    #[serde(default)]
    toolsets: Vec<Vec<Box<RawValue>>>,
    turns: Option<Vec<Box<RawValue>>>,
    threads: Option<BTreeMap<String, Vec<Box<RawValue>>>>,
    requests: Vec<FileRequest>,
}

#[derive(Deserialize)]
struct FileRequest {
    upto: usize,
    edits: Option<Edits>,
    sys: Option<usize>,
    tset: Option<usize>,
    thread: Option<String>,
}

/// What a request changed in the conversation. An edit of another kind must not be overlooked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edits {
    order: Vec<usize>,
}

/// The traces of some files and folders; a folder stands for the JSON files in it.
pub(crate) fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for path in paths {
        if !path.is_dir() {
            traces.push(read(path)?);
            continue;
        }
        let listed = || format!("cannot list the folder {}", path.display());
        let entries = fs::read_dir(path).with_context(listed)?.collect::<Result<Vec<_>, _>>().with_context(listed)?;
        let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
        files.sort();
        ensure!(!files.is_empty(), "the folder {} contains no traces (files ending in .json)", path.display());
        for file in files {
            traces.push(read(&file)?);
        }
    }
    Ok(traces)
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the trace {}", path.display()))?;
    let requests =
        parse(&text).with_context(|| format!("{} is not a valid trace (see docs/replay.md)", path.display()))?;
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Trace { name, requests })
}

/// The requests that the text of a file stands for.
fn parse(text: &str) -> anyhow::Result<Vec<TraceRequest>> {
    ensure!(text.trim_start().starts_with('{'), "it is not a JSON object");
    let file: File = serde_json::from_str(text)?;
    ensure!(!file.requests.is_empty(), "`requests` is empty");
    let request = |(index, request): (usize, &FileRequest)| {
        file.request(request).with_context(|| format!("requests[{index}] cannot be sent"))
    };
    file.requests.iter().enumerate().map(request).collect()
}

impl File {
    fn request(&self, request: &FileRequest) -> anyhow::Result<TraceRequest> {
        let turns = self.conversation(request.thread.as_deref())?;
        let (sent, next) = match &request.edits {
            None => {
                let sent = turns.get(..request.upto);
                let sent = sent.with_context(|| {
                    format!("`upto` is {}, but the conversation has {} messages", request.upto, turns.len())
                })?;
                (sent.to_vec(), turns.get(request.upto))
            }
            Some(Edits { order }) => {
                let entry = |index: &usize| {
                    turns.get(*index).cloned().with_context(|| {
                        format!("`edits.order` names message {index}, but the conversation has {}", turns.len())
                    })
                };
                let sent = order.iter().map(entry).collect::<anyhow::Result<Vec<_>>>()?;
                // The reply to an edited request follows the last message that it sent.
                (sent, order.last().and_then(|last| turns.get(last + 1)))
            }
        };
        let system = match request.sys {
            None => self.system.as_ref(),
            Some(number) => Some(self.systems.get(number).with_context(|| {
                format!("`sys` is {number}, but `systems` has {} system prompts", self.systems.len())
            })?),
        };
        let tools = match request.tset {
            None => self.tools.as_deref().unwrap_or(&[]),
            Some(number) => self
                .toolsets
                .get(number)
                .with_context(|| format!("`tset` is {number}, but `toolsets` has {} lists", self.toolsets.len()))?,
        };
        let mut messages = Vec::with_capacity(sent.len() + 1);
        if let Some(system) = system {
            messages.push(to_raw_value(&json!({"role": "system", "content": system}))?);
        }
        messages.extend(sent);
        ensure!(!messages.is_empty(), "it sends no message");
        Ok(TraceRequest {
            thread: request.thread.clone(),
            messages,
            tools: tools.to_vec(),
            reply: next.and_then(|message| reply_text(message)),
        })
    }

    fn conversation(&self, thread: Option<&str>) -> anyhow::Result<&[Box<RawValue>]> {
        match (thread, &self.threads) {
            (None, _) => self.turns.as_deref().context("the trace has no `turns`, and the request names no `thread`"),
            (Some(name), None) => bail!("it names the thread {name:?}, but the trace has no `threads`"),
            (Some(name), Some(threads)) => {
                let names: Vec<&str> = threads.keys().map(String::as_str).collect();
                let known = threads.get(name).map(Vec::as_slice);
                known.with_context(|| format!("it names the thread {name:?}; the trace has {}", names.join(", ")))
            }
        }
    }
}

/// What a model would have generated for a message of the assistant: its text and its tool calls.
fn reply_text(message: &RawValue) -> Option<String> {
    let message: Value = serde_json::from_str(message.get()).ok()?;
    if message.get("role")?.as_str()? != "assistant" {
        return None;
    }
    let mut text = String::new();
    for field in ["reasoning_content", "content"] {
        text.push_str(message.get(field).and_then(Value::as_str).unwrap_or_default());
    }
    for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        let function = call.get("function");
        for field in ["name", "arguments"] {
            text.push_str(
                function.and_then(|function| function.get(field)).and_then(Value::as_str).unwrap_or_default(),
            );
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(request: &TraceRequest) -> Vec<String> {
        let content = |message: &RawValue| {
            let message: Value = serde_json::from_str(message.get()).unwrap();
            format!("{}:{}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
        };
        request.messages.iter().map(|message| content(message)).collect()
    }

    fn refusal(trace: &Value) -> String {
        format!("{:#}", parse(&trace.to_string()).unwrap_err())
    }

    fn turns(count: usize) -> Vec<Value> {
        let role = |number: usize| if number.is_multiple_of(2) { "user" } else { "assistant" };
        (0..count).map(|number| json!({"role": role(number), "content": number.to_string()})).collect()
    }

    #[test]
    fn a_request_sends_the_system_prompt_and_the_first_messages() {
        let trace = json!({
            "id": "ignored", "byte_stats": {"requests": 2}, "system": "S", "tools": [{"b": 1, "a": 2}],
            "turns": turns(4), "requests": [{"upto": 1, "edits": null, "t": 1.5}, {"upto": 3, "edits": null}],
        });
        // Not through a map, which would sort the keys.
        let text = trace.to_string().replace("{\"a\":2,\"b\":1}", "{\"b\": 1,\"a\":2}");
        let requests = parse(&text).unwrap();
        assert_eq!(contents(&requests[0]), ["system:S", "user:0"]);
        assert_eq!(contents(&requests[1]), ["system:S", "user:0", "assistant:1", "user:2"]);
        assert_eq!(requests[0].tools[0].get(), "{\"b\": 1,\"a\":2}", "byte for byte");
        assert_eq!(requests[0].reply.as_deref(), Some("1"));
        assert_eq!(requests[1].reply.as_deref(), Some("3"));
    }

    #[test]
    fn an_order_replaces_the_messages_and_their_number() {
        let trace = json!({"system": null, "turns": turns(6), "requests": [
            {"upto": 1, "edits": {"order": [0, 5, 2]}}, {"upto": 1, "edits": {"order": [4, 5]}},
        ]});
        let requests = parse(&trace.to_string()).unwrap();
        assert_eq!(contents(&requests[0]), ["user:0", "assistant:5", "user:2"]);
        assert_eq!(requests[0].reply.as_deref(), Some("3"), "what follows the last message sent");
        assert_eq!(requests[1].reply, None, "the trace ends there");
    }

    #[test]
    fn a_side_call_has_its_own_system_prompt_and_tools() {
        let trace = json!({
            "system": "main", "systems": ["zero", "one"], "tools": [{}], "toolsets": [[], [{}, {}]], "turns": turns(2),
            "requests": [{"upto": 1}, {"upto": 1, "sys": 1, "tset": 0}, {"upto": 2, "tset": 1}],
        });
        let requests = parse(&trace.to_string()).unwrap();
        assert_eq!(contents(&requests[1]), ["system:one", "user:0"]);
        assert_eq!(contents(&requests[2]), ["system:main", "user:0", "assistant:1"]);
        assert_eq!([0, 1, 2].map(|index: usize| requests[index].tools.len()), [1, 0, 2]);
    }

    #[test]
    fn threads_are_conversations_of_their_own() {
        let other = json!([{"role": "user", "content": "x"}]);
        let trace = json!({"system": "S", "turns": [], "threads": {"a": turns(3), "b": other}, "requests": [
            {"thread": "b", "upto": 1}, {"thread": "a", "upto": 3}, {"thread": "a", "upto": 1},
        ]});
        let requests = parse(&trace.to_string()).unwrap();
        assert_eq!(contents(&requests[0]), ["system:S", "user:x"]);
        assert_eq!(contents(&requests[1]), ["system:S", "user:0", "assistant:1", "user:2"]);
        assert_eq!(requests[1].thread.as_deref(), Some("a"));
        assert_eq!((requests[0].reply.as_deref(), requests[2].reply.as_deref()), (None, Some("1")));
    }

    #[test]
    fn a_reply_is_what_the_assistant_said_and_called() {
        let call = json!({"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}});
        let said = json!({"role": "assistant", "content": null, "reasoning_content": "hm ", "tool_calls": [call]});
        assert_eq!(reply_text(&to_raw_value(&said).unwrap()).as_deref(), Some("hm look{}"));
        assert_eq!(reply_text(&to_raw_value(&json!({"role": "user", "content": "x"})).unwrap()), None);
        assert_eq!(reply_text(&to_raw_value(&json!(7)).unwrap()), None);
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_the_place_and_the_reason() {
        let with = |request: Value| json!({"turns": turns(2), "requests": [{"upto": 1}, request]});
        for (trace, words) in [
            (json!([]), vec!["not a JSON object"]),
            (json!({"turns": []}), vec!["requests"]),
            (json!({"turns": [], "requests": []}), vec!["`requests` is empty"]),
            (json!({"requests": [{"upto": 0}]}), vec!["requests[0]", "no `turns`"]),
            (json!({"turns": [], "requests": [{"upto": 0}]}), vec!["requests[0]", "no message"]),
            (json!({"turns": [], "requests": [{"upto": -1}]}), vec!["-1"]),
            (with(json!({"upto": 3})), vec!["requests[1]", "`upto` is 3", "2 messages"]),
            (with(json!({"upto": 1, "edits": {"order": [0, 2]}})), vec!["requests[1]", "message 2", "has 2"]),
            (with(json!({"upto": 1, "edits": {"drop": [0], "order": []}})), vec!["unknown field `drop`"]),
            (with(json!({"upto": 1, "sys": 0})), vec!["requests[1]", "`sys` is 0", "0 system prompts"]),
            (with(json!({"upto": 1, "tset": 4})), vec!["`tset` is 4", "0 lists"]),
            (with(json!({"upto": 1, "thread": "a"})), vec!["\"a\"", "no `threads`"]),
            (json!({"threads": {"a": [], "b": []}, "requests": [{"upto": 0, "thread": "c"}]}), vec!["\"c\"", "a, b"]),
        ] {
            let said = refusal(&trace);
            assert!(words.iter().all(|word| said.contains(word)), "{trace}\n{said}");
        }
    }

    #[test]
    fn a_folder_stands_for_its_json_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let trace = json!({"turns": turns(1), "requests": [{"upto": 1}]}).to_string();
        for name in ["b.short.json", "a.json", "notes.md"] {
            fs::write(folder.path().join(name), &trace).unwrap();
        }
        let names = |paths: &[PathBuf]| -> Vec<String> {
            read_all(paths).unwrap().into_iter().map(|trace| trace.name).collect()
        };
        assert_eq!(names(&[folder.path().to_owned()]), ["a", "b.short"]);
        assert_eq!(names(&[folder.path().join("notes.md")]), ["notes"], "a file that is named is read");
        let empty = folder.path().join("empty");
        fs::create_dir(&empty).unwrap();
        assert!(read_all(&[empty]).unwrap_err().to_string().contains("contains no traces"));
        let missing = format!("{:#}", read_all(&[folder.path().join("missing.json")]).unwrap_err());
        assert!(missing.contains("missing.json") && missing.contains("cannot read"), "{missing}");
        fs::write(folder.path().join("a.json"), "{").unwrap();
        let broken = format!("{:#}", read_all(&[folder.path().join("a.json")]).unwrap_err());
        assert!(broken.contains("a.json") && broken.contains("line 1"), "{broken}");
    }
}
