//! A control group with a limit on memory, and commands that run in it.
//!
//! It lies within the control group of the test, so that the limits around it stay in force, and is removed when it is
//! dropped. Both versions of control groups are supported; making one needs the rights of root or a delegated group.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the last process of a group may take to end.
const END_WITHIN: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Group {
    folder: PathBuf,
    is_v2: bool,
}

impl Group {
    /// A group with this limit, or why none can be made.
    pub(super) fn new(name: &str, limit: u64) -> Result<Self, String> {
        let membership = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let (parent, is_v2) = parent_of(&membership, Path::new("/sys/fs/cgroup"))?;
        let folder = parent.join(format!("poncho-{name}-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let group = Self { folder, is_v2 };
        group.set_limit(limit).map_err(|error| format!("cannot limit a control group: {error}"))?;
        Ok(group)
    }

    /// Changes the limit. Nothing of the group may be swapped out.
    pub(super) fn set_limit(&self, limit: u64) -> std::io::Result<()> {
        let (memory, swap) = match self.is_v2 {
            true => ("memory.max", ("memory.swap.max", 0)),
            // The second limit counts memory and swap together and is never below the first.
            false => ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", limit)),
        };
        let write = |name: &str, bytes: u64| fs::write(self.folder.join(name), bytes.to_string());
        // A kernel that does not account for swap has no such file. The second limit is raised first and lowered last.
        let _ = write(swap.0, swap.1);
        write(memory, limit)?;
        let _ = write(swap.0, swap.1);
        Ok(())
    }

    /// The command as one that enters the group before it starts.
    pub(super) fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        inside.arg(command.get_program());
        with_words_of(inside, command)
    }

    /// The command as it is.
    pub(super) fn outside(command: &Command) -> Command {
        with_words_of(Command::new(command.get_program()), command)
    }

    /// Processes of the group that the kernel has killed because memory ran out.
    pub(super) fn kills(&self) -> u64 {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.folder.join(file)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap_or_else(|| panic!("no count of kills in {text:?}")).trim().parse().unwrap()
    }

    /// The most memory that was ever in use at once, files that can be dropped included.
    pub(super) fn peak(&self) -> Option<u64> {
        let file = if self.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
    }
}

fn with_words_of(mut inside: Command, command: &Command) -> Command {
    inside.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    inside
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + END_WITHIN;
        while fs::remove_dir(&self.folder).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The folder that a group can be made in, and whether it is one of version 2.
fn parent_of(membership: &str, mount: &Path) -> Result<(PathBuf, bool), String> {
    let group = |controller: &str| {
        membership.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_wanted = controllers.split(',').any(|name| name == controller);
            path.strip_prefix('/').filter(|_| is_wanted)
        })
    };
    if let Some(own) = group("memory") {
        let folder = mount.join("memory").join(own);
        return if folder.is_dir() { Ok((folder, false)) } else { Err(format!("{} is not there", folder.display())) };
    }
    let own = group("").ok_or("this process is in no control group")?;
    // A group with processes cannot have groups with limits below it, except for the root.
    let folder = mount.join(Path::new(own).parent().unwrap_or(Path::new("")));
    let controllers = fs::read_to_string(folder.join("cgroup.subtree_control"))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    match controllers.split_whitespace().any(|name| name == "memory") {
        true => Ok((folder, true)),
        false => Err(format!("{} does not limit the memory of its groups", folder.display())),
    }
}

#[test]
fn the_folder_for_a_group_is_found_for_both_versions() {
    let mount = tempfile::tempdir().unwrap();
    let at = |membership: &str| parent_of(membership, mount.path());
    fs::create_dir_all(mount.path().join("memory/inner")).unwrap();
    let v1 = "4:memory:/inner\n0::/\n";
    assert_eq!(at(v1), Ok((mount.path().join("memory/inner"), false)));
    assert!(at("4:memory:/elsewhere\n").unwrap_err().contains("is not there"));
    fs::create_dir_all(mount.path().join("a/b")).unwrap();
    fs::write(mount.path().join("a/cgroup.subtree_control"), "cpu memory\n").unwrap();
    assert_eq!(at("0::/a/b\n"), Ok((mount.path().join("a"), true)), "beside the own group");
    fs::write(mount.path().join("a/cgroup.subtree_control"), "cpu\n").unwrap();
    assert!(at("0::/a/b\n").unwrap_err().contains("does not limit"));
    assert!(at("").is_err());
}
