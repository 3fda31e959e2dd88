//! `poncho fit`: the settings that fit a model on this machine, without loading it.
//!
//! The same choices as those of `poncho serve`, printed for people or as JSON. Exits with 1 if nothing fits. It writes
//! nothing: only a start keeps its plan.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use clap::FromArgMatches;
use poncho_engine::fit::{Plan, Step, Use};
use poncho_terminal::{Outcome, parse_bytes, print_json, printable_line, show_bytes};

use super::{Earlier, Fitted, Fitting, lines};
use crate::serving::devices;
use crate::serving::models::{Asked, Extras, ServedModels};
use crate::serving::shape::{ModelShape, shapes};
use crate::settings::Resolved;
use crate::settings::args::ServeArgs;
use crate::settings::cache_folder::cache_folder;

#[derive(Debug, clap::Args)]
pub(crate) struct FitArgs {
    /// Print JSON on standard output and nothing else
    #[arg(long)]
    json: bool,

    /// Ignore the plan that was kept when the model was served
    #[arg(long)]
    again: bool,

    /// Plan for a machine with this much free memory
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    with_memory: Option<u64>,

    /// Plan for a machine with a GPU that has this much free memory; may be repeated
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    with_gpu: Vec<u64>,
}

pub(crate) fn run(args: &FitArgs, resolved: &Resolved, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let settings = ServeArgs::from_arg_matches(&resolved.matches)?;
    let folder = cache_folder(settings.cache_dir.as_deref())?;
    let fitting =
        Fitting::new(&settings, ModelShape::of(&settings, None), Some(&folder), &devices::look(&settings.devices));
    let fitting = Arc::new(
        fitting.with_models(shapes(&resolved.models, None)).read_only().imagined(args.with_memory, &args.with_gpu),
    );
    let models_dir = settings.models_dir.as_deref();
    let asked =
        Asked { models: settings.models(), name: settings.name.as_deref(), models_dir, extras: Extras::default() };
    let models = ServedModels::find(asked, &fitting.configs())?;
    let name = models.named.first().context("no model is named")?;
    let is_elsewhere = args.with_memory.is_some() || !args.with_gpu.is_empty();
    let earlier = if args.again || is_elsewhere { Earlier::Forgotten } else { Earlier::Kept };
    let (path, loading) = models.file(name)?;
    let fitted = fitting.plan(&path, name, loading, earlier);
    let quotas = fitting.quotas();
    if args.json {
        print_json(out, &lines::as_json(name, &fitted, quotas))?;
    } else {
        writeln!(out, "{}", printable_line(name))?;
        let tiers = lines::of_tiers(quotas, (settings.cache_ram, settings.cache_size));
        for line in lines::of_model(&fitted).into_iter().chain(tiers) {
            writeln!(out, "{line}")?;
        }
        for line in needs(&fitted, &fitting.device_names()) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(if fitted.plan.step == Step::DoesNotFit { Outcome::Bad } else { Outcome::Good })
}

/// What the plan needs, a line for each memory.
fn needs(fitted: &Fitted, devices: &[String]) -> Vec<String> {
    let Plan { needs, step, .. } = &fitted.plan;
    let line = |name: &str, need: &Use| {
        let [weights, context, compute] = [need.weights, need.context, need.compute].map(show_bytes);
        format!("memory:  {name}: {weights} weights, {context} KV, {compute} buffers")
    };
    let on_devices = devices.iter().zip(&needs.devices).map(|(name, need)| line(name, need));
    let mut lines: Vec<String> = std::iter::once(line("host", &needs.host)).chain(on_devices).collect();
    if *step == Step::DoesNotFit {
        lines.push("does not fit; use a smaller model or quantization, or stop other programs".to_owned());
    }
    lines
}
