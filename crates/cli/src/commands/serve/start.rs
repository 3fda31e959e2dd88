//! What a server or a node does before it serves: finds its models, checks the memory, starts the engine, loads.
//!
//! Called by `serve` and `node`, in this order. It must never serve anything.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;
use poncho_cache::CacheConfig;
use poncho_engine::{ModelConfig, Sizing, sizing};
use poncho_server::MemoryBudget;
use poncho_terminal::{Progress, printable_line, show_bytes};
use tokio::runtime::Runtime;

use crate::commands::serve::report::Report;
use crate::serving::devices::Looked;
use crate::serving::disk::{LITTLE_SPACE, free_bytes};
use crate::serving::engine_process::EngineProcess;
use crate::serving::memory::{Demand, Fit};
use crate::serving::models::{Asked, ServedModels};
use crate::serving::probing::prober;
use crate::serving::shape::{ModelShape, chat_settings, replay_file, show_fingerprint};
use crate::serving::shared_tier::with_shared_tier;
use crate::serving::tiers::cache_config;
use crate::serving::{devices, memory, names};
use crate::settings::args::ServeArgs;
use crate::settings::cache_folder::cache_folder;

/// The models that are to be loaded, and the folder of the cache.
pub(super) struct Start {
    pub(super) models: ServedModels,
    pub(super) folder: PathBuf,
}

/// The same, with what is known of the machine.
pub(super) struct Ready {
    pub(super) models: ServedModels,
    pub(super) folder: PathBuf,
    sized: Vec<(ModelConfig, Sizing)>,
    looked: Looked,
    available: Option<u64>,
    cache: CacheConfig,
}

impl Start {
    /// Finds the models.
    pub(super) fn find(args: &ServeArgs) -> anyhow::Result<Self> {
        let folder = cache_folder(args.cache_dir.as_deref())?;
        let shape = ModelShape::of(args, prober(args.probe_models, Some(&folder)));
        let asked = Asked { models: &args.model, name: args.name.as_deref(), models_dir: args.models_dir.as_deref() };
        Ok(Self { models: ServedModels::find(asked, &shape)?, folder })
    }

    /// Looks at the models and the machine. Fails if the memory is too little, unless it has no limit.
    pub(super) fn look(self, args: &ServeArgs) -> anyhow::Result<Ready> {
        let Self { models, folder } = self;
        let cache = cache_config(args, &folder)?;
        let mut sized = Vec::new();
        for name in &models.named {
            let config = models.get(name)?.load().config;
            let sizing = sizing(&config);
            sized.push((config, sizing));
        }
        let looked = devices::look(&args.devices);
        let available = sized.first().and_then(|(config, _)| memory::available_for(config, &looked.devices));
        let all: Vec<_> = sized.iter().map(|(config, sizing)| (config, *sizing)).collect();
        if let Some(available) = available.filter(|_| args.memory != Some(MemoryBudget::Unlimited))
            && let Fit::TooLittle(shortage) = Demand::of_sized(&all).fit(available)
        {
            bail!("{shortage}; --memory none skips this check");
        }
        Ok(Ready { models, folder, sized, looked, available, cache })
    }
}

impl Ready {
    /// Starts the engine, in a child process or in this one.
    pub(super) fn engine(&self, args: &ServeArgs, runtime: &Runtime) -> anyhow::Result<EngineProcess> {
        let engine = if args.in_process {
            devices::load(self.looked.sources.clone())?;
            let cache = with_shared_tier(self.cache.clone(), &args.shared_tier)?;
            EngineProcess::own(cache, chat_settings(args, Some(replay_file(&self.folder))))?
        } else {
            EngineProcess::child(runtime, &self.folder, &self.looked.sources, args.nodes.crash_limit)?
        };
        warn_of_little_space(&self.folder);
        Ok(engine)
    }

    /// Loads the models.
    pub(super) fn load(
        &mut self,
        engine: &EngineProcess,
        runtime: &Runtime,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        if let Some(note) = self.models.note.take() {
            writeln!(out, "{}", printable_line(&note))?;
        }
        for name in &self.models.named {
            let model = self.models.get(name)?;
            writeln!(out, "loading {}", printable_line(name))?;
            out.flush()?;
            let progress = Progress::on_stderr();
            engine.load(runtime, model.load(), show_fingerprint(&progress))?;
            progress.clear();
            if let Some(loaded) = engine.node().model(name) {
                names::record(&self.folder, name, &loaded.report().fingerprint);
            }
        }
        Ok(())
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
