//! The memory and the disk of this machine, and the sizes of the cache's tiers that follow from them.
//!
//! Used by the fitting. Memory that cannot be read counts as plenty: a model is never refused because of it.

use std::path::Path;

use poncho_engine::backend::llama::{Device, DeviceKind};
use poncho_engine::fit::{DeviceMemory, Machine};
use poncho_server::MemoryBudget;

use crate::serving::disk::{DiskSpace, disk_space};
use crate::serving::memory;
use crate::serving::tiers::Quotas;

/// Where memory is not reported.
const PLENTY: u64 = 1 << 46;
/// Memory besides the model that a plan must have room for.
pub(super) const OWN_SHARE: u64 = 128 << 20;
/// The smallest RAM tier that is chosen.
const LEAST_RAM: u64 = 64 << 20;
/// The smallest disk tier that is chosen.
const LEAST_DISK: u64 = 256 << 20;

/// The memory that models may take. `named` are the devices that the user wants; none means all.
pub(super) fn look(memory: MemoryBudget, devices: &[Device], named: &[String]) -> Machine {
    seen(memory::available(), memory, devices, named)
}

fn seen(available: Option<u64>, memory: MemoryBudget, devices: &[Device], named: &[String]) -> Machine {
    // Systems without `/proc` report no available memory, but llama.cpp knows what the processor has.
    let processor = || devices.iter().find(|device| device.kind == DeviceKind::Cpu && device.total > 0);
    let share = |device: &Device| device.free / 100 * memory::SHARE_PERCENT;
    let available = available.or_else(|| processor().map(share)).unwrap_or(PLENTY);
    let is_wanted = |device: &&Device| named.is_empty() || named.contains(&device.name);
    let gpus = devices.iter().filter(|device| device.kind == DeviceKind::Gpu && device.total > 0).filter(is_wanted);
    let devices = gpus.map(|device| DeviceMemory { name: device.name.clone(), free: device.free, total: device.total });
    Machine { host_free: memory.bytes().map_or(available, |limit| limit.min(available)), devices: devices.collect() }
}

/// Another machine: what it has free, and the free memory of each of its GPUs.
pub(super) fn imagined(host_free: u64, gpus: &[u64]) -> Machine {
    let device = |(at, free): (usize, &u64)| DeviceMemory { name: format!("GPU{at}"), free: *free, total: *free };
    Machine { host_free, devices: gpus.iter().enumerate().map(device).collect() }
}

/// A quarter of the memory that is left; a tenth of the disk, at most half of what is free. Given sizes stay.
pub(super) fn quotas(given: (Option<u64>, Option<u64>), left: u64, folder: Option<&Path>) -> Quotas {
    let (ram, disk) = given;
    let space = || folder.and_then(disk_space);
    Quotas {
        ram: ram.unwrap_or_else(|| (left / 4).max(LEAST_RAM)),
        disk: disk.unwrap_or_else(|| space().map_or(LEAST_DISK, disk_quota)),
    }
}

/// What the cache already takes counts as free: its rows must not make it smaller at the next start.
fn disk_quota(space: DiskSpace) -> u64 {
    let free = space.free.saturating_add(space.taken);
    (space.total / 10).min(free / 2).max(LEAST_DISK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_disk_tier_is_a_tenth_or_half_of_what_is_free() {
        let quota = |total: u64, free: u64, taken: u64| {
            disk_quota(DiskSpace { total: total * GIB, free: free * GIB, taken: taken * GIB }) / GIB
        };
        assert_eq!(quota(1000, 900, 0), 100);
        assert_eq!(quota(1000, 50, 0), 25);
        // Rows that were written meanwhile change nothing.
        assert_eq!(quota(1000, 800, 100), 100);
        assert_eq!(quota(1000, 25, 25), 25);
        assert_eq!(disk_quota(DiskSpace { total: 0, free: 0, taken: 0 }), LEAST_DISK);
    }

    #[test]
    fn the_ram_tier_is_a_quarter_of_what_is_left_unless_it_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let found = quotas((None, Some(7)), 8 * GIB, Some(folder.path()));
        assert_eq!(found, Quotas { ram: 2 * GIB, disk: 7 });
        assert_eq!(quotas((Some(0), Some(7)), 8 * GIB, None).ram, 0, "a given size is kept, 0 too");
        assert_eq!(quotas((None, Some(7)), 0, None).ram, LEAST_RAM);
    }

    #[test]
    fn a_memory_limit_is_a_limit_and_devices_are_chosen_by_name() {
        let gpu = |name: &str| Device {
            name: name.into(),
            description: String::new(),
            kind: DeviceKind::Gpu,
            free: 5,
            total: 9,
        };
        let cpu = Device { kind: DeviceKind::Cpu, ..gpu("CPU") };
        let all = [cpu, gpu("G0"), gpu("G1")];
        let names =
            |machine: Machine| -> Vec<String> { machine.devices.into_iter().map(|device| device.name).collect() };
        assert_eq!(look(MemoryBudget::Bytes(7), &all, &[]).host_free, 7);
        let unreported = |all: &[Device]| seen(None, MemoryBudget::Unlimited, all, &[]).host_free;
        assert_eq!(unreported(&all[1..]), PLENTY);
        let processor = Device { free: 10 * GIB, total: 10 * GIB, ..all[0].clone() };
        assert_eq!(unreported(&[processor]), 10 * GIB / 100 * 80, "where there is no /proc");
        assert_eq!(names(look(MemoryBudget::Unlimited, &all, &[])), ["G0", "G1"]);
        assert_eq!(names(look(MemoryBudget::Unlimited, &all, &["G1".to_owned()])), ["G1"]);
    }
}
