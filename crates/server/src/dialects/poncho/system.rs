//! `GET /api/system` and `GET /api/savings`: models with their plans, devices, nodes, the settings with their sources, the
//! last warnings, and what the cache saved.
//!
//! Both cover all keys, so with several keys only an admin reads them. Errors have OpenAI's shape.

use axum::Extension;
use axum::extract::State;
use poncho_api::StatusReport;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::owner::Owner;

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
        models.push(json!({
            "id": report.id,
            "architecture": report.info.architecture,
            "parameters": report.info.n_params,
            "quantisation": report.quantisation,
            "context": report.limits.context,
            "weights_bytes": footprint.weights,
            "context_bytes": footprint.cells,
            "plan": app.config.plans.as_ref().and_then(|plan| plan(&report.path, &report.id)),
            "status": status(&model.status()),
        }));
    }
    Ok(Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "in_flight": app.life.count(),
        "models": models,
        "devices": app.config.machine.devices,
        "unused_devices": app.config.machine.unused,
        "nodes": node.peers(),
        "settings": app.config.settings,
        "warnings": app.config.recent_warnings.all(),
        "hygiene": node.hygiene().iter().map(|rule| rule.as_str()).collect::<Vec<_>>(),
    })))
}

/// What a model does: the same report as in `/metrics`.
fn status(status: &StatusReport) -> Value {
    json!({
        "phase": status.phase.as_str(),
        "active": status.active,
        "pending": status.pending,
        "sessions": status.sessions,
        "prefilled_tokens": status.prefilled_tokens,
        "generated_tokens": status.generated_tokens,
    })
}

/// What the cache saved, by day and model.
pub(crate) async fn savings(
    State(app): State<SharedApp>,
    Extension(owner): Extension<Owner>,
) -> Result<Json<Value>, ApiError> {
    app.keys.check_sees_sums(owner)?;
    Ok(Json(app.savings.shown()))
}
