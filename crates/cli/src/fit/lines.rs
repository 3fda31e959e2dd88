//! A plan for people and for scripts: each choice in one line, with the flag that changes it.
//!
//! Text only. Choices that the user made are not repeated.

use poncho_engine::fit::{GOOD_CONTEXT, MOST_CONTEXT, Origin, Plan, Step, Use, WANTED_PARALLEL};
use poncho_server::{PlanLine, PlannedMemory, ShownPlan};
use poncho_terminal::show_bytes;
use serde_json::{Value, json};

use super::Fitted;
use crate::serving::tiers::Quotas;

/// The choices for one model that the planner made, a line each; warnings come last.
pub(crate) fn of_model(fitted: &Fitted) -> Vec<String> {
    let chosen = choices(fitted).into_iter().filter(|line| !line.is_set);
    let mut lines: Vec<String> = chosen
        .map(|PlanLine { text, flags, .. }| match &flags[..] {
            [] => format!("fit:     {text}"),
            flags => format!("fit:     {text} ({})", flags.join(", ")),
        })
        .collect();
    if let Some(warning) = warning(fitted) {
        lines.push(format!("warning: {warning}"));
    }
    lines
}

/// The plan of a model for the console: all choices, also those of the user, and its memory by device.
pub(crate) fn shown(fitted: &Fitted, devices: &[String]) -> ShownPlan {
    let Plan { needs, .. } = &fitted.plan;
    let memory = |(name, need): (&str, &Use)| PlannedMemory {
        device: name.to_owned(),
        weights_bytes: need.weights,
        context_bytes: need.context,
        buffer_bytes: need.compute,
    };
    let on_devices = devices.iter().map(String::as_str).zip(&needs.devices);
    let warning = warning(fitted).map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    ShownPlan {
        lines: choices(fitted),
        warning,
        memory: std::iter::once(("host", &needs.host)).chain(on_devices).map(memory).collect(),
    }
}

/// All choices for a model.
fn choices(fitted: &Fitted) -> Vec<PlanLine> {
    let (choice, given) = (&fitted.plan.choice, &fitted.given);
    let mut lines = Vec::new();
    let mut add = |is_set: bool, text: String, flags: &[&'static str]| {
        let text = if is_set { format!("{text}, as set") } else { text };
        lines.push(PlanLine { text, flags: flags.to_vec(), is_set });
    };
    if given.n_ctx.is_some() {
        add(true, format!("context {} tokens", choice.n_ctx), &["--ctx-size"]);
    } else {
        let wanted = fitted.trained.unwrap_or(GOOD_CONTEXT).min(MOST_CONTEXT);
        let why = match (fitted.trained, choice.n_ctx < wanted) {
            (_, true) => format!("; {wanted} do not fit"),
            (Some(trained), false) if trained > choice.n_ctx => format!(" of {trained} trained ones"),
            (Some(_), false) => ", as trained".to_owned(),
            (None, false) => String::new(),
        };
        add(false, format!("context {} tokens{why}", choice.n_ctx), &["--ctx-size"]);
    }
    let is_set = given.parallel.is_some();
    let is_less = choice.parallel < WANTED_PARALLEL && !is_set;
    let why = if is_less { format!("; {WANTED_PARALLEL} do not fit") } else { String::new() };
    let noun = if choice.parallel == 1 { "request" } else { "requests" };
    add(is_set, format!("{} {noun} at once{why}", choice.parallel), &["--parallel"]);
    let (key, value) = (choice.type_k.name(), choice.type_v.name());
    let kind = if key == value { key.to_owned() } else { format!("{key} keys, {value} values") };
    let is_set = given.type_k.is_some() && given.type_v.is_some();
    add(is_set, format!("KV cache in {kind}"), &["--cache-type-k", "--cache-type-v"]);
    if !fitted.plan.needs.devices.is_empty() {
        let is_set = given.gpu_layers.is_some();
        let layers = match choice.gpu_layers {
            None => "all layers on the GPU".to_owned(),
            Some(layers) if is_set => format!("{layers} of {} layers on the GPU", fitted.layers),
            Some(layers) => format!("{layers} of {} layers on the GPU; more do not fit", fitted.layers),
        };
        add(is_set, layers, &["--gpu-layers"]);
        if choice.n_cpu_moe > 0 {
            let layers = choice.n_cpu_moe.min(fitted.layers);
            add(given.n_cpu_moe.is_some(), format!("experts of {layers} layers on the CPU"), &["--n-cpu-moe"]);
        }
    }
    if fitted.origin == Origin::Kept {
        add(false, "as at an earlier start, so that its cached states are found".to_owned(), &[]);
    }
    lines
}

/// The sizes of the cache's tiers, a line each.
pub(crate) fn of_tiers(quotas: Quotas, given: (Option<u64>, Option<u64>)) -> Vec<String> {
    let mut lines = Vec::new();
    if given.0.is_none() {
        lines.push(format!("fit:     {} of memory for cached states (--cache-ram)", show_bytes(quotas.ram)));
    }
    if given.1.is_none() {
        lines.push(format!("fit:     {} of disk for cached states (--cache-size)", show_bytes(quotas.disk)));
    }
    lines
}

fn warning(fitted: &Fitted) -> Option<String> {
    let n_ctx = fitted.plan.choice.n_ctx;
    match fitted.plan.step {
        Step::WeightsFromDisk => Some(
            "the weights do not stay in memory and are read from the disk again and\n         again; use a smaller model or \
             quantization"
                .to_owned(),
        ),
        Step::LittleContext if fitted.given.n_ctx.is_none() => Some(format!(
            "{n_ctx} tokens are too few for most agents; use a smaller model or\n         quantization, or stop other programs"
        )),
        _ => None,
    }
}

/// The plan as JSON.
pub(crate) fn as_json(name: &str, fitted: &Fitted, quotas: Quotas) -> Value {
    let Fitted { plan, origin, trained, layers, given: _ } = fitted;
    json!({
        "model": name,
        "fits": plan.step < Step::WeightsFromDisk,
        "step": plan.step,
        "origin": origin,
        "trained_context": trained,
        "layers": layers,
        "ctx_size": plan.choice.n_ctx,
        "parallel": plan.choice.parallel,
        "cache_type_k": plan.choice.type_k.name(),
        "cache_type_v": plan.choice.type_v.name(),
        "gpu_layers": plan.choice.gpu_layers,
        "n_cpu_moe": plan.choice.n_cpu_moe,
        "cache_ram": quotas.ram,
        "cache_size": quotas.disk,
        "needs": plan.needs,
    })
}

#[cfg(test)]
mod tests {
    use poncho_engine::backend::KvType;
    use poncho_engine::fit::{Choice, Given, Needs};

    use super::*;

    fn fitted(n_ctx: u32, parallel: u32, step: Step) -> Fitted {
        let choice =
            Choice { n_ctx, parallel, type_k: KvType::F16, type_v: KvType::F16, n_cpu_moe: 0, gpu_layers: None };
        let plan = Plan { choice, needs: Needs::default(), step };
        Fitted { plan, origin: Origin::New, given: Given::default(), trained: Some(131_072), layers: 32 }
    }

    #[test]
    fn each_choice_is_a_line_with_its_flag() {
        let lines = of_model(&fitted(131_072, 2, Step::FewerAtOnce));
        let expected = [
            "fit:     context 131072 tokens, as trained (--ctx-size)",
            "fit:     2 requests at once; 4 do not fit (--parallel)",
            "fit:     KV cache in f16 (--cache-type-k, --cache-type-v)",
        ];
        assert_eq!(lines, expected);
        let given = Given { n_ctx: Some(8192), parallel: Some(2), ..Given::default() };
        let small = Fitted { given, ..fitted(8192, 2, Step::Wanted) };
        assert_eq!(of_model(&small).len(), 1, "given values are not repeated");
        let tiers = of_tiers(Quotas { ram: 3 << 30, disk: 5 << 30 }, (None, Some(1)));
        assert_eq!(tiers, ["fit:     3.0 GiB of memory for cached states (--cache-ram)"]);
    }

    #[test]
    fn the_console_also_lists_what_the_user_set_and_the_memory_by_device() {
        let mut fitted = fitted(8192, 2, Step::LittleContext);
        fitted.plan.needs.host = Use { weights: 1, context: 2, compute: 3 };
        fitted.plan.needs.devices.push(Use { weights: 4, ..Use::default() });
        fitted.given = Given { n_ctx: Some(8192), ..Given::default() };
        let plan = shown(&fitted, &["CUDA0".to_owned()]);
        let line = |text: &str, flag, is_set| PlanLine { text: text.to_owned(), flags: vec![flag], is_set };
        assert_eq!(plan.lines[0], line("context 8192 tokens, as set", "--ctx-size", true));
        assert_eq!(plan.lines[1], line("2 requests at once; 4 do not fit", "--parallel", false));
        assert_eq!(
            plan.memory.iter().map(|one| (&one.device[..], one.weights_bytes)).collect::<Vec<_>>(),
            [("host", 1), ("CUDA0", 4)]
        );
        assert_eq!(plan.warning, None);
        fitted.given = Given::default();
        let warned = shown(&fitted, &[]).warning.unwrap();
        assert!(warned.contains("too few for most agents") && !warned.contains('\n'), "{warned}");
    }

    #[test]
    fn devices_have_lines_of_their_own() {
        let mut partly = fitted(32_768, 1, Step::LayersOnCpu);
        partly.plan.needs.devices.push(Use::default());
        partly.plan.choice.gpu_layers = Some(20);
        partly.plan.choice.n_cpu_moe = 99;
        let text = of_model(&partly).join("\n");
        assert!(text.contains("context 32768 tokens; 131072 do not fit (--ctx-size)"), "{text}");
        assert!(text.contains("1 request at once; 4 do not fit"), "{text}");
        assert!(text.contains("20 of 32 layers on the GPU; more do not fit (--gpu-layers)"), "{text}");
        assert!(text.contains("experts of 32 layers on the CPU (--n-cpu-moe)"), "{text}");
    }

    #[test]
    fn little_context_is_a_warning_and_lines_fit_into_a_terminal() {
        let text = of_model(&fitted(4096, 1, Step::LittleContext)).join("\n");
        assert!(text.contains("warning: 4096 tokens are too few"), "{text}");
        let mut disk = fitted(16_384, 1, Step::WeightsFromDisk);
        disk.origin = Origin::Kept;
        let more = of_model(&disk).join("\n");
        assert!(more.contains("warning: the weights do not stay in memory"), "{more}");
        assert!(text.lines().chain(more.lines()).all(|line| line.len() <= 80), "{text}\n{more}");
        let given = Given { n_ctx: Some(4096), ..Given::default() };
        let asked = Fitted { given, ..fitted(4096, 1, Step::LittleContext) };
        assert!(!of_model(&asked).join("\n").contains("warning"));
    }
}
