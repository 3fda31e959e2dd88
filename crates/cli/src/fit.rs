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
use poncho_server::{LoadingParameters, MemoryBudget, Plans};

use crate::serving::devices::Looked;
use crate::serving::memory;
use crate::serving::models::Configs;
use crate::serving::shape::ModelShape;
use crate::serving::tiers::Quotas;
use crate::settings::args::ServeArgs;

/// The plan of a model.
#[derive(Debug, Clone)]
pub(crate) struct Fitted {
    pub(crate) plan: Plan,
    pub(crate) origin: Origin,
    /// The values that were fixed.
    pub(crate) given: Given,
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

/// A model that is to be planned.
#[derive(Clone, Copy)]
struct ToPlan<'m> {
    path: &'m Path,
    shape: &'m ModelShape,
    loading: LoadingParameters,
}

/// The file of a model, its name, and its Modelfile: several names may share one file.
type PlanKey = (PathBuf, String, LoadingParameters);

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
    /// Plans by everything that they were made for.
    plans: Mutex<BTreeMap<PlanKey, Fitted>>,
    /// Given sizes of the tiers.
    given: (Option<u64>, Option<u64>),
    /// Whether new plans are kept.
    keeps: bool,
    /// How exactly models of the command line are measured.
    precision: Precision,
    /// Devices that the measuring process has to load.
    sources: DeviceSources,
}

impl Fitting {
    /// A fitting for the settings of a server on the machine as it is now.
    pub(crate) fn new(args: &ServeArgs, shape: ModelShape, folder: Option<&Path>, looked: &Looked) -> Self {
        let memory = memory::limit(args.memory);
        Self {
            machine: Mutex::new(machine::look(memory, &looked.devices, &args.backend.device_names())),
            shape,
            named: BTreeMap::new(),
            folder: folder.map(Path::to_path_buf),
            plans: Mutex::new(BTreeMap::new()),
            given: (args.cache_ram, args.cache_size),
            keeps: true,
            precision: Precision::Measured,
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

    /// The same for a machine with this much free memory, and with GPUs of these sizes instead of its own. llama.cpp cannot
    /// measure for devices that are not there.
    pub(crate) fn imagined(self, host_free: Option<u64>, gpus: &[u64]) -> Self {
        let mut machine = self.machine();
        let host_free = host_free.unwrap_or(machine.host_free);
        if gpus.is_empty() {
            machine.host_free = host_free;
            return Self { machine: Mutex::new(machine), ..self };
        }
        let machine = machine::imagined(host_free, gpus);
        Self { machine: Mutex::new(machine), precision: Precision::Estimated, ..self }
    }

    /// The devices that are planned for.
    pub(crate) fn device_names(&self) -> Vec<String> {
        self.machine().devices.into_iter().map(|device| device.name).collect()
    }

    /// Plans a model that is about to be loaded. What it needs is not available to the next one.
    pub(crate) fn plan(&self, path: &Path, id: &str, loading: LoadingParameters, earlier: Earlier) -> Fitted {
        let machine = self.machine();
        let model = ToPlan { path, shape: self.shape_of(id), loading };
        let fitted = self.plan_on(&machine, &model, self.precision, earlier);
        self.take(&fitted.plan.needs);
        self.keep(path, id, loading, &fitted);
        fitted
    }

    /// Plans a model again with less memory than it was planned with. `None` if nothing smaller is possible.
    pub(crate) fn plan_smaller(
        &self,
        path: &Path,
        id: &str,
        loading: LoadingParameters,
        memory: MemoryBudget,
        looked: &Looked,
    ) -> Option<Fitted> {
        let shape = self.shape_of(id);
        let before = self.known(path, id, loading)?;
        let mut less = machine::look(memory, &looked.devices, &shape.backend.device_names());
        let needs = &before.plan.needs;
        // What was tried did not work, so the budget is below it, whatever the system reports.
        less.host_free = less.host_free.min(needs.host.total().saturating_add(machine::OWN_SHARE));
        for (device, need) in less.devices.iter_mut().zip(&needs.devices) {
            device.free = device.free.min(need.total());
        }
        let model = ToPlan { path, shape, loading };
        let fitted = self.plan_on(&less, &model, Precision::Estimated, Earlier::Forgotten);
        let is_smaller = fitted.plan.choice != before.plan.choice && fitted.plan.needs.total() < needs.total();
        is_smaller.then(|| {
            self.keep(path, id, loading, &fitted);
            fitted
        })
    }

    /// The configuration of a model. One that nobody planned yet is planned from the head of its file.
    pub(crate) fn config(&self, path: &Path, id: &str, loading: LoadingParameters) -> ModelConfig {
        let shape = self.shape_of(id);
        let fitted = self.known(path, id, loading).unwrap_or_else(|| {
            let model = ToPlan { path, shape, loading };
            let fitted = self.plan_on(&self.machine(), &model, Precision::Estimated, Earlier::Kept);
            self.keep(path, id, loading, &fitted);
            fitted
        });
        shape.config(path, id, &fitted.plan.choice)
    }

    fn known(&self, path: &Path, id: &str, loading: LoadingParameters) -> Option<Fitted> {
        self.lock_plans().get(&(path.to_path_buf(), id.to_owned(), loading)).cloned()
    }

    fn keep(&self, path: &Path, id: &str, loading: LoadingParameters, fitted: &Fitted) {
        self.lock_plans().insert((path.to_path_buf(), id.to_owned(), loading), fitted.clone());
    }

    /// The plans of models that were planned, for the console.
    pub(crate) fn shown(self: &Arc<Self>) -> Plans {
        let fitting = Arc::clone(self);
        Arc::new(move |path: &Path, id: &str| {
            let plans = fitting.lock_plans();
            let (_, fitted) = plans.iter().find(|((file, name, _), _)| file == path && name == id)?;
            let fitted = fitted.clone();
            drop(plans);
            Some(lines::shown(&fitted, &fitting.device_names()))
        })
    }

    /// The configurations of models, for a library.
    pub(crate) fn configs(self: &Arc<Self>) -> Configs {
        let fitting = Arc::clone(self);
        Arc::new(move |path: &Path, id: &str, loading| fitting.config(path, id, loading))
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

    fn lock_plans(&self) -> std::sync::MutexGuard<'_, BTreeMap<PlanKey, Fitted>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan_on(&self, machine: &Machine, model: &ToPlan<'_>, precision: Precision, earlier: Earlier) -> Fitted {
        let ToPlan { path, shape, loading } = *model;
        let mut given = shape.given(&loading);
        let mut config = shape.unplanned(path);
        loading.set(&mut config);
        config.context.kv = shape.kv.unwrap_or(KvLayout::Split);
        let arithmetic = Arithmetic::of(&config, machine);
        given.no_quantised_kv |= !arithmetic.takes_quantised_kv();
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
        Fitted { plan, origin, given, trained: facts.trained, layers: facts.layers }
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
