//! The start report of `poncho serve`: context, memory, device, and what the tiers of the cache hold.
//!
//! Text only, part of the greeting. The figures come from the head of the model file and from the settings.

use std::fmt::Write as _;
use std::path::Path;

use poncho_cache::CacheConfig;
use poncho_engine::backend::RopeScaling;
use poncho_engine::backend::llama::{Device, DeviceKind};
use poncho_engine::{ModelConfig, Sizing};
use poncho_terminal::{printable_line, show_bytes};

use crate::serving::devices::Looked;
use crate::serving::disk::free_bytes;
use crate::serving::memory::{Demand, Fit};

/// The facts of the report.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    /// The models that are loaded, the default one first.
    pub(crate) models: &'a [(ModelConfig, Sizing)],
    /// Memory where the models are kept, before they are loaded; `None` if it is not known.
    pub(crate) available: Option<u64>,
    pub(crate) looked: &'a Looked,
    pub(crate) cache: &'a CacheConfig,
}

impl Report<'_> {
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (config, sizing) in self.models {
            let _ = writeln!(text, "context: {}", context(config, sizing));
            if let Some(warning) = beyond_training(config, sizing) {
                let _ = writeln!(text, "warning: {warning}");
            }
        }
        for (config, sizing) in self.models {
            let name = if self.models.len() > 1 { format!("{}: ", printable_line(&config.id)) } else { String::new() };
            let _ = writeln!(text, "memory:  {name}{}", Demand::of_sized(&[(config, *sizing)]).sum());
        }
        if let Some(available) = self.available {
            let models: Vec<_> = self.models.iter().map(|(config, sizing)| (config, *sizing)).collect();
            let _ = writeln!(text, "         available before loading: {}", show_bytes(available));
            if let Fit::Tight(shortage) = Demand::of_sized(&models).fit(available) {
                let _ = writeln!(text, "warning: {shortage}; otherwise replies may be slow");
            }
        }
        if let Some((config, sizing)) = self.models.first() {
            let _ = writeln!(text, "device:  {}", device(config, &self.looked.devices));
            for unused in &self.looked.unused {
                let (what, why) = (printable_line(&unused.what), printable_line(&unused.why));
                let _ = writeln!(text, "         not used: {what}: {why}");
            }
            let _ = writeln!(text, "{}", tiers(self.cache, sizing));
        }
        text
    }
}

/// The chosen context beside the one of the model.
fn context(config: &ModelConfig, sizing: &Sizing) -> String {
    let (tokens, requests) = (config.context.n_ctx, config.context.n_seq_max);
    let at_once = match requests {
        1 => "1 request at a time".to_owned(),
        _ => format!("each of {requests} concurrent requests"),
    };
    let name = printable_line(&config.id);
    let trained = match sizing.trained_context {
        Some(trained) => format!("{name} was trained for {trained}"),
        None => format!("the file of {name} does not state its trained context"),
    };
    format!("{tokens} tokens for {at_once}; {trained}")
}

/// The warning about a context that is longer than the trained one, unless positions are scaled for it.
fn beyond_training(config: &ModelConfig, sizing: &Sizing) -> Option<String> {
    let trained = sizing.trained_context?;
    let context = &config.context;
    let is_scaled = matches!(context.rope_scaling, RopeScaling::Linear | RopeScaling::Yarn | RopeScaling::LongRope)
        || context.rope_freq_scale.is_some()
        || context.rope_freq_base.is_some();
    (u64::from(context.n_ctx) > trained && !is_scaled).then(|| {
        format!(
            "{} was trained for {trained} tokens, and replies get worse beyond them; use --ctx-size {trained}, or extend \
             the context with --rope-scaling yarn",
            printable_line(&config.id)
        )
    })
}

fn device(config: &ModelConfig, devices: &[Device]) -> String {
    let named = |kind: DeviceKind| {
        let found = devices.iter().filter(|device| device.kind == kind);
        let shown = found.map(|device| match device.description.as_str() {
            "" => device.name.clone(),
            description if description == device.name => device.name.clone(),
            description => format!("{} ({})", device.name, printable_line(description)),
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    let (cpu, gpus) = (named(DeviceKind::Cpu), named(DeviceKind::Gpu));
    match config.model.gpu_layers {
        _ if devices.is_empty() => "unknown".to_owned(),
        _ if gpus.is_empty() => cpu,
        Some(0) => format!("{cpu}; no layers on {gpus}"),
        Some(layers) => format!("{layers} layers on {gpus}, the others on {cpu}"),
        None => format!("all layers on {gpus}"),
    }
}

/// The folder of the cache, and the tokens that each tier holds.
fn tiers(cache: &CacheConfig, sizing: &Sizing) -> String {
    let held = |name: &str, quota: u64, folder: Option<&Path>| {
        let free = folder.and_then(|folder| free_bytes(folder.ancestors().find(|folder| folder.is_dir())?));
        let usable = free.map_or(quota, |free| free.min(quota));
        let about = if sizing.is_exact { "about" } else { "at least" };
        match usable.checked_div(sizing.bytes_per_token) {
            Some(tokens) => format!("{name} {} ({about} {} tokens)", show_bytes(usable), rounded(tokens)),
            None => format!("{name} {}", show_bytes(usable)),
        }
    };
    let mut tiers = Vec::new();
    if cache.ram_quota > 0 {
        tiers.push(held("RAM", cache.ram_quota, None));
    }
    if let Some(files) = &cache.ram_file {
        tiers.push(held("files in memory", files.quota, Some(&files.folder)));
    }
    if let Some(disk) = &cache.disk {
        tiers.push(held("disk", disk.quota, Some(&disk.folder)));
    }
    let folder = cache.disk.as_ref().map(|disk| format!("{}\n         ", disk.folder.display())).unwrap_or_default();
    format!("cache:   {folder}{}", tiers.join(", "))
}

/// Two significant digits, with separators: an estimate needs no more.
fn rounded(number: u64) -> String {
    let unit = 10_u64.pow(number.checked_ilog10().unwrap_or(0).saturating_sub(1));
    let digits = (number / unit * unit).to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use poncho_api::Footprint;
    use poncho_engine::backend::ContextOptions;

    use super::*;

    fn model(ctx_size: u32, trained: u64) -> (ModelConfig, Sizing) {
        let context = ContextOptions { n_ctx: ctx_size, n_seq_max: 4, ..ContextOptions::default() };
        let sizing = Sizing {
            footprint: Footprint { weights: 100 << 20, cells: 4 * (180 << 20) },
            bytes_per_token: 23_040,
            is_exact: true,
            trained_context: Some(trained),
        };
        (ModelConfig { context, ..ModelConfig::new("small", "small.gguf") }, sizing)
    }

    fn report(models: &[(ModelConfig, Sizing)], available: u64) -> String {
        let cpu = Device { name: "CPU".into(), description: "A chip".into(), kind: DeviceKind::Cpu, free: 0, total: 0 };
        let looked = Looked { devices: vec![cpu], ..Looked::default() };
        let cache = CacheConfig::in_memory(512 << 20);
        Report { models, available: Some(available), looked: &looked, cache: &cache }.text()
    }

    /// Everyday use 13: the start names all that a person needs to judge the settings.
    #[test]
    fn the_report_names_context_memory_device_and_tiers() {
        let text = report(&[model(8192, 8192)], 16 << 30);
        for part in [
            "context: 8192 tokens for each of 4 concurrent requests; small was trained for 8192\n",
            "memory:  100.0 MiB weights + 4 x 180.0 MiB KV = 820.0 MiB\n",
            "available before loading: 16.0 GiB\n",
            "device:  CPU (A chip)\n",
            "RAM 512.0 MiB (about 23,000 tokens)",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("warning"), "{text}");
    }

    #[test]
    fn a_context_above_the_trained_one_is_a_warning_unless_positions_are_scaled() {
        let text = report(&[model(8192, 2048)], 16 << 30);
        assert!(text.contains("warning: small was trained for 2048 tokens"), "{text}");
        assert!(text.contains("--ctx-size 2048"), "{text}");
        let (mut config, sizing) = model(8192, 2048);
        config.context.rope_scaling = RopeScaling::Yarn;
        assert!(!report(&[(config, sizing)], 16 << 30).contains("warning"));
    }

    #[test]
    fn weights_that_do_not_stay_in_memory_are_a_warning() {
        let (config, mut sizing) = model(64, 64);
        sizing.footprint.weights = 20 << 30;
        let text = report(&[(config, sizing)], 8 << 30);
        assert!(text.contains("warning: small needs") && text.contains("only 8.0 GiB are available"), "{text}");
    }

    #[test]
    fn tokens_are_rounded_for_people() {
        for (number, shown) in [(0, "0"), (7, "7"), (999, "990"), (23_301, "23,000"), (1_234_567, "1,200,000")] {
            assert_eq!(rounded(number), shown);
        }
    }
}
