//! llama.cpp's own measurement in a child process, which is this binary again: a crafted file or a driver may end it.
//!
//! The fitting uses [`plan`]; `main` calls [`child`] before it parses its arguments. The child plans with what llama.cpp
//! would allocate and prints the plan as JSON. Without an answer the caller estimates; that must never fail a start.

use std::ffi::OsString;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use poncho_engine::ModelConfig;
use poncho_engine::backend::llama::DeviceSources;
use poncho_engine::backend::{ContextOptions, KvLayout, ModelOptions};
use poncho_engine::files::probe::end_with_parent;
use poncho_engine::fit::{Exact, Given, Machine, ModelFacts, Plan};
use serde::{Deserialize, Serialize};

use crate::serving::devices;
use crate::serving::probing::{be_expendable, own_program};

/// Makes this binary the child. It is not in the help, because users do not need it.
const COMMAND: &str = "measure-model";
/// How long it may take: a large model that does not fit is measured dozens of times.
const DEADLINE: Duration = Duration::from_secs(60);
/// More is not an answer.
const MOST_BYTES: u64 = 1 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Question {
    model: ModelOptions,
    context: ContextOptions,
    layout: Option<KvLayout>,
    machine: Machine,
    given: Given,
    facts: ModelFacts,
}

/// Ends the child on every way out.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The plan as llama.cpp measures it; `None` if the child has no answer.
pub(super) fn plan(
    config: &ModelConfig,
    machine: &Machine,
    given: &Given,
    facts: &ModelFacts,
    layout: Option<KvLayout>,
    sources: &DeviceSources,
) -> Option<Plan> {
    let question = Question {
        model: config.model.clone(),
        context: config.context.clone(),
        layout,
        machine: machine.clone(),
        given: *given,
        facts: *facts,
    };
    let mut command = Command::new(own_program());
    command.arg(COMMAND).arg(serde_json::to_string(&question).ok()?);
    // llama.cpp would start a debugger on itself to print its stack.
    command.env("GGML_NO_BACKTRACE", "1");
    let (name, value) = devices::for_child(sources).ok()?;
    command.env(name, value);
    // The standard input stays open and empty as long as this process lives.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Running(command.spawn().ok()?);
    let answer = child.0.stdout.take()?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let read = answer.take(MOST_BYTES).read_to_end(&mut text);
        // The receiver may have given up.
        let _ = sender.send(read.map(|_| text));
    });
    let text = receiver.recv_timeout(DEADLINE).ok()?.ok()?;
    let plan = serde_json::from_slice(&text).ok();
    if plan.is_none() {
        tracing::info!(path = %config.model.path.display(), "llama.cpp did not measure the model; it is estimated");
    }
    plan
}

/// Measures if the command line asks for it.
pub(crate) fn child(words: &[OsString]) -> Option<ExitCode> {
    let [_, command, question] = words else { return None };
    if command != COMMAND {
        return None;
    }
    end_with_parent();
    be_expendable();
    if devices::inherited().is_err() {
        return Some(ExitCode::FAILURE);
    }
    let plan = question.to_str().and_then(|text| serde_json::from_str(text).ok()).and_then(answer);
    Some(match plan.and_then(|plan| serde_json::to_string(&plan).ok()) {
        Some(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    })
}

fn answer(question: Question) -> Option<Plan> {
    let Question { model, context, layout, machine, given, facts } = question;
    let config = ModelConfig { context, model: model.clone(), ..ModelConfig::new("measured", model.path) };
    let mut measure = Exact::new(&config, &machine, layout).ok()?;
    poncho_engine::fit::plan(&machine, &facts, &given, &mut measure).ok()
}
