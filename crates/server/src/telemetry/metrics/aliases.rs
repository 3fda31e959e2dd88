//! Metrics under the names of vLLM, for routers that read them from there.
//!
//! Written at the end of the page. The endpoint picker of the Kubernetes inference gateway and of llm-d reads these names
//! by default. The meanings are those of its protocol; the values are the ones that the page has under our own names.

use std::sync::Arc;

use poncho_api::{NodeModel, RequestStage};

use super::page::{Kind, Page};

/// See the module.
pub(super) fn write(page: &mut Page, models: &[Arc<dyn NodeModel>]) {
    type Read = fn(&dyn NodeModel) -> f64;
    let numbers: [(&str, &str, Read); 3] = [
        ("num_requests_waiting", "Requests that wait for a sequence, as vLLM names it.", |model| {
            count(model.status().pending)
        }),
        ("num_requests_running", "Requests that run, as vLLM names it.", |model| count(model.status().active)),
        (
            "kv_cache_usage_perc",
            "Share of the context that running requests fill, from 0 to 1, as vLLM names it.",
            usage,
        ),
    ];
    for (name, help, read) in numbers {
        let name = format!("vllm:{name}");
        page.head(&name, Kind::Gauge, help);
        for model in models {
            page.sample(&name, &[("model_name", model.report().id.as_str())], read(model.as_ref()));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of requests or tokens")]
fn count(number: usize) -> f64 {
    number as f64
}

/// The tokens of running requests, as a share of what all sequences hold.
fn usage(model: &dyn NodeModel) -> f64 {
    let limits = &model.report().limits;
    let requests = model.requests();
    let running = requests.iter().filter(|request| request.progress.stage != RequestStage::Queued);
    let tokens: usize = running.map(|one| one.progress.processed_tokens + one.progress.generated_tokens).sum();
    let room = limits.context.saturating_mul(limits.sequences).max(1);
    (count(tokens) / count(room)).min(1.0)
}
