//! The memory that models need, before they are loaded: whether it fits, and which settings would.
//!
//! Used by `serve`, by commands that load a model of their own, and by `doctor`. The figures come from the head of the
//! model file, so a model that does not fit is refused before llama.cpp allocates. Pure, except for [`available`] and
//! [`Demand::of`], so that tests can pass a limit.

use std::fmt;

use poncho_cache::SystemSource;
use poncho_engine::backend::KvType;
use poncho_engine::backend::llama::{Device, DeviceKind};
use poncho_engine::{ModelConfig, Sizing, sizing};
use poncho_server::MemoryBudget;
use poncho_terminal::show_bytes;

/// The memory of the process besides model and context: the program and the buffers of a decode call.
const OWN_MEMORY: u64 = 256 << 20;
/// Models may take this share of the memory if no limit is given.
pub(crate) const SHARE_PERCENT: u64 = 80;
/// A context that is worth suggesting.
const LEAST_CONTEXT: u64 = 512;
/// llama.cpp rounds contexts to this many tokens.
const CONTEXT_STEP: u64 = 256;

/// Bytes that this process can still allocate, control groups included; `None` if the system does not report it.
pub(crate) fn available() -> Option<u64> {
    SystemSource::default().available().ok()
}

/// The limit for all models together: the given one, or a share of the memory that the machine or the tightest control
/// group has.
pub(crate) fn limit(given: Option<MemoryBudget>) -> MemoryBudget {
    let share = |total: u64| MemoryBudget::Bytes(total / 100 * SHARE_PERCENT);
    given.unwrap_or_else(|| SystemSource::default().total().map_or(MemoryBudget::default(), share))
}

/// Bytes available where the models of these settings are kept; `None` if that is not known.
pub(crate) fn available_for(config: &ModelConfig, devices: &[Device]) -> Option<u64> {
    let gpus = || devices.iter().filter(|device| device.kind == DeviceKind::Gpu);
    match (gpus().next(), config.model.gpu_layers) {
        (None, _) | (_, Some(0)) => available(),
        (Some(_), None) => Some(gpus().map(|gpu| gpu.free).fold(0, u64::saturating_add)),
        // Partly here, partly there.
        (Some(_), Some(_)) => None,
    }
}

/// What models need together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Demand {
    /// For messages.
    names: Vec<String>,
    pub(crate) weights: u64,
    /// Weights that must stay in memory: those of files that are not mapped.
    held_weights: u64,
    pub(crate) kv: u64,
    bytes_per_token: u64,
    ctx_size: u32,
    parallel: u32,
    /// Whether the KV cache is not an upper bound only.
    is_exact: bool,
    /// Whether keys and values are stored in 16 bits, so that a smaller type can be suggested.
    is_half: bool,
}

/// Whether a demand fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    /// It works, but weights are read from the disk again and again.
    Tight(Shortage),
    /// An allocation would fail, or the system would end the process.
    TooLittle(Shortage),
}

/// Too little memory, and the settings that fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// What is needed, and for what.
    pub(crate) need: String,
    pub(crate) available: u64,
    /// Flags with values that fit.
    pub(crate) flags: Vec<String>,
}

impl Demand {
    /// Bytes of the state of one token.
    pub(crate) fn bytes_per_token(&self) -> u64 {
        self.bytes_per_token
    }

    /// The demand of models with these configurations, of which the first one's context counts. Reads the files' heads.
    pub(crate) fn of(configs: &[ModelConfig]) -> Self {
        let sized: Vec<(&ModelConfig, Sizing)> = configs.iter().map(|config| (config, sizing(config))).collect();
        Self::of_sized(&sized)
    }

    /// The same for sizes that are known.
    pub(crate) fn of_sized(models: &[(&ModelConfig, Sizing)]) -> Self {
        let sum = |each: fn(&ModelConfig, &Sizing) -> u64| {
            models.iter().map(|(config, sizing)| each(config, sizing)).fold(0, u64::saturating_add)
        };
        let context = models.first().map(|(config, _)| &config.context);
        Self {
            names: models.iter().map(|(config, _)| config.id.clone()).collect(),
            weights: sum(|_, sizing| sizing.footprint.weights),
            held_weights: sum(|config, sizing| {
                let is_held = !config.model.mmap || config.model.mlock;
                if is_held { sizing.footprint.weights } else { 0 }
            }),
            kv: sum(|_, sizing| sizing.footprint.cells),
            bytes_per_token: sum(|_, sizing| sizing.bytes_per_token),
            ctx_size: context.map_or(0, |context| context.n_ctx),
            parallel: context.map_or(1, |context| context.n_seq_max.max(1)),
            is_exact: models.iter().all(|(_, sizing)| sizing.is_exact),
            is_half: context.is_some_and(|context| context.type_k == KvType::F16 && context.type_v == KvType::F16),
        }
    }

    /// The same for a command without flags for the types of keys and values.
    pub(crate) fn without_type_flags(self) -> Self {
        Self { is_half: false, ..self }
    }

    /// Bytes of the KV cache for one request.
    pub(crate) fn kv_per_request(&self) -> u64 {
        self.kv / u64::from(self.parallel)
    }

    /// All of it.
    pub(crate) fn total(&self) -> u64 {
        OWN_MEMORY.saturating_add(self.weights).saturating_add(self.kv)
    }

    /// The parts of the sum, for people.
    pub(crate) fn sum(&self) -> String {
        let (weights, kv, requests) = (show_bytes(self.weights), show_bytes(self.kv_per_request()), self.parallel);
        format!("{weights} weights + {requests} x {kv} KV = {}", show_bytes(self.weights.saturating_add(self.kv)))
    }

    /// Whether it fits into this many bytes.
    pub(crate) fn fit(&self, available: u64) -> Fit {
        let shortage = || Shortage { need: self.need(), available, flags: self.flags(available) };
        // Without a reserve: what fits only just is a warning.
        if self.held_weights.saturating_add(self.kv) > available && self.is_exact {
            return Fit::TooLittle(shortage());
        }
        if self.total() > available { Fit::Tight(shortage()) } else { Fit::Fits }
    }

    fn need(&self) -> String {
        let about = if self.is_exact { "" } else { "at most " };
        format!(
            "{} needs {about}{} of memory: {} for weights and {} for the KV cache of {} x {} tokens",
            self.names.join(" and "),
            show_bytes(self.total()),
            show_bytes(self.weights),
            show_bytes(self.kv),
            self.parallel,
            self.ctx_size
        )
    }

    /// Flags with values that fit, each of them alone.
    fn flags(&self, available: u64) -> Vec<String> {
        // Weights that are mapped may take what is left.
        let room = [self.weights, self.held_weights].into_iter().find_map(|weights| {
            let room = available.checked_sub(OWN_MEMORY)?.checked_sub(weights)?;
            (room > 0).then_some(room)
        });
        let Some(room) = room.filter(|_| self.bytes_per_token > 0) else { return Vec::new() };
        let (ctx_size, parallel) = (u64::from(self.ctx_size), u64::from(self.parallel));
        let tokens = room / self.bytes_per_token;
        let mut flags = Vec::new();
        let context = tokens / parallel / CONTEXT_STEP * CONTEXT_STEP;
        if (LEAST_CONTEXT..ctx_size).contains(&context) {
            flags.push(format!("--ctx-size {context}"));
        }
        let requests = tokens.checked_div(ctx_size).unwrap_or(0);
        if (1..parallel).contains(&requests) {
            flags.push(format!("--parallel {requests}"));
        }
        // 17 bits instead of 32 for a key and a value.
        if self.is_half && self.kv / 32 * 17 <= room {
            flags.push("--cache-type-k q8_0 --cache-type-v q8_0".to_owned());
        }
        flags
    }
}

impl Shortage {
    /// What to do about it.
    pub(crate) fn advice(&self) -> String {
        match self.flags.as_slice() {
            [] => "use a smaller model or quantization, or stop other programs".to_owned(),
            flags => format!("use {}", flags.join(", or ")),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { need, available, .. } = self;
        write!(formatter, "{need}, but only {} are available; {}", show_bytes(*available), self.advice())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use poncho_engine::backend::{ContextOptions, KvLayout};
    use poncho_testkit::{ModelKind, model_path};

    use super::*;

    const GIB: u64 = 1 << 30;

    /// A tiny model for requests of this many tokens, with a file that claims to be larger than it is.
    fn config(folder: &tempfile::TempDir, kind: ModelKind, ctx_size: u32, parallel: u32, weights: u64) -> ModelConfig {
        let path = folder.path().join("model.gguf");
        std::fs::copy(model_path(kind), &path).unwrap();
        let length = path.metadata().unwrap().len().max(weights);
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let context = ContextOptions {
            n_ctx: ctx_size,
            n_seq_max: parallel,
            n_cells: Some(ctx_size.saturating_mul(parallel)),
            kv: KvLayout::Split,
            ..ContextOptions::default()
        };
        ModelConfig { context, ..ModelConfig::new("small", &path) }
    }

    /// Everyday use 13: too little memory is found before llama.cpp allocates, and the values in the message fit.
    #[test]
    fn a_context_that_does_not_fit_names_flags_that_do() {
        let folder = tempfile::tempdir().unwrap();
        let large = config(&folder, ModelKind::Attention, 1 << 24, 4, 0);
        let demand = Demand::of(std::slice::from_ref(&large));
        let per_token = sizing(&large).bytes_per_token;
        assert_eq!(demand.kv, per_token * (1 << 26));
        let room = OWN_MEMORY + demand.weights + demand.kv / 3;
        let Fit::TooLittle(shortage) = demand.fit(room) else { panic!("{:?}", demand.fit(room)) };
        let said = shortage.to_string();
        assert!(said.contains("small needs") && said.contains("4 x 16777216 tokens"), "{said}");
        let flag = |name: &str| {
            let found = shortage.flags.iter().find_map(|flag| flag.strip_prefix(name)).unwrap();
            found.trim().parse::<u32>().unwrap()
        };
        for (ctx_size, parallel) in [(flag("--ctx-size"), 4), (1 << 24, flag("--parallel"))] {
            let smaller = config(&folder, ModelKind::Attention, ctx_size, parallel, 0);
            assert_eq!(Demand::of(&[smaller]).fit(room), Fit::Fits, "{ctx_size} x {parallel}");
        }
        assert!(!said.contains("q8_0"), "17 of 32 bits do not fit into a third: {said}");
        let half = OWN_MEMORY + demand.weights + demand.kv / 16 * 10;
        let Fit::TooLittle(shortage) = demand.fit(half) else { panic!("{:?}", demand.fit(half)) };
        assert!(shortage.to_string().contains("--cache-type-k q8_0 --cache-type-v q8_0"), "{shortage}");
    }

    #[test]
    fn weights_that_are_mapped_may_be_larger_than_memory_and_held_ones_may_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut large = config(&folder, ModelKind::Attention, 512, 1, 100 * GIB);
        let mapped = Demand::of(std::slice::from_ref(&large)).fit(8 * GIB);
        let Fit::Tight(shortage) = mapped else { panic!("{mapped:?}") };
        assert!(shortage.to_string().contains("100.0 GiB for weights"), "{shortage}");
        large.model.mmap = false;
        let Fit::TooLittle(shortage) = Demand::of(&[large]).fit(8 * GIB) else { panic!("it does not fit") };
        assert!(shortage.to_string().contains("smaller model"), "{shortage}");
    }

    #[test]
    fn an_upper_bound_is_a_warning_and_never_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let windowed = Demand::of(&[config(&folder, ModelKind::Window, 1 << 24, 4, 0)]);
        let fit = windowed.fit(OWN_MEMORY + windowed.kv / 2);
        assert!(matches!(&fit, Fit::Tight(shortage) if shortage.to_string().contains("at most")), "{fit:?}");
    }

    #[test]
    fn what_fits_is_quiet_and_several_models_count_together() {
        let folder = tempfile::tempdir().unwrap();
        let one = config(&folder, ModelKind::Attention, 4096, 2, 0);
        let alone = Demand::of(std::slice::from_ref(&one));
        assert_eq!(alone.fit(alone.total()), Fit::Fits);
        let both = Demand::of(&[one.clone(), one]);
        assert_eq!((both.kv, both.weights), (alone.kv * 2, alone.weights * 2));
        assert!(matches!(both.fit(alone.total()), Fit::TooLittle(_) | Fit::Tight(_)));
        assert!(alone.sum().contains("2 x "), "{}", alone.sum());
    }

    #[test]
    fn layers_on_a_gpu_need_its_memory() {
        let gpu = Device { name: "G0".into(), description: String::new(), kind: DeviceKind::Gpu, free: 7, total: 8 };
        let cpu = Device { kind: DeviceKind::Cpu, free: 9, ..gpu.clone() };
        let mut config = ModelConfig::new("m", "m");
        assert_eq!(available_for(&config, &[cpu.clone(), gpu.clone()]), Some(7));
        config.model.gpu_layers = Some(3);
        assert_eq!(available_for(&config, &[cpu.clone(), gpu.clone()]), None);
        config.model.gpu_layers = Some(0);
        // The machine's memory is in use by others meanwhile.
        let (found, now) = (available_for(&config, &[cpu, gpu]), available());
        assert!(found.zip(now).is_none_or(|(found, now)| found.abs_diff(now) < now / 2), "{found:?} {now:?}");
        assert_eq!(found.is_some(), now.is_some());
    }
}
