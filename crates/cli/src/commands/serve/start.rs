//! What a server or a node does before it serves: finds its models, checks the memory, starts the engine, loads.
//!
//! Called by `serve` and `node`, in this order. It must never serve anything.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use poncho_cache::{CacheConfig, CacheError};
use poncho_engine::fit::Step;
use poncho_engine::{EngineError, ModelConfig, Sizing, sizing};
use poncho_server::{MemoryBudget, ServerConfig};
use poncho_terminal::{Progress, printable_line, show_bytes};
use tokio::runtime::Runtime;

use crate::cluster::pulls::Pulls;
use crate::commands::serve::report::Report;
use crate::fit::{Earlier, Fitted, Fitting, lines};
use crate::serving::devices::Looked;
use crate::serving::disk::{LITTLE_SPACE, free_bytes};
use crate::serving::engine_process::EngineProcess;
use crate::serving::memory::{Demand, Fit};
use crate::serving::models::{Asked, Extras, ServedModels};
use crate::serving::probing::prober;
use crate::serving::shape::{ModelShape, chat_settings, replay_file, shapes, show_fingerprint};
use crate::serving::shared_tier::with_shared_tier;
use crate::serving::templates::chosen_template;
use crate::serving::tiers::{Quotas, cache_config};
use crate::serving::{devices, memory, names};
use crate::settings::Resolved;
use crate::settings::args::ServeArgs;
use crate::settings::cache_folder::cache_folder;

/// How often a model that did not fit after all is loaded with less.
const SMALLER_TRIES: u32 = 3;

/// The models that are to be loaded, the machine, and the folder of the cache.
pub(super) struct Start {
    models: ServedModels,
    folder: PathBuf,
    fitting: Arc<Fitting>,
    looked: Looked,
}

/// The same, with the settings that were chosen.
pub(super) struct Ready {
    pub(super) models: ServedModels,
    pub(super) folder: PathBuf,
    fitting: Arc<Fitting>,
    sized: Vec<(ModelConfig, Sizing)>,
    looked: Looked,
    available: Option<u64>,
    quotas: Quotas,
    cache: CacheConfig,
}

impl Start {
    /// Looks at the machine and finds the models.
    pub(super) fn find(args: &ServeArgs, resolved: Option<&Resolved>) -> anyhow::Result<Self> {
        let folder = cache_folder(args.cache_dir.as_deref())?;
        let prober = prober(args.probe_models, Some(&folder));
        let of_models = resolved.map(|resolved| shapes(&resolved.models, prober.as_ref())).unwrap_or_default();
        let shape = ModelShape::of(args, prober);
        let looked = devices::look(&args.devices);
        let fitting = Arc::new(Fitting::new(args, shape, Some(&folder), &looked).with_models(of_models));
        let template = chosen_template(args)?;
        let asked = Asked {
            models: args.models(),
            name: args.name.as_deref(),
            models_dir: args.models_dir.as_deref(),
            extras: Extras { lora: &args.lora, template: template.as_deref() },
        };
        Ok(Self { models: ServedModels::find(asked, &fitting.configs())?, folder, fitting, looked })
    }

    /// Chooses what the settings leave open, and shows it. Fails if the memory is too little, unless it has no limit.
    pub(super) fn look(self, args: &ServeArgs, out: &mut impl Write) -> anyhow::Result<Ready> {
        let Self { mut models, folder, fitting, looked } = self;
        if let Some(note) = &models.note {
            writeln!(out, "{}", printable_line(note))?;
        }
        let planned = plan(&mut models, &fitting)?;
        let quotas = fitting.quotas();
        fitting.reserve(quotas.ram);
        for fitted in &planned {
            show(out, &lines::of_model(fitted))?;
        }
        show(out, &lines::of_tiers(quotas, (args.cache_ram, args.cache_size)))?;
        let cache = cache_config(args, quotas, &folder)?;
        let sized = sized(&models)?;
        let available = sized.first().and_then(|(config, _)| memory::available_for(config, &looked.devices));
        let all: Vec<_> = sized.iter().map(|(config, sizing)| (config, *sizing)).collect();
        let fits = planned.iter().all(|fitted| fitted.plan.step < Step::WeightsFromDisk);
        if let Some(available) = available.filter(|_| !fits && args.memory != Some(MemoryBudget::Unlimited))
            && let Fit::TooLittle(shortage) = Demand::of_sized(&all).fit(available)
        {
            bail!("{shortage}; --memory none skips this check");
        }
        Ok(Ready { models, folder, fitting, sized, looked, available, quotas, cache })
    }
}

impl Ready {
    /// Starts the engine, in a child process or in this one.
    pub(super) fn engine(
        &self,
        args: &ServeArgs,
        runtime: &Runtime,
        pulls: Option<&Pulls>,
    ) -> anyhow::Result<EngineProcess> {
        // A named folder that cannot be made is a slip of the pen. One that fails later costs time only.
        if let Some(disk) = self.cache.disk.as_ref().filter(|_| args.cache_dir.is_some()) {
            let path = disk.folder.clone();
            let failed = |source| CacheError::Folder { action: "create", path, source };
            self.cache.fs.create_folder(&disk.folder).map_err(failed)?;
        }
        let engine = if args.in_process {
            devices::load(self.looked.sources.clone())?;
            let cache = with_shared_tier(self.cache.clone(), &args.shared_tier)?;
            EngineProcess::own(runtime, cache, chat_settings(args, Some(replay_file(&self.folder))), pulls)?
        } else {
            let chosen = self.quotas.flags(args);
            EngineProcess::child(runtime, &self.folder, &self.looked.sources, args.nodes.crash_limit, &chosen)?
        };
        warn_of_little_space(&self.folder);
        Ok(engine)
    }

    /// Loads the models, with less if memory is short after all.
    pub(super) fn load(
        &mut self,
        args: &ServeArgs,
        engine: &EngineProcess,
        runtime: &Runtime,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        for name in &self.models.named.clone() {
            writeln!(out, "loading {}", printable_line(name))?;
            out.flush()?;
            let mut tries_left = SMALLER_TRIES;
            loop {
                let model = self.models.get(name)?;
                let progress = Progress::on_stderr();
                let loaded = engine.load(runtime, model.load(), show_fingerprint(&progress));
                progress.clear();
                let Err(error) = loaded else { break };
                if tries_left == 0 || !is_about_memory(&error) {
                    return Err(error);
                }
                tries_left -= 1;
                // Other programs took memory after it was measured.
                let looked = devices::look(&args.devices);
                let (path, loading) = self.models.file(name)?;
                let smaller = self.fitting.plan_smaller(&path, name, loading, memory::limit(args.memory), &looked);
                let Some(fitted) = smaller else { return Err(error) };
                writeln!(out, "{} does not fit after all; trying less", printable_line(name))?;
                show(out, &lines::of_model(&fitted))?;
                self.models.configure_again(name)?;
                self.sized = sized(&self.models)?;
            }
            if let Some(loaded) = engine.node().model(name) {
                names::record(&self.folder, name, &loaded.report().fingerprint);
            }
        }
        Ok(())
    }

    /// Devices and plans, for the console.
    pub(super) fn show_in(&self, config: &mut ServerConfig) {
        config.machine = self.looked.shown();
        config.plans = Some(self.fitting.shown());
    }

    /// Context, memory, device and cache, for people.
    pub(super) fn report(&self) -> String {
        let Self { sized, looked, available, cache, .. } = self;
        Report { models: sized, available: *available, looked, cache }.text()
    }
}

/// Without space nothing fails, but prompts are computed again; a warning says why.
fn warn_of_little_space(folder: &Path) {
    let existing = folder.ancestors().find(|folder| folder.is_dir());
    if let Some(free) = existing.and_then(free_bytes).filter(|free| *free < LITTLE_SPACE) {
        tracing::warn!(
            folder = %folder.display(),
            free = show_bytes(free),
            "little space for the cache; free some, or name a folder on another disk with --cache-dir"
        );
    }
}

/// Plans the models of the command line, one after the other.
fn plan(models: &mut ServedModels, fitting: &Fitting) -> anyhow::Result<Vec<Fitted>> {
    let mut planned = Vec::new();
    for name in models.named.clone() {
        let (path, loading) = models.file(&name)?;
        planned.push(fitting.plan(&path, &name, loading, Earlier::Kept));
        models.configure_again(&name)?;
    }
    Ok(planned)
}

fn show(out: &mut impl Write, lines: &[String]) -> anyhow::Result<()> {
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(())
}

/// Whether a smaller plan may help: an allocation failed, or the system ended the process that made it.
fn is_about_memory(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<EngineError>() {
        Some(EngineError::NodeLost { .. }) => true,
        Some(EngineError::Load { reason, .. } | EngineError::Backend { reason, .. }) => {
            ["could not create the context", "alloc", "memory"].iter().any(|word| reason.contains(word))
        }
        _ => false,
    }
}

/// The models with what they take.
fn sized(models: &ServedModels) -> anyhow::Result<Vec<(ModelConfig, Sizing)>> {
    let each = models.named.iter().map(|name| {
        let config = models.get(name)?.load().config;
        let sizing = sizing(&config);
        Ok((config, sizing))
    });
    each.collect()
}
