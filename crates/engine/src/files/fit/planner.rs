//! The planner: from what a model needs to the first choice that fits.
//!
//! Pure but for the [`Measure`] that it asks. Each step gives up what hurts least: requests at once, then the precision of
//! the KV cache, then experts on a device, then context down to [`GOOD_CONTEXT`], then layers on a device, then more
//! context. A given value is never changed. The result does not depend on how much memory is left over.

use poncho_api::KvType;
use serde::{Deserialize, Serialize};

use super::choice::{Choice, Given, ModelFacts};
use super::machine::{Machine, Needs};
use super::{GOOD_CONTEXT, MOST_CONTEXT, WANTED_PARALLEL};

/// Contexts between the wanted one and the good one are multiples of this.
const LARGE_STEP: u32 = 16_384;
/// Contexts below the good one, the largest first.
const SMALL_CONTEXTS: [u32; 9] = [24_576, 16_384, 12_288, 8192, 6144, 4096, 2048, 1024, 512];
/// Different numbers of layers that are tried between none and all.
const PLACES: u32 = 16;

/// Says how much memory a choice needs.
pub trait Measure {
    /// The needs of a choice, with as many devices as the machine has.
    ///
    /// # Errors
    /// Why it cannot be measured, as text.
    fn needs(&mut self, choice: &Choice) -> Result<Needs, String>;
}

/// What was given up, in the order in which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Nothing.
    Wanted,
    /// Requests at once.
    FewerAtOnce,
    /// Precision of the KV cache.
    SmallerKv,
    /// Experts are on the CPU.
    ExpertsOnCpu,
    /// Context, but it is still a good one.
    LessContext,
    /// Layers are on the CPU.
    LayersOnCpu,
    /// Context, below a good one.
    LittleContext,
    /// The weights do not stay in memory: they are read from the disk again and again.
    WeightsFromDisk,
    /// It does not fit; the smallest choice is returned.
    DoesNotFit,
}

/// A choice with its needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What was chosen.
    pub choice: Choice,
    /// What it needs.
    pub needs: Needs,
    /// What was given up last.
    pub step: Step,
}

/// Whether these needs fit into the budgets of the machine.
#[must_use]
pub fn fits(machine: &Machine, needs: &Needs) -> bool {
    on_devices(machine, needs) && needs.host.total() <= machine.host_budget()
}

fn on_devices(machine: &Machine, needs: &Needs) -> bool {
    needs.devices.len() <= machine.devices.len()
        && needs.devices.iter().zip(&machine.devices).all(|(need, device)| need.total() <= device.budget())
}

/// Chooses the settings of a model.
///
/// # Errors
/// Why the needs of a choice cannot be measured.
pub fn plan(machine: &Machine, model: &ModelFacts, given: &Given, measure: &mut dyn Measure) -> Result<Plan, String> {
    Planner { machine, model, given, measure }.plan()
}

struct Planner<'a> {
    machine: &'a Machine,
    model: &'a ModelFacts,
    given: &'a Given,
    measure: &'a mut dyn Measure,
}

impl Planner<'_> {
    fn plan(&mut self) -> Result<Plan, String> {
        let wanted = self.given.n_ctx.unwrap_or_else(|| self.model.trained.unwrap_or(GOOD_CONTEXT).min(MOST_CONTEXT));
        let kinds = self.kinds();
        let parallels: Vec<u32> = match self.given.parallel {
            Some(parallel) => vec![parallel],
            None => (1..=WANTED_PARALLEL).rev().collect(),
        };
        let choice = |n_ctx: u32, parallel: u32, (type_k, type_v): (KvType, KvType)| Choice {
            n_ctx,
            parallel,
            type_k,
            type_v,
            n_cpu_moe: self.given.n_cpu_moe.unwrap_or(0),
            gpu_layers: self.given.gpu_layers.unwrap_or(None),
        };
        let mut wishes = Vec::new();
        for (at, kind) in kinds.iter().enumerate() {
            for parallel in &parallels {
                let step = match (at, Some(parallel) == parallels.first()) {
                    (0, true) => Step::Wanted,
                    (0, false) => Step::FewerAtOnce,
                    _ => Step::SmallerKv,
                };
                wishes.push((choice(wanted, *parallel, *kind), step));
            }
        }
        // The smallest one of all: what every later step starts from.
        let Some((least, _)) = wishes.last().copied() else { return Err("no choice is possible".to_owned()) };
        for (choice, step) in &wishes {
            if let Some(plan) = self.as_it_is(choice, *step)? {
                return Ok(plan);
            }
        }
        for (choice, _) in &wishes {
            if let Some(plan) = self.experts_on_cpu(choice)? {
                return Ok(plan);
            }
        }
        let may_shrink = self.given.n_ctx.is_none();
        let good = if may_shrink { wanted.min(GOOD_CONTEXT) } else { wanted };
        if may_shrink {
            let contexts = large_contexts(wanted);
            let found =
                self.first(&contexts, |planner, n_ctx| planner.placed(&Choice { n_ctx, ..least }, Step::LessContext))?;
            if let Some(plan) = found {
                return Ok(plan);
            }
        }
        if let Some(plan) = self.layers_on_cpu(&Choice { n_ctx: good, ..least }, Step::LayersOnCpu)? {
            return Ok(plan);
        }
        let small: Vec<u32> = match may_shrink {
            true => SMALL_CONTEXTS.into_iter().filter(|n_ctx| *n_ctx < good).collect(),
            false => Vec::new(),
        };
        let found = self.first(&small, |planner, n_ctx| {
            let choice = Choice { n_ctx, ..least };
            match planner.placed(&choice, Step::LittleContext)? {
                Some(plan) => Ok(Some(plan)),
                None => planner.layers_on_cpu(&choice, Step::LittleContext),
            }
        })?;
        if let Some(plan) = found {
            return Ok(plan);
        }
        if !self.given.held_weights {
            let contexts: Vec<u32> = std::iter::once(good).chain(small.iter().copied()).collect();
            let found = self.first(&contexts, |planner, n_ctx| {
                let choice = Choice { n_ctx, ..least };
                match planner.read_from_disk(&choice)? {
                    Some(plan) => Ok(Some(plan)),
                    // A GPU that is too small for the model must not keep the host from it.
                    None => planner.layers_from_disk(&choice),
                }
            })?;
            if let Some(plan) = found {
                return Ok(plan);
            }
        }
        let choice = Choice { n_ctx: small.last().copied().unwrap_or(good), ..least };
        let needs = self.measure.needs(&choice)?;
        Ok(Plan { choice, needs, step: Step::DoesNotFit })
    }

    /// The pairs of KV types that may be chosen, the better one first.
    fn kinds(&self) -> Vec<(KvType, KvType)> {
        let Given { type_k, type_v, no_quantised_kv, .. } = *self.given;
        let full = (type_k.unwrap_or_default(), type_v.unwrap_or_default());
        let small = (type_k.unwrap_or(KvType::Q8_0), type_v.unwrap_or(KvType::Q8_0));
        if no_quantised_kv || small == full { vec![full] } else { vec![full, small] }
    }

    fn as_it_is(&mut self, choice: &Choice, step: Step) -> Result<Option<Plan>, String> {
        let needs = self.measure.needs(choice)?;
        Ok(fits(self.machine, &needs).then_some(Plan { choice: *choice, needs, step }))
    }

    /// As it is, or with as few experts on the CPU as possible.
    fn placed(&mut self, choice: &Choice, step: Step) -> Result<Option<Plan>, String> {
        if let Some(plan) = self.as_it_is(choice, step)? {
            return Ok(Some(plan));
        }
        Ok(self.experts_on_cpu(choice)?.map(|plan| Plan { step, ..plan }))
    }

    /// The fewest layers with their experts on the CPU with which the devices have room, if the host has it too.
    fn experts_on_cpu(&mut self, choice: &Choice) -> Result<Option<Plan>, String> {
        let may = self.given.n_cpu_moe.is_none() && self.model.experts > 0 && !self.machine.devices.is_empty();
        if !may || choice.gpu_layers == Some(0) {
            return Ok(None);
        }
        let counts = steps_up(self.model.layers);
        let with = |n_cpu_moe| Choice { n_cpu_moe, ..*choice };
        let machine = self.machine;
        Ok(self.smallest(&counts, with, Step::ExpertsOnCpu)?.filter(|plan| fits(machine, &plan.needs)))
    }

    /// The fewest layers on the CPU with which the devices have room, if the host has it too.
    fn layers_on_cpu(&mut self, choice: &Choice, step: Step) -> Result<Option<Plan>, String> {
        let machine = self.machine;
        Ok(self.fewest_layers(choice, step)?.filter(|plan| fits(machine, &plan.needs)))
    }

    /// The fewest layers on the CPU with which the devices have room; the host reads their weights from the disk.
    fn layers_from_disk(&mut self, choice: &Choice) -> Result<Option<Plan>, String> {
        let found = self.fewest_layers(choice, Step::WeightsFromDisk)?;
        Ok(found.filter(|plan| self.has_room_for_buffers(&plan.needs)))
    }

    /// The fewest layers on the CPU with which the devices have room, whatever the host has.
    fn fewest_layers(&mut self, choice: &Choice, step: Step) -> Result<Option<Plan>, String> {
        if self.given.gpu_layers.is_some() || self.machine.devices.is_empty() {
            return Ok(None);
        }
        let may_move_experts = self.given.n_cpu_moe.is_none() && self.model.experts > 0;
        let n_cpu_moe = if may_move_experts { self.model.layers } else { choice.n_cpu_moe };
        // The output counts as one more layer; without it on a device, none has to be moved for it.
        let counts: Vec<u32> = steps_up(self.model.layers);
        let with =
            |moved: u32| Choice { n_cpu_moe, gpu_layers: Some(self.model.layers.saturating_sub(moved)), ..*choice };
        self.smallest(&counts, with, step)
    }

    /// The first of growing counts with which the devices have room.
    fn smallest(&mut self, counts: &[u32], with: impl Fn(u32) -> Choice, step: Step) -> Result<Option<Plan>, String> {
        let (mut low, mut high) = (0, counts.len());
        let mut found = None;
        while low < high {
            let middle = low.midpoint(high);
            let Some(count) = counts.get(middle) else { break };
            let choice = with(*count);
            let needs = self.measure.needs(&choice)?;
            if on_devices(self.machine, &needs) {
                found = Some(Plan { choice, needs, step });
                high = middle;
            } else {
                low = middle.saturating_add(1);
            }
        }
        Ok(found)
    }

    /// Fits if the weights on the host are read from the disk whenever they are needed; the rest takes half at most.
    fn read_from_disk(&mut self, choice: &Choice) -> Result<Option<Plan>, String> {
        let needs = self.measure.needs(choice)?;
        let has_room = on_devices(self.machine, &needs) && self.has_room_for_buffers(&needs);
        Ok(has_room.then_some(Plan { choice: *choice, needs, step: Step::WeightsFromDisk }))
    }

    /// Whether the host has room for all but the weights, and as much again to read them into.
    fn has_room_for_buffers(&self, needs: &Needs) -> bool {
        needs.host.allocated() <= self.machine.host_budget() / 2
    }

    /// The plan for the first of shrinking contexts that has one. Smaller ones need less.
    fn first(
        &mut self,
        contexts: &[u32],
        mut plan: impl FnMut(&mut Self, u32) -> Result<Option<Plan>, String>,
    ) -> Result<Option<Plan>, String> {
        let (mut low, mut high) = (0, contexts.len());
        let mut found = None;
        while low < high {
            let middle = low.midpoint(high);
            let Some(n_ctx) = contexts.get(middle) else { break };
            match plan(self, *n_ctx)? {
                Some(fitting) => {
                    found = Some(fitting);
                    high = middle;
                }
                None => low = middle.saturating_add(1),
            }
        }
        Ok(found)
    }
}

/// Contexts below the wanted one down to the good one, the largest first.
fn large_contexts(wanted: u32) -> Vec<u32> {
    let steps = wanted.saturating_sub(1) / LARGE_STEP;
    let contexts = (1..=steps).rev().map(|step| step.saturating_mul(LARGE_STEP));
    contexts.filter(|n_ctx| *n_ctx >= GOOD_CONTEXT).collect()
}

/// A few counts from 1 to `most`, which is the last one.
fn steps_up(most: u32) -> Vec<u32> {
    let mut counts: Vec<u32> = (1..=PLACES).map(|step| most.saturating_mul(step).div_ceil(PLACES)).collect();
    counts.dedup();
    counts.retain(|count| *count > 0);
    counts
}
