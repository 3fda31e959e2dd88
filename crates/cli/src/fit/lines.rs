//! A plan for people and for scripts: each choice in one line, with the flag that changes it.
//!
//! Text only. Choices that the user made are not repeated.

use poncho_engine::fit::{GOOD_CONTEXT, Given, MOST_CONTEXT, Origin, Step, WANTED_PARALLEL};
use poncho_terminal::show_bytes;
use serde_json::{Value, json};

use super::Fitted;
use crate::serving::tiers::Quotas;

/// The choices for one model, a line each; warnings come last.
pub(crate) fn of_model(fitted: &Fitted, given: &Given) -> Vec<String> {
    let choice = &fitted.plan.choice;
    let mut lines = Vec::new();
    if given.n_ctx.is_none() {
        let wanted = fitted.trained.unwrap_or(GOOD_CONTEXT).min(MOST_CONTEXT);
        let why = match (fitted.trained, choice.n_ctx < wanted) {
            (_, true) => format!("; {wanted} do not fit"),
            (Some(trained), false) if trained > choice.n_ctx => format!(" of {trained} trained ones"),
            (Some(_), false) => ", as trained".to_owned(),
            (None, false) => String::new(),
        };
        lines.push(format!("context {} tokens{why} (--ctx-size)", choice.n_ctx));
    }
    if given.parallel.is_none() {
        let why =
            if choice.parallel < WANTED_PARALLEL { format!("; {WANTED_PARALLEL} do not fit") } else { String::new() };
        let noun = if choice.parallel == 1 { "request" } else { "requests" };
        lines.push(format!("{} {noun} at once{why} (--parallel)", choice.parallel));
    }
    if given.type_k.is_none() || given.type_v.is_none() {
        let (key, value) = (choice.type_k.name(), choice.type_v.name());
        let kind = if key == value { key.to_owned() } else { format!("{key} keys, {value} values") };
        lines.push(format!("KV cache in {kind} (--cache-type-k, --cache-type-v)"));
    }
    if !fitted.plan.needs.devices.is_empty() {
        if given.gpu_layers.is_none() {
            let layers = match choice.gpu_layers {
                None => "all layers on the GPU".to_owned(),
                Some(layers) => format!("{layers} of {} layers on the GPU; more do not fit", fitted.layers),
            };
            lines.push(format!("{layers} (--gpu-layers)"));
        }
        if given.n_cpu_moe.is_none() && choice.n_cpu_moe > 0 {
            lines.push(format!("experts of {} layers on the CPU (--n-cpu-moe)", choice.n_cpu_moe.min(fitted.layers)));
        }
    }
    if fitted.origin == Origin::Kept {
        lines.push("as at an earlier start, so that its cached states are found".to_owned());
    }
    let mut lines: Vec<String> = lines.into_iter().map(|line| format!("fit:     {line}")).collect();
    if let Some(warning) = warning(fitted, given) {
        lines.push(format!("warning: {warning}"));
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

fn warning(fitted: &Fitted, given: &Given) -> Option<String> {
    let n_ctx = fitted.plan.choice.n_ctx;
    match fitted.plan.step {
        Step::WeightsFromDisk => Some(
            "the weights do not stay in memory and are read from the disk again and\n         again; use a smaller model or \
             quantization"
                .to_owned(),
        ),
        Step::LittleContext if given.n_ctx.is_none() => Some(format!(
            "{n_ctx} tokens are too few for most agents; use a smaller model or\n         quantization, or stop other programs"
        )),
        _ => None,
    }
}

/// The plan as JSON.
pub(crate) fn as_json(name: &str, fitted: &Fitted, quotas: Quotas) -> Value {
    let Fitted { plan, origin, trained, layers } = fitted;
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
    use poncho_engine::fit::{Choice, Needs, Plan, Use};

    use super::*;

    fn fitted(n_ctx: u32, parallel: u32, step: Step) -> Fitted {
        let choice =
            Choice { n_ctx, parallel, type_k: KvType::F16, type_v: KvType::F16, n_cpu_moe: 0, gpu_layers: None };
        let plan = Plan { choice, needs: Needs::default(), step };
        Fitted { plan, origin: Origin::New, trained: Some(131_072), layers: 32 }
    }

    #[test]
    fn each_choice_is_a_line_with_its_flag() {
        let lines = of_model(&fitted(131_072, 2, Step::FewerAtOnce), &Given::default());
        let expected = [
            "fit:     context 131072 tokens, as trained (--ctx-size)",
            "fit:     2 requests at once; 4 do not fit (--parallel)",
            "fit:     KV cache in f16 (--cache-type-k, --cache-type-v)",
        ];
        assert_eq!(lines, expected);
        let given = Given { n_ctx: Some(8192), parallel: Some(2), ..Given::default() };
        assert_eq!(of_model(&fitted(8192, 2, Step::Wanted), &given).len(), 1, "given values are not repeated");
        let tiers = of_tiers(Quotas { ram: 3 << 30, disk: 5 << 30 }, (None, Some(1)));
        assert_eq!(tiers, ["fit:     3.0 GiB of memory for cached states (--cache-ram)"]);
    }

    #[test]
    fn devices_have_lines_of_their_own() {
        let mut partly = fitted(32_768, 1, Step::LayersOnCpu);
        partly.plan.needs.devices.push(Use::default());
        partly.plan.choice.gpu_layers = Some(20);
        partly.plan.choice.n_cpu_moe = 99;
        let text = of_model(&partly, &Given::default()).join("\n");
        assert!(text.contains("context 32768 tokens; 131072 do not fit (--ctx-size)"), "{text}");
        assert!(text.contains("1 request at once; 4 do not fit"), "{text}");
        assert!(text.contains("20 of 32 layers on the GPU; more do not fit (--gpu-layers)"), "{text}");
        assert!(text.contains("experts of 32 layers on the CPU (--n-cpu-moe)"), "{text}");
    }

    #[test]
    fn little_context_is_a_warning_and_lines_fit_into_a_terminal() {
        let text = of_model(&fitted(4096, 1, Step::LittleContext), &Given::default()).join("\n");
        assert!(text.contains("warning: 4096 tokens are too few"), "{text}");
        let mut disk = fitted(16_384, 1, Step::WeightsFromDisk);
        disk.origin = Origin::Kept;
        let more = of_model(&disk, &Given::default()).join("\n");
        assert!(more.contains("warning: the weights do not stay in memory"), "{more}");
        assert!(text.lines().chain(more.lines()).all(|line| line.len() <= 80), "{text}\n{more}");
        let given = Given { n_ctx: Some(4096), ..Given::default() };
        assert!(!of_model(&fitted(4096, 1, Step::LittleContext), &given).join("\n").contains("warning"));
    }
}
