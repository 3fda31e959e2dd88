//! `GET /api/system` and `GET /api/savings`: models with their plans, devices, nodes, the settings with their sources, the
//! last warnings, and what the cache saved.
//!
//! Both cover all keys, so with several keys only an admin reads them. Errors have OpenAI's shape.

use axum::Extension;
use axum::extract::State;
use poncho_api::{HygieneRule, PeerReport, Phase, StatusReport};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::config::{ShownDevice, ShownPlan, ShownSetting, UnusedDevice};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::owner::Owner;
use crate::telemetry::drafts::DraftSums;

/// The server at a glance.
pub(crate) async fn system(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<Value>, ApiError> {
    app.keys.check_sees_all(owner)?;
    let node = app.models.node();
    let mut models = Vec::new();
    for model in node.models() {
        let (report, footprint) = (model.report(), model.footprint().await);
        models.push(SystemModel {
            id: report.id.clone(),
            architecture: report.info.architecture.clone(),
            parameters: report.info.n_params,
            quantisation: report.quantisation.clone(),
            context: report.limits.context,
            weights_bytes: footprint.weights,
            context_bytes: footprint.cells,
            plan: app.config.plans.as_ref().and_then(|plan| plan(&report.path, &report.id)),
            status: ModelStatus::from(&model.status()),
        });
    }
    let machine = &app.config.machine;
    Ok(Json(json!(System {
        version: env!("CARGO_PKG_VERSION"),
        in_flight: app.life.count(),
        models,
        devices: machine.devices.clone(),
        unused_devices: machine.unused.clone(),
        nodes: node.peers(),
        settings: app.config.settings.clone(),
        warnings: app.config.recent_warnings.all(),
        hygiene: node.hygiene(),
    })))
}

/// The answer of `GET /api/system`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct System {
    version: &'static str,
    /// Requests that have not ended.
    in_flight: usize,
    models: Vec<SystemModel>,
    devices: Vec<ShownDevice>,
    unused_devices: Vec<UnusedDevice>,
    nodes: Vec<PeerReport>,
    settings: Vec<ShownSetting>,
    warnings: Vec<String>,
    /// The rules that are on.
    hygiene: Vec<HygieneRule>,
}

#[derive(Serialize, JsonSchema)]
struct SystemModel {
    id: String,
    architecture: String,
    parameters: u64,
    quantisation: Option<String>,
    context: usize,
    weights_bytes: u64,
    context_bytes: u64,
    plan: Option<ShownPlan>,
    status: ModelStatus,
}

/// What a model does: the same report as in `/metrics`.
#[derive(Serialize, JsonSchema)]
struct ModelStatus {
    #[schemars(extend("enum" = Phase::ALL.map(Phase::as_str)))]
    phase: &'static str,
    active: usize,
    pending: usize,
    sessions: usize,
    prefilled_tokens: u64,
    generated_tokens: u64,
    drafts: DraftSums,
}

impl From<&StatusReport> for ModelStatus {
    fn from(status: &StatusReport) -> Self {
        Self {
            phase: status.phase.as_str(),
            active: status.active,
            pending: status.pending,
            sessions: status.sessions,
            prefilled_tokens: status.prefilled_tokens,
            generated_tokens: status.generated_tokens,
            drafts: DraftSums::from(status.drafts),
        }
    }
}

/// What the cache saved, by day and model.
pub(crate) async fn savings(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<Value>, ApiError> {
    app.keys.check_sees_sums(owner)?;
    Ok(Json(app.savings.shown()))
}
