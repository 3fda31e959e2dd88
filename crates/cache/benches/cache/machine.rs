//! Facts about the machine that a reader needs to judge the numbers.

use std::path::Path;

/// Name and value of each fact; "unknown" for one that cannot be determined.
pub(crate) fn facts(folder: &Path) -> Vec<(&'static str, String)> {
    let unknown = || "unknown".to_owned();
    let cores = std::thread::available_parallelism().map_or_else(|_| unknown(), |count| count.to_string());
    vec![
        ("processor", field("/proc/cpuinfo", "model name").unwrap_or_else(unknown)),
        ("cores", cores),
        ("memory", field("/proc/meminfo", "MemTotal").unwrap_or_else(unknown)),
        (
            "kernel",
            std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |text| text.trim().to_owned()),
        ),
        ("file system", file_system(folder).unwrap_or_else(unknown)),
        ("build", if cfg!(debug_assertions) { "debug: the numbers mean nothing" } else { "release" }.to_owned()),
    ]
}

/// The value of the first line `name : value` of a file.
pub(crate) fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// Type and options of the mount that a folder is on: the one with the longest path above it.
fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?, words.next()?))
    });
    let (_, kind, options) =
        mounts.filter(|(point, _, _)| folder.starts_with(point)).max_by_key(|(point, _, _)| point.len())?;
    Some(format!("{kind} ({options})"))
}
