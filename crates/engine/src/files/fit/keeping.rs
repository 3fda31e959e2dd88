//! Whether a plan of an earlier start is kept.
//!
//! Another KV type is another namespace of the cache, so a start that chose it would find no row of the one before. A kept
//! plan stays while it fits, whatever else is free. With much more memory the context and the requests grow, and the KV type
//! stays. Pure; the command line reads and writes the file.

use serde::{Deserialize, Serialize};

use super::choice::{Given, ModelFacts};
use super::machine::{Machine, Needs};
use super::planner::{Plan, Step, fits};

/// A model by what decides its needs: a file that was renamed or copied is the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelKey {
    /// Bytes of its files.
    pub bytes: u64,
    /// What the file says.
    pub facts: ModelFacts,
    /// Bytes of 256 positions.
    pub context: u64,
}

/// A plan with what it was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPlan {
    /// The model.
    pub model: ModelKey,
    /// What the user had fixed.
    pub given: Given,
    /// The memory that there was.
    pub machine: Machine,
    /// The plan.
    pub plan: Plan,
}

impl KeptPlan {
    /// Whether it was made for this model with the same given values and the same devices.
    #[must_use]
    pub fn is_for(&self, model: &ModelKey, given: &Given, machine: &Machine) -> bool {
        let devices = |machine: &Machine| -> Vec<(String, u64)> {
            machine.devices.iter().map(|device| (device.name.clone(), device.total)).collect()
        };
        self.model == *model && self.given == *given && devices(&self.machine) == devices(machine)
    }
}

/// Where a plan comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// It was made now.
    New,
    /// It is the one of an earlier start.
    Kept,
}

/// The plan for a machine: the kept one while it fits, otherwise a new one that keeps its KV type if it can.
///
/// # Errors
/// As those of `fresh`, which plans with the values that it is given.
pub fn decide(
    kept: Option<&KeptPlan>,
    machine: &Machine,
    given: &Given,
    mut fresh: impl FnMut(&Given) -> Result<Plan, String>,
) -> Result<(Plan, Origin), String> {
    let Some(KeptPlan { plan: kept, machine: then, .. }) = kept else { return Ok((fresh(given)?, Origin::New)) };
    let same_type = Given { type_k: Some(kept.choice.type_k), type_v: Some(kept.choice.type_v), ..*given };
    if still_fits(machine, kept) {
        if kept.step == Step::Wanted || !is_much_more(machine, then) {
            return Ok((kept.clone(), Origin::Kept));
        }
        let larger = fresh(&same_type)?;
        let is_larger = larger.choice.n_ctx >= kept.choice.n_ctx && larger.choice != kept.choice;
        return Ok(if is_larger { (larger, Origin::New) } else { (kept.clone(), Origin::Kept) });
    }
    let smaller = fresh(&same_type)?;
    if smaller.step < Step::LittleContext {
        return Ok((smaller, Origin::New));
    }
    Ok((fresh(given)?, Origin::New))
}

fn still_fits(machine: &Machine, plan: &Plan) -> bool {
    match plan.step {
        Step::DoesNotFit => false,
        // The weights never fitted; what is allocated must.
        Step::WeightsFromDisk => {
            let mut mapped = plan.needs.clone();
            mapped.host.weights = 0;
            fits(machine, &mapped)
        }
        _ => fits(machine, &plan.needs),
    }
}

/// Half as much again, anywhere.
fn is_much_more(now: &Machine, then: &Machine) -> bool {
    let grew = |now: u64, then: u64| now > then.saturating_add(then / 2);
    grew(now.host_free, then.host_free)
        || now.devices.iter().zip(&then.devices).any(|(now, then)| grew(now.free, then.free))
}

impl Machine {
    /// What is left when these needs are taken.
    #[must_use]
    pub fn without(&self, needs: &Needs) -> Self {
        let mut left = self.clone();
        left.host_free = left.host_free.saturating_sub(needs.host.total());
        for (device, need) in left.devices.iter_mut().zip(&needs.devices) {
            device.free = device.free.saturating_sub(need.total());
        }
        left
    }
}
