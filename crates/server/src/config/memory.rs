//! How much memory the loaded models may take together.
//!
//! A setting; the manager of the models obeys it. Pure but for asking the machine how much it has.

use std::fs;

/// Leaves room for compute buffers, the cache in memory and everything else on the machine.
const SHARE_PERCENT: u64 = 80;

/// How much memory the loaded models may take together, by the estimate of [`poncho_api::Footprint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryBudget {
    /// Four fifths of the machine's memory, or of what its control group allows.
    #[default]
    ShareOfMachine,
    /// This number of bytes.
    Bytes(u64),
    /// No limit.
    Unlimited,
}

impl MemoryBudget {
    /// In bytes; `None` for no limit, also where the machine does not say what it has.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Bytes(bytes) => Some(bytes),
            Self::ShareOfMachine => machine_memory().map(|bytes| bytes / 100 * SHARE_PERCENT),
        }
    }
}

fn machine_memory() -> Option<u64> {
    let total = meminfo_total(&fs::read_to_string("/proc/meminfo").ok()?);
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    total.into_iter().chain(group).min()
}

fn meminfo_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_what_it_has() {
        assert_eq!(meminfo_total("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        for wrong in ["", "MemTotal: x kB", "MemTotal: 5", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(meminfo_total(wrong), None, "{wrong}");
        }
        assert_eq!(MemoryBudget::Bytes(5).bytes(), Some(5));
        assert_eq!(MemoryBudget::Unlimited.bytes(), None);
        assert!(MemoryBudget::ShareOfMachine.bytes().is_none_or(|bytes| bytes > 1 << 20));
    }
}
