//! The memory of a machine, the memory that a choice needs, and the margin that stays free.
//!
//! Plain data and arithmetic that never overflows.

use serde::{Deserialize, Serialize};

/// Memory of the process besides the model: the program, buffers of states on their way, stacks.
const OWN_MEMORY: u64 = 256 << 20;
/// The smallest margin on a device: handles and workspaces of its libraries.
const LEAST_DEVICE_MARGIN: u64 = 256 << 20;
/// The largest margin.
const MOST_MARGIN: u64 = 1 << 30;

/// Memory that can be used now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Bytes of the host, control groups included.
    pub host_free: u64,
    /// Devices with a memory of their own, in llama.cpp's order.
    pub devices: Vec<DeviceMemory>,
}

/// The memory of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Its name in llama.cpp.
    pub name: String,
    /// Free bytes.
    pub free: u64,
    /// All bytes.
    pub total: u64,
}

impl DeviceMemory {
    /// Bytes that a model may take.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.free.saturating_sub((self.free / 16).clamp(LEAST_DEVICE_MARGIN, MOST_MARGIN))
    }
}

impl Machine {
    /// Bytes of the host that a model may take.
    #[must_use]
    pub fn host_budget(&self) -> u64 {
        self.host_free.saturating_sub(OWN_MEMORY).saturating_sub((self.host_free / 16).min(MOST_MARGIN))
    }

    /// Bytes of the host that a model with these needs leaves.
    #[must_use]
    pub fn left(&self, needs: &Needs) -> u64 {
        self.host_budget().saturating_sub(needs.host.total())
    }
}

/// Bytes that a model takes in one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Use {
    /// Its weights.
    pub weights: u64,
    /// Keys, values and recurrent states.
    pub context: u64,
    /// Buffers of a computation.
    pub compute: u64,
}

impl Use {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.allocated())
    }

    /// What is allocated even if the weights are mapped.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.context.saturating_add(self.compute)
    }
}

/// Bytes that a model takes on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Needs {
    /// On the host.
    pub host: Use,
    /// On each device, in the machine's order.
    pub devices: Vec<Use>,
}

impl Needs {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.devices.iter().map(Use::total).fold(self.host.total(), u64::saturating_add)
    }
}
