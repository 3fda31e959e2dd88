//! Memory pressure of a Linux machine and of the control groups around the process.
//!
//! Reads a few small files of the kernel; the root they are under can be replaced, which the tests do. Without
//! control groups, or where they cannot be read, the machine alone counts.

use std::fs;
use std::path::{Path, PathBuf};

use super::{PressureError, PressureSample, PressureSource, PressureSourceKind, unparsable};

/// Memory of a Linux machine, or of the tightest control group (v1 or v2) around the process, whichever is fuller.
#[derive(Debug, Clone)]
pub struct SystemSource {
    /// What `/proc` and `/sys` are under.
    root: PathBuf,
}

impl SystemSource {
    /// A source that reads `proc` and `sys` under another root.
    #[must_use]
    pub fn under(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Bytes that a process here can still allocate: what the machine has available, or the tightest control group.
    ///
    /// # Errors
    /// If the machine's memory cannot be read.
    pub fn available(&self) -> Result<u64, PressureError> {
        let machine = self.machine()?;
        let room = |sample: PressureSample| sample.total.saturating_sub(sample.used);
        // The kernel drops any page of a file before an allocation fails.
        let groups = self.groups(machine.total, &["inactive_file", "active_file"]).into_iter().map(room);
        Ok(groups.fold(room(machine), u64::min))
    }

    /// Bytes that processes here may use in all: the machine's memory, or the limit of the tightest control group.
    ///
    /// # Errors
    /// If the machine's memory cannot be read.
    pub fn total(&self) -> Result<u64, PressureError> {
        let machine = self.machine()?;
        let groups = self.groups(machine.total, &[]).into_iter().map(|sample| sample.total);
        Ok(groups.fold(machine.total, u64::min))
    }

    fn machine(&self) -> Result<PressureSample, PressureError> {
        let path = self.root.join("proc/meminfo");
        let text = fs::read_to_string(&path).map_err(|source| PressureError::Read { path: path.clone(), source })?;
        parse_meminfo(&text).map_err(|wanted| unparsable(&path.display().to_string(), wanted, &text))
    }

    /// Control groups with a limit below `machine_total`: the process's own and each one around it. Memory of the kinds in
    /// `droppable` does not count as used.
    fn groups(&self, machine_total: u64, droppable: &[&str]) -> Vec<PressureSample> {
        let Ok(membership) = fs::read_to_string(self.root.join("proc/self/cgroup")) else { return Vec::new() };
        let of_version = |version: &Version| -> Vec<PressureSample> {
            let group = membership.lines().find_map(|line| version.group(line));
            // Inside a container the path may be that of the host; the folder that is mounted is its last ancestor.
            let folders = group.into_iter().flat_map(|group| Path::new(group).ancestors());
            folders.filter_map(|folder| self.group(version, folder, droppable)).collect()
        };
        let samples = VERSIONS.iter().flat_map(of_version);
        samples.filter(|sample| sample.total < machine_total).collect()
    }

    fn group(&self, version: &Version, folder: &Path, droppable: &[&str]) -> Option<PressureSample> {
        let base = self.root.join(version.mount).join(folder);
        let read = |file: &str| fs::read_to_string(base.join(file)).ok();
        let (max, current) = (read(version.limit)?, read(version.current)?);
        parse_group(&max, &current, &read("memory.stat").unwrap_or_default(), droppable)
    }
}

/// Where a version of control groups has its files.
struct Version {
    mount: &'static str,
    limit: &'static str,
    current: &'static str,
    /// The controller in `/proc/self/cgroup`; empty in version 2.
    controller: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version { mount: "sys/fs/cgroup", limit: "memory.max", current: "memory.current", controller: "" },
    Version {
        mount: "sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        current: "memory.usage_in_bytes",
        controller: "memory",
    },
];

impl Version {
    /// The path of the group in a line of `/proc/self/cgroup`, without its first slash.
    fn group<'a>(&self, line: &'a str) -> Option<&'a str> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_of_version = controllers.split(',').any(|controller| controller == self.controller);
        path.strip_prefix('/').filter(|_| is_of_version)
    }
}

impl Default for SystemSource {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl PressureSource for SystemSource {
    fn name(&self) -> &str {
        PressureSourceKind::System.as_str()
    }

    fn sample(&mut self) -> Result<PressureSample, PressureError> {
        let machine = self.machine()?;
        let fuller = |fullest, sample: PressureSample| if sample.is_fuller_than(&fullest) { sample } else { fullest };
        // File pages that nobody used lately count as used there, though the kernel drops them first; reading rows from
        // disk would look like pressure.
        Ok(self.groups(machine.total, &["inactive_file"]).into_iter().fold(machine, fuller))
    }
}

/// Parses `/proc/meminfo`; the error is the name of the missing line.
fn parse_meminfo(text: &str) -> Result<PressureSample, &'static str> {
    let kilobytes = |name: &'static str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)).ok_or(name)
    };
    let (total, available) = (kilobytes("MemTotal")?, kilobytes("MemAvailable")?);
    Ok(PressureSample { used: total.saturating_sub(available), total })
}

/// Parses the files of one control group; `None` where it sets no limit.
fn parse_group(max: &str, current: &str, stat: &str, droppable: &[&str]) -> Option<PressureSample> {
    let total: u64 = max.trim().parse().ok()?;
    let current: u64 = current.trim().parse().ok()?;
    let bytes = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        if droppable.contains(&name) { bytes.trim().parse::<u64>().ok() } else { None }
    };
    let droppable = stat.lines().filter_map(bytes).fold(0, u64::saturating_add);
    Some(PressureSample { used: current.saturating_sub(droppable), total })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n";

    fn sample(used: u64, total: u64) -> PressureSample {
        PressureSample { used, total }
    }

    #[test]
    fn meminfo_gives_what_is_not_available() {
        assert_eq!(parse_meminfo(MEMINFO), Ok(sample(600 * 1024, 1000 * 1024)));
        assert_eq!(parse_meminfo("MemTotal: 1000 kB\nMemAvailableX: 3 kB"), Err("MemAvailable"));
        assert_eq!(parse_meminfo("MemTotal: 18446744073709551615 kB"), Err("MemTotal"));
    }

    #[test]
    fn group_without_a_limit_is_no_sample() {
        let parse = |max: &str, current: &str, stat: &str| parse_group(max, current, stat, &["inactive_file"]);
        assert_eq!(parse("max\n", "5\n", ""), None);
        assert_eq!(parse("100\n", "80\n", "anon 3\ninactive_file 30\n"), Some(sample(50, 100)));
        assert_eq!(parse("100\n", "80\n", "inactive_file 90\n"), Some(sample(0, 100)));
        let both =
            parse_group("100\n", "80\n", "inactive_file 10\nactive_file 20\n", &["inactive_file", "active_file"]);
        assert_eq!(both, Some(sample(50, 100)));
    }

    /// A root with `meminfo` and control groups by path, each with its limit and use.
    fn root(groups: &[(&str, &str, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        fs::write(root.path().join("proc/meminfo"), MEMINFO).unwrap();
        fs::write(root.path().join("proc/self/cgroup"), "1:cpu:/x\n0::/outer/inner\n").unwrap();
        for (group, max, current) in groups {
            let folder = root.path().join("sys/fs/cgroup").join(group);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("memory.max"), max).unwrap();
            fs::write(folder.join("memory.current"), current.to_string()).unwrap();
        }
        root
    }

    /// Version 1 of control groups, as older hosts and some containers have it.
    #[test]
    fn groups_of_version_1_count() {
        let with = |membership: &str, folder: &str, limit: &str| {
            let root = root(&[]);
            fs::write(root.path().join("proc/self/cgroup"), membership).unwrap();
            let folder = root.path().join("sys/fs/cgroup/memory").join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("memory.limit_in_bytes"), limit).unwrap();
            fs::write(folder.join("memory.usage_in_bytes"), "700\n").unwrap();
            fs::write(folder.join("memory.stat"), "inactive_file 100\nactive_file 50\n").unwrap();
            SystemSource::under(root.path()).available().unwrap()
        };
        let membership = "9:cpu,cpuacct:/x\n8:memory:/docker/abc\n0::/\n";
        assert_eq!(with(membership, "docker/abc", "1000\n"), 450);
        assert_eq!(with(membership, "", "1000\n"), 450, "only the container's own folder is mounted");
        assert_eq!(with(membership, "docker/abc", "9223372036854771712\n"), 400 * 1024, "no limit");
        assert_eq!(with("8:hugetlb:/docker/abc\n", "docker/abc", "1000\n"), 400 * 1024, "another controller");
        assert_eq!(with(membership, "docker/abc", "nonsense"), 400 * 1024);
    }

    #[test]
    fn fullest_of_machine_and_groups_is_reported() {
        let machine = sample(600 * 1024, 1000 * 1024);
        let read = |groups: &[(&str, &str, u64)]| SystemSource::under(root(groups).path()).sample().unwrap();
        assert_eq!(read(&[]), machine);
        assert_eq!(read(&[("outer", "1000", 900), ("outer/inner", "max", 900)]), sample(900, 1000));
        assert_eq!(read(&[("outer", "1000", 700), ("outer/inner", "500", 490)]), sample(490, 500));
        assert_eq!(read(&[("outer/inner", "1000", 100)]), machine, "the machine is fuller than the group");
        assert_eq!(read(&[("outer/inner", "2000000000", 2_000_000_000)]), machine, "a limit above the machine is none");
        assert_eq!(read(&[("elsewhere", "1000", 1000)]), machine, "not our group");
        let available = |groups: &[(&str, &str, u64)]| SystemSource::under(root(groups).path()).available().unwrap();
        assert_eq!(available(&[]), 400 * 1024);
        assert_eq!(available(&[("outer", "1000", 700), ("outer/inner", "500", 490)]), 10, "the tightest group");
        assert_eq!(available(&[("outer/inner", "900000", 100)]), 400 * 1024, "the machine has less");
        let total = |groups: &[(&str, &str, u64)]| SystemSource::under(root(groups).path()).total().unwrap();
        assert_eq!(total(&[]), 1000 * 1024);
        assert_eq!(total(&[("outer", "1000", 700), ("outer/inner", "max", 700)]), 1000, "the limit around the group");
        let missing = SystemSource::under(Path::new("/nonexistent")).sample();
        assert!(matches!(missing, Err(PressureError::Read { path, .. }) if path.ends_with("proc/meminfo")));
    }
}
