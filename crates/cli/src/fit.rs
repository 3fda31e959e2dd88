//! Settings that fit this machine, for models that are given without them.
//!
//! `serve`, `fit`, `doctor` and the commands with a model of their own ask a [`Fitting`] for the configuration of a model.
//! `machine.rs` reads memory and disks, `child.rs` has llama.cpp measure in another process, `kept.rs` remembers plans
//! beside the cache folder, `lines.rs` shows them. The planner is the engine's. A value that the user gave is never
//! changed, and nothing here may load a model in this process.

pub(crate) mod child;
pub(crate) mod command;
mod kept;
pub(crate) mod lines;
mod machine;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use poncho_engine::ModelConfig;
use poncho_engine::backend::KvLayout;
use poncho_engine::backend::llama::DeviceSources;
use poncho_engine::fit::{
    Arithmetic, Choice, GOOD_CONTEXT, Given, KeptPlan, Machine, Needs, Origin, Plan, Step, decide, plan,
};
use poncho_server::MemoryBudget;

use crate::serving::devices::Looked;
use crate::serving::models::Configs;
use crate::serving::shape::ModelShape;
use crate::serving::tiers::Quotas;
use crate::settings::args::ServeArgs;

/// The plan of a model.
#[derive(Debug, Clone)]
pub(crate) struct Fitted {
    pub(crate) plan: Plan,
    pub(crate) origin: Origin,
    /// The context that the model was trained with.
    pub(crate) trained: Option<u32>,
    pub(crate) layers: u32,
}

/// How exact the measurement of a plan has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    /// llama.cpp measures in a child process, unless the model is small beside the memory.
    Measured,
    /// The head of the file is enough.
    Estimated,
}

/// Whether an earlier plan is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Earlier {
    Kept,
    Forgotten,
}

/// Plans models for one machine.
#[derive(Debug)]
pub(crate) struct Fitting {
    shape: ModelShape,
    /// The shapes of models that have settings of their own.
    named: BTreeMap<String, ModelShape>,
    /// The folder of the cache, beside which plans are kept; `None` keeps none.
    folder: Option<PathBuf>,
    /// What no planned model takes yet.
    machine: Mutex<Machine>,
    /// Plans by the path of the model.
    plans: Mutex<BTreeMap<PathBuf, Fitted>>,
    /// Given sizes of the tiers.
    given: (Option<u64>, Option<u64>),
    /// Whether new plans are kept.
    keeps: bool,
    /// Devices that the measuring process has to load.
    sources: DeviceSources,
}

impl Fitting {
    /// A fitting for the settings of a server on the machine as it is now.
    pub(crate) fn new(args: &ServeArgs, shape: ModelShape, folder: Option<&Path>, looked: &Looked) -> Self {
        let memory = args.memory.unwrap_or_default();
        Self {
            machine: Mutex::new(machine::look(memory, &looked.devices, &args.backend.device_names())),
            shape,
            named: BTreeMap::new(),
            folder: folder.map(Path::to_path_buf),
            plans: Mutex::new(BTreeMap::new()),
            given: (args.cache_ram, args.cache_size),
            keeps: true,
            sources: looked.sources.clone(),
        }
    }

    /// The same with settings of single models, by name.
    pub(crate) fn with_models(self, named: BTreeMap<String, ModelShape>) -> Self {
        Self { named, ..self }
    }

    fn shape_of(&self, id: &str) -> &ModelShape {
        self.named.get(id).unwrap_or(&self.shape)
    }

    /// The same without writing anything.
    pub(crate) fn read_only(self) -> Self {
        Self { keeps: false, ..self }
    }

    /// The devices that are planned for.
    pub(crate) fn device_names(&self) -> Vec<String> {
        self.machine().devices.into_iter().map(|device| device.name).collect()
    }

    /// Plans a model that is about to be loaded. What it needs is not available to the next one.
    pub(crate) fn plan(&self, path: &Path, id: &str, earlier: Earlier) -> Fitted {
        let machine = self.machine();
        let fitted = self.plan_on(&machine, path, self.shape_of(id), Precision::Measured, earlier);
        self.take(&fitted.plan.needs);
        self.lock_plans().insert(path.to_path_buf(), fitted.clone());
        fitted
    }

    /// Plans a model again with less memory than it was planned with. `None` if nothing smaller is possible.
    pub(crate) fn plan_smaller(&self, path: &Path, id: &str, memory: MemoryBudget, looked: &Looked) -> Option<Fitted> {
        let shape = self.shape_of(id);
        let before = self.lock_plans().get(path).cloned()?;
        let mut less = machine::look(memory, &looked.devices, &shape.backend.device_names());
        let needs = &before.plan.needs;
        // What was tried did not work, so the budget is below it, whatever the system reports.
        less.host_free = less.host_free.min(needs.host.total().saturating_add(machine::OWN_SHARE));
        for (device, need) in less.devices.iter_mut().zip(&needs.devices) {
            device.free = device.free.min(need.total());
        }
        let fitted = self.plan_on(&less, path, shape, Precision::Estimated, Earlier::Forgotten);
        let is_smaller = fitted.plan.choice != before.plan.choice && fitted.plan.needs.total() < needs.total();
        is_smaller.then(|| {
            self.lock_plans().insert(path.to_path_buf(), fitted.clone());
            fitted
        })
    }

    /// The configuration of a model. One that nobody planned yet is planned from the head of its file.
    pub(crate) fn config(&self, path: &Path, id: &str) -> ModelConfig {
        let known = self.lock_plans().get(path).cloned();
        let fitted = known.unwrap_or_else(|| {
            let fitted = self.plan_on(&self.machine(), path, self.shape_of(id), Precision::Estimated, Earlier::Kept);
            self.lock_plans().insert(path.to_path_buf(), fitted.clone());
            fitted
        });
        self.shape_of(id).config(path, id, &fitted.plan.choice)
    }

    /// The configurations of models, for a library.
    pub(crate) fn configs(self: &Arc<Self>) -> Configs {
        let fitting = Arc::clone(self);
        Arc::new(move |path: &Path, id: &str| fitting.config(path, id))
    }

    /// The values that the planner keeps.
    pub(crate) fn given(&self, id: &str) -> Given {
        self.shape_of(id).given()
    }

    /// The sizes of the cache's tiers beside the models that were planned.
    pub(crate) fn quotas(&self) -> Quotas {
        let machine = self.machine();
        machine::quotas(self.given, machine.left(&Needs::default()), self.folder.as_deref())
    }

    /// Leaves memory to the cache that models which are loaded later do not get.
    pub(crate) fn reserve(&self, bytes: u64) {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.host_free = machine.host_free.saturating_sub(bytes);
    }

    fn machine(&self) -> Machine {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self, needs: &Needs) {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        *machine = machine.without(needs);
    }

    fn lock_plans(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, Fitted>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan_on(
        &self,
        machine: &Machine,
        path: &Path,
        shape: &ModelShape,
        precision: Precision,
        earlier: Earlier,
    ) -> Fitted {
        let given = shape.given();
        let mut config = shape.unplanned(path);
        config.context.kv = shape.kv.unwrap_or(KvLayout::Split);
        let arithmetic = Arithmetic::of(&config, machine);
        let (facts, key) = (arithmetic.facts(), arithmetic.key());
        let found = self.folder.as_deref().and_then(|folder| kept::read(folder, &key, &given, machine));
        let found = found.filter(|_| earlier == Earlier::Kept);
        let fresh = |given: &Given| {
            let estimated = plan(machine, &facts, given, &mut arithmetic.clone())?;
            let is_small = estimated.step == Step::Wanted && estimated.needs.total() <= machine.host_budget() / 2;
            if precision == Precision::Estimated || (is_small && machine.devices.is_empty()) {
                return Ok(estimated);
            }
            Ok(child::plan(&config, machine, given, &facts, shape.kv, &self.sources).unwrap_or(estimated))
        };
        let decided = decide(found.as_ref(), machine, &given, fresh);
        // The arithmetic has no errors.
        let (plan, origin) = decided.unwrap_or_else(|_| (fallback(&arithmetic, machine, &given), Origin::New));
        let keeps = self.keeps && origin == Origin::New && precision == Precision::Measured;
        if let Some(folder) = self.folder.as_deref().filter(|_| keeps && plan.step != Step::DoesNotFit) {
            kept::write(folder, KeptPlan { model: key, given, machine: machine.clone(), plan: plan.clone() });
        }
        Fitted { plan, origin, trained: facts.trained, layers: facts.layers }
    }
}

/// A plan that does not fit: loading the file says why.
fn fallback(arithmetic: &Arithmetic, machine: &Machine, given: &Given) -> Plan {
    let facts = arithmetic.facts();
    plan(machine, &facts, given, &mut arithmetic.clone()).unwrap_or_else(|_| Plan {
        choice: Choice {
            n_ctx: given.n_ctx.unwrap_or(GOOD_CONTEXT),
            parallel: given.parallel.unwrap_or(1),
            type_k: given.type_k.unwrap_or_default(),
            type_v: given.type_v.unwrap_or_default(),
            n_cpu_moe: given.n_cpu_moe.unwrap_or(0),
            gpu_layers: given.gpu_layers.unwrap_or(None),
        },
        needs: Needs::default(),
        step: Step::DoesNotFit,
    })
}
