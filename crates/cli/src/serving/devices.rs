//! The devices that can compute, as child processes see them; each child is this binary again.
//!
//! `serve`, `doctor` and the commands that load a model of their own use [`look`]: this process must not try a driver that
//! may crash, and a GPU would keep memory for it. What passes its trial is loaded where models are computed ([`load`],
//! or [`inherited`] in an engine's process). `main` calls [`child`] before it parses its arguments. Without an answer the
//! devices are unknown; that must never fail a start.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use poncho_engine::backend::llama::{
    Device, DeviceKind, DeviceSources, devices, libraries_in, try_added_devices, use_devices,
};
use poncho_server::{ShownDevice, ShownMachine, UnusedDevice};
use serde_json::{Value, json};

use crate::serving::probing::own_program;
use crate::settings::args::devices::DeviceArgs;
use crate::variants;

/// Makes this binary list the devices of the build. These are not in the help, because users do not need them.
const LIST: &str = "list-devices";
/// Makes this binary try a backend library, then its path.
const TRY_LIBRARY: &str = "try-backend-library";
/// Makes this binary try an RPC worker, then its address.
const TRY_WORKER: &str = "try-rpc-worker";
/// Gives an engine's process what its server found. Users never set it.
const INHERITED: &str = "__PONCHO_DEVICES";
/// A driver may compile its kernels when it is used for the first time.
const TRIAL_LIMIT: Duration = Duration::from_secs(120);
/// How often a trial is looked at.
const TRIAL_STEP: Duration = Duration::from_millis(10);
/// Maximum text of a trial that is read.
const ANSWER_LIMIT: u64 = 64 << 10;

/// What this machine can compute on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Looked {
    /// Empty if they are not known.
    pub(crate) devices: Vec<Device>,
    /// What passed its trial, to be loaded where models are computed.
    pub(crate) sources: DeviceSources,
    /// What was found and is not used.
    pub(crate) unused: Vec<Unused>,
}

impl Looked {
    /// The same for the console.
    pub(crate) fn shown(&self) -> ShownMachine {
        let device = |device: &Device| ShownDevice {
            name: device.name.clone(),
            description: device.description.clone(),
            kind: kind_name(device.kind),
            total_bytes: device.total,
            free_bytes: device.free,
        };
        let unused = |unused: &Unused| UnusedDevice { what: unused.what.clone(), why: unused.why.clone() };
        ShownMachine {
            devices: self.devices.iter().map(device).collect(),
            unused: self.unused.iter().map(unused).collect(),
        }
    }
}

/// A library or a worker that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unused {
    pub(crate) what: String,
    pub(crate) why: String,
}

/// Looks at the build, at the folders of backend libraries and at the workers, all at the same time.
pub(crate) fn look(args: &DeviceArgs) -> Looked {
    let mut looked = Looked::default();
    let mut trials = Vec::new();
    for (library, verdict) in folders(args).iter().flat_map(|folder| libraries_in(folder)) {
        match verdict {
            Ok(()) => {
                trials.push(Trial { source: Source::Library(library.clone()), run: start(TRY_LIBRARY, &library) })
            }
            Err(error) => {
                looked.unused.push(Unused { what: library.display().to_string(), why: error.to_string() });
            }
        }
    }
    for worker in &args.rpc {
        trials.push(Trial { source: Source::Worker(worker.clone()), run: start(TRY_WORKER, Path::new(worker)) });
    }
    let own = start(LIST, Path::new(""));
    let deadline = Instant::now() + TRIAL_LIMIT;
    for trial in trials {
        match answer(trial.run, deadline) {
            Ok(found) => {
                looked.devices.extend(found);
                match trial.source {
                    Source::Library(path) => looked.sources.libraries.push(path),
                    Source::Worker(address) => looked.sources.workers.push(address),
                }
            }
            Err(why) => looked.unused.push(Unused { what: trial.source.to_string(), why }),
        }
    }
    looked.devices.extend(answer(own, deadline).unwrap_or_default());
    looked
}

/// Loads into this process what passed its trial.
pub(crate) fn load(sources: DeviceSources) -> anyhow::Result<()> {
    use_devices(sources).context("cannot use the devices of this machine")
}

/// The variable for an engine's process, with what it has to load.
pub(crate) fn for_child(sources: &DeviceSources) -> anyhow::Result<(&'static str, OsString)> {
    Ok((INHERITED, serde_json::to_string(sources)?.into()))
}

/// Loads what the server of this engine's process found.
pub(crate) fn inherited() -> anyhow::Result<()> {
    match std::env::var(INHERITED) {
        Ok(text) => load(serde_json::from_str(&text).context("the server passed unknown devices")?),
        Err(_) => Ok(()),
    }
}

/// The folders to look into: the named ones, or those beside the program.
fn folders(args: &DeviceArgs) -> Vec<PathBuf> {
    if !args.backends.is_empty() {
        return args.backends.clone();
    }
    let program = variants::started_program();
    let folder = program.as_deref().and_then(Path::parent);
    folder.map(|folder| vec![folder.join("backends"), folder.join("../lib/poncho/backends")]).unwrap_or_default()
}

enum Source {
    Library(PathBuf),
    Worker(String),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Library(path) => write!(f, "{}", path.display()),
            Self::Worker(address) => write!(f, "the worker {address}"),
        }
    }
}

struct Trial {
    source: Source,
    run: std::io::Result<Child>,
}

fn start(command: &str, subject: &Path) -> std::io::Result<Child> {
    let mut child = Command::new(own_program());
    child.arg(command).arg(subject).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    child.spawn()
}

/// The devices that a child found, or why it found none.
fn answer(child: std::io::Result<Child>, deadline: Instant) -> Result<Vec<Device>, String> {
    let mut child = child.map_err(|error| format!("it could not be tried: {error}"))?;
    let Some(status) = wait(&mut child, deadline) else {
        return Err(format!("it did not respond within {} s", TRIAL_LIMIT.as_secs()));
    };
    let mut text = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = out.take(ANSWER_LIMIT).read_to_string(&mut text);
    }
    if !status.success() {
        return Err(match text.trim() {
            "" => format!("it crashed in a trial ({status})"),
            reason => reason.to_owned(),
        });
    }
    let answer: Value = serde_json::from_str(&text).map_err(|_| "its trial gave no answer".to_owned())?;
    Ok(answer.as_array().map(|list| list.iter().filter_map(parse).collect()).unwrap_or_default())
}

/// Waits for a child; one that takes too long is killed.
fn wait(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(TRIAL_STEP),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// Lists or tries devices if the command line asks for it.
pub(crate) fn child(words: &[OsString]) -> Option<ExitCode> {
    let [_, command, subject] = words else { return None };
    let sources = match command.to_str()? {
        LIST => {
            println!("{}", as_list(&devices()));
            return Some(ExitCode::SUCCESS);
        }
        TRY_LIBRARY => DeviceSources { libraries: vec![subject.into()], workers: Vec::new() },
        TRY_WORKER => DeviceSources { libraries: Vec::new(), workers: vec![subject.to_str()?.to_owned()] },
        _ => return None,
    };
    let tried = use_devices(sources).map_err(|error| error.to_string());
    Some(match tried.and_then(|()| try_added_devices().map_err(|error| error.to_string())) {
        Ok(found) => {
            println!("{}", as_list(&found));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            println!("{reason}");
            ExitCode::FAILURE
        }
    })
}

fn as_list(devices: &[Device]) -> Value {
    Value::Array(devices.iter().map(as_json).collect())
}

fn kind_name(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "gpu",
        DeviceKind::Accelerator => "accelerator",
    }
}

fn as_json(device: &Device) -> Value {
    json!({
        "name": device.name,
        "description": device.description,
        "kind": kind_name(device.kind),
        "free": device.free,
        "total": device.total,
    })
}

fn parse(value: &Value) -> Option<Device> {
    let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    let kind = match text("kind")?.as_str() {
        "cpu" => DeviceKind::Cpu,
        "gpu" => DeviceKind::Gpu,
        _ => DeviceKind::Accelerator,
    };
    let bytes = |name: &str| value.get(name)?.as_u64();
    Some(Device {
        name: text("name")?,
        description: text("description")?,
        kind,
        free: bytes("free")?,
        total: bytes("total")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_passes_unchanged() {
        for kind in [DeviceKind::Cpu, DeviceKind::Gpu, DeviceKind::Accelerator] {
            let device = Device { name: "D0".into(), description: "a \"chip\"".into(), kind, free: 7, total: 9 };
            assert_eq!(parse(&as_json(&device)), Some(device));
        }
        assert_eq!(parse(&json!({"name": "x"})), None);
    }
}
