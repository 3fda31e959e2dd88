//! The devices of llama.cpp as a child process sees them, which is this binary again.
//!
//! `serve` uses [`look`]: its own process must not start llama.cpp, because a driver that crashes would end the server,
//! and a GPU would keep memory for it. `main` calls [`child`] before it parses its arguments. Without an answer the
//! devices are unknown; that must never fail a start.

use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};

use poncho_engine::backend::llama::{Device, DeviceKind, devices};
use serde_json::{Value, json};

use crate::serving::probing::own_program;

/// Makes this binary the child. It is not in the help, because users do not need it.
const COMMAND: &str = "list-devices";

/// The devices; empty if they are not known.
pub(crate) fn look() -> Vec<Device> {
    let mut command = Command::new(own_program());
    command.arg(COMMAND).stdin(Stdio::null()).stderr(Stdio::null());
    let answer = command.output().ok().filter(|output| output.status.success());
    let answer: Option<Value> = answer.and_then(|output| serde_json::from_slice(&output.stdout).ok());
    answer.as_ref().and_then(Value::as_array).map(|list| list.iter().filter_map(parse).collect()).unwrap_or_default()
}

/// Prints the devices if the command line asks for it.
pub(crate) fn child(words: &[OsString]) -> Option<ExitCode> {
    if words.get(1)? != COMMAND || words.len() != 2 {
        return None;
    }
    println!("{}", Value::Array(devices().iter().map(as_json).collect()));
    Some(ExitCode::SUCCESS)
}

fn as_json(device: &Device) -> Value {
    let kind = match device.kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "gpu",
        DeviceKind::Accelerator => "accelerator",
    };
    json!({"name": device.name, "description": device.description, "kind": kind, "free": device.free})
}

fn parse(value: &Value) -> Option<Device> {
    let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
    let kind = match text("kind")?.as_str() {
        "cpu" => DeviceKind::Cpu,
        "gpu" => DeviceKind::Gpu,
        _ => DeviceKind::Accelerator,
    };
    Some(Device { name: text("name")?, description: text("description")?, kind, free: value.get("free")?.as_u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_passes_unchanged() {
        for kind in [DeviceKind::Cpu, DeviceKind::Gpu, DeviceKind::Accelerator] {
            let device = Device { name: "D0".into(), description: "a \"chip\"".into(), kind, free: 7 };
            assert_eq!(parse(&as_json(&device)), Some(device));
        }
        assert_eq!(parse(&json!({"name": "x"})), None);
    }
}
