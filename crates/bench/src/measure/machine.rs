//! What a measurement was made on: processor, memory, system, and the build of this program.
//!
//! Recorded by the comparison and the matrix beside their figures. Read from `/proc`; what cannot be read is left out.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The machine and the program.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: Option<String>,
    /// Threads that this process may run at once.
    pub(crate) cores: Option<usize>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) kernel: Option<String>,
    /// Processes that wanted to run in the last minute when the measurement began; above the cores, figures suffer.
    pub(crate) load: Option<f64>,
    pub(crate) poncho: &'static str,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        Self {
            cpu: read("/proc/cpuinfo").and_then(|text| field(&text, "model name").map(str::to_owned)),
            cores: std::thread::available_parallelism().ok().map(std::num::NonZero::get),
            memory_bytes: read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemTotal")),
            kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
            load: read("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
            poncho: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The bytes of memory that a process holds; `None` if it is gone or not ours to see.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    kilobytes(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS")
}

/// The bytes of all files below a folder. What vanishes meanwhile counts as nothing.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let mut waiting: Vec<PathBuf> = vec![folder.to_owned()];
    let mut bytes = 0;
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(facts) if facts.is_dir() => waiting.push(entry.path()),
                Ok(facts) => bytes += facts.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = field(text, name)?.strip_suffix("kB")?.trim();
    value.parse::<u64>().ok()?.checked_mul(1024)
}

/// The value of the first line `name: value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
    line.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_counted_in_bytes() {
        let text = "VmPeak:\t  12 kB\nVmRSS:\t    2 kB\nmodel name\t: Some CPU: fast\n";
        assert_eq!(kilobytes(text, "VmRSS"), Some(2048));
        assert_eq!(field(text, "model name"), Some("Some CPU: fast"));
        assert_eq!((kilobytes(text, "Vm"), kilobytes(text, "model name")), (None, None));
    }

    #[test]
    fn this_process_has_a_size_and_a_process_that_cannot_be_has_none() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        assert_eq!(resident_bytes(u32::MAX), None);
    }

    #[test]
    fn a_folder_is_as_large_as_all_files_below_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/b"), [0; 30]).unwrap();
        fs::write(folder.path().join("c"), [0; 12]).unwrap();
        assert_eq!(folder_bytes(folder.path()), 42);
        assert_eq!(folder_bytes(&folder.path().join("none")), 0);
    }
}
