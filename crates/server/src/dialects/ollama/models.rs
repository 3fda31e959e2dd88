//! `GET /api/tags`, `GET /api/ps` and `POST /api/show`: which models there are and what they are.
//!
//! Facts come from the loaded model and from its file; the path comes from the server's settings. It must never
//! reveal a path of this machine.

use std::cmp::Reverse;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use poncho_api::{Capabilities, ModelFile, ModelInfo, ModelReport, NodeModel, to_hex};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::ignored;
use super::lines::timestamp;
use super::types::{Details, ListedOut, LoadedOut, ModelsOut, ProgressOut, ShowAnswer, ShowBody};
use crate::dialects::shared::{WithWarnings, capability_words, warn_of_name};
use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json};
use crate::library::{LibraryFacts, LibraryModel};
use crate::models::defaults::ServedDefaults;
use crate::models::manager::{InMemory, Place};
use crate::models::names::Source;
use crate::models::served::ServedModel;
use crate::models::tags;

/// Longer arrays are listed only on request.
const SHORT_ARRAY: usize = 5;
/// The expiry of a model without one: as far away as Ollama writes it, and a date that every client can read.
const FOREVER: Duration = Duration::from_secs(9_223_372_036);

/// Every name that requests may use.
pub(crate) async fn tags(State(app): State<SharedApp>) -> Result<Json<Value>, ApiError> {
    let listed = app.models.list().await?;
    let started = app.models.started();
    let mut models = Vec::with_capacity(listed.len());
    for listed in &listed {
        let name = tags::tagged(&listed.id);
        let (size, modified, digest) = match &listed.source {
            Source::Loaded(model) => {
                let file = FileFacts::of(&**model, started).await;
                (file.size, file.modified, to_hex(&model.report().fingerprint))
            }
            Source::Installed(model) => {
                let facts = &model.facts;
                (facts.size, facts.modified.unwrap_or_else(|| at(started)), facts.digest.clone())
            }
        };
        let details = source_details(&listed.source);
        models.push(ListedOut {
            name: name.clone(),
            model: name,
            modified_at: timestamp(modified),
            size,
            digest,
            details,
        });
    }
    Ok(Json(json!(ModelsOut { models })))
}

/// The models that are in memory, with those on their way in and out.
pub(crate) async fn ps(State(app): State<SharedApp>) -> Json<Value> {
    let mut models = app.models.in_memory();
    // A client without a preference takes the first.
    models.sort_by_key(|model| Reverse(model.last_used));
    Json(json!(ModelsOut::<LoadedOut> { models: models.iter().map(in_memory).collect() }))
}

fn in_memory(listed: &InMemory) -> LoadedOut {
    let name = tags::tagged(&listed.id);
    // A client may ask for more than a date can say.
    let left = listed.expires.map_or(FOREVER, |at| at.saturating_duration_since(Instant::now()).min(FOREVER));
    let facts = &listed.known.facts;
    let (state, details, digest, context_length, progress) = match &listed.place {
        Place::Ready(model) => {
            let report = model.report();
            ("loaded", details(report), to_hex(&report.fingerprint), report.limits.context, None)
        }
        Place::Unloading => ("unloading", facts_details(facts), facts.digest.clone(), 0, None),
        Place::Loading(progress) => {
            let (completed, total) = progress.bytes();
            let progress = ProgressOut { completed, total };
            ("loading", facts_details(facts), facts.digest.clone(), 0, Some(progress))
        }
    };
    LoadedOut {
        name: name.clone(),
        model: name,
        size: listed.bytes,
        digest,
        details,
        expires_at: timestamp(SystemTime::now() + left),
        // The engine does not tell which part of a model lies on a GPU.
        size_vram: 0,
        context_length,
        state,
        requests: listed.users,
        progress,
    }
}

/// All about a model, loaded or not.
pub(crate) async fn show(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<ShowBody>,
) -> Result<Json<WithWarnings<ShowAnswer>>, ApiError> {
    let named = body.model.as_deref().filter(|name| !name.is_empty()).or(body.name.as_deref());
    let name = tags::required(named)?.to_owned();
    let longest_array = if body.verbose.unwrap_or(false) { usize::MAX } else { SHORT_ARRAY };
    let started = app.models.started();
    let mut warnings = ignored::of_library(unknown);
    let source = match app.models.find(&name).await? {
        Some(source) => source,
        None => {
            let source = app.models.look_up(&name).await?;
            warn_of_name(&mut warnings, &name, source.id());
            source
        }
    };
    let answer = match source {
        Source::Loaded(model) => {
            let file = app.models.node().model_file(&model.report().path, longest_array).await;
            describe(&app.models.shown(model), file, &name, started).await
        }
        Source::Installed(model) => {
            let file = app.models.node().model_file(&model.config.model.path, longest_array).await;
            describe_installed(&model, file, &name, started)?
        }
    };
    Ok(Json(WithWarnings::new(&app, answer, warnings)))
}

/// What the library and the file say of a model that is not loaded.
fn describe_installed(model: &LibraryModel, file: ModelFile, name: &str, started: u64) -> Result<ShowAnswer, ApiError> {
    let defaults = ServedDefaults::new(&model.defaults)?;
    let template = defaults.written_template().map(str::to_owned).or(file.chat_template).unwrap_or_default();
    let parameters = parameters(model.config.context.n_ctx as usize, &defaults);
    let capabilities = Capabilities {
        embedding: file.metadata.keys().any(|key| key.ends_with(".pooling_type")),
        tools: template.contains("tools"),
        thinking: template.contains("think"),
        insert: file.metadata.contains_key("tokenizer.ggml.fim_mid_token_id"),
    };
    Ok(ShowAnswer {
        license: model.facts.license.clone(),
        modelfile: modelfile(name, &defaults, &parameters),
        parameters: parameter_lines(&parameters),
        template,
        system: model.defaults.system.clone(),
        details: facts_details(&model.facts),
        model_info: file.metadata,
        capabilities: capability_words(capabilities),
        modified_at: timestamp(model.facts.modified.unwrap_or_else(|| at(started))),
    })
}

async fn describe(model: &ServedModel, file: ModelFile, name: &str, started: u64) -> ShowAnswer {
    let defaults = model.defaults();
    let template = match defaults.written_template() {
        Some(template) => template.to_owned(),
        None => model.chat_template().await.unwrap_or_default(),
    };
    let parameters = parameters(model.limits().context, defaults);
    let capabilities = model.capabilities(defaults.template().map(str::to_owned)).await;
    ShowAnswer {
        license: model.report().license.clone(),
        modelfile: modelfile(name, defaults, &parameters),
        parameters: parameter_lines(&parameters),
        template,
        system: defaults.system().map(str::to_owned),
        details: details(model.report()),
        model_info: model_info(model.info(), file),
        capabilities: capability_words(capabilities),
        modified_at: timestamp(FileFacts::of(&**model, started).await.modified),
    }
}

/// What is used where a request says nothing.
fn parameters(context: usize, defaults: &ServedDefaults) -> Vec<(&'static str, String)> {
    let sampling = &defaults.generation().sampling;
    let mut all = vec![
        ("num_ctx", context.to_string()),
        ("temperature", sampling.temperature.to_string()),
        ("top_k", sampling.top_k.to_string()),
        ("top_p", sampling.top_p.to_string()),
        ("min_p", sampling.min_p.to_string()),
        ("repeat_penalty", sampling.repetition_penalty.to_string()),
    ];
    all.extend(sampling.seed.map(|seed| ("seed", seed.to_string())));
    all.extend(defaults.generation().max_tokens.map(|count| ("num_predict", count.to_string())));
    all.extend(defaults.generation().stop.iter().map(|stop| ("stop", json!(stop).to_string())));
    all
}

fn parameter_lines(parameters: &[(&'static str, String)]) -> String {
    parameters.iter().map(|(name, value)| format!("{name:<30} {value}")).collect::<Vec<_>>().join("\n")
}

/// A Modelfile that `create` takes: the template of the model's file comes with FROM, and a client may not bring one in
/// Jinja.
fn modelfile(name: &str, defaults: &ServedDefaults, parameters: &[(&'static str, String)]) -> String {
    let mut text = format!("FROM {name}\n");
    if let Some(template) = defaults.written_template() {
        let _ = writeln!(text, "TEMPLATE \"\"\"{template}\"\"\"");
    }
    if let Some(system) = defaults.system() {
        let _ = writeln!(text, "SYSTEM \"\"\"{system}\"\"\"");
    }
    for (name, value) in parameters {
        let _ = writeln!(text, "PARAMETER {name} {value}");
    }
    text
}

fn at(unix_seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(unix_seconds)
}

fn source_details(source: &Source) -> Details {
    match source {
        Source::Loaded(model) => details(model.report()),
        Source::Installed(model) => facts_details(&model.facts),
    }
}

fn facts_details(facts: &LibraryFacts) -> Details {
    let unknown = || "unknown".to_owned();
    Details {
        parent_model: "",
        format: "gguf",
        family: facts.architecture.clone(),
        families: vec![facts.architecture.clone()],
        parameter_size: parameter_size(facts.parameters),
        quantization_level: Some(facts.quantisation.clone()).filter(|name| !name.is_empty()).unwrap_or_else(unknown),
    }
}

fn details(report: &ModelReport) -> Details {
    let info = &report.info;
    Details {
        parent_model: "",
        format: "gguf",
        family: info.architecture.clone(),
        families: vec![info.architecture.clone()],
        parameter_size: parameter_size(info.n_params),
        quantization_level: report
            .quantisation
            .as_ref()
            .map_or_else(|| "unknown".to_owned(), |name| name.to_uppercase()),
    }
}

/// A number of parameters in short, such as `134.52M` or `7.2B`; whole numbers without decimals.
fn parameter_size(count: u64) -> String {
    let short = |unit: u64, decimals: usize, letter: char| {
        let decimals = if count.is_multiple_of(unit) { 0 } else { decimals };
        format!("{:.decimals$}{letter}", count as f64 / unit as f64)
    };
    match count {
        1_000_000_000.. => short(1_000_000_000, 1, 'B'),
        1_000_000.. => short(1_000_000, 2, 'M'),
        1_000.. => short(1_000, 0, 'K'),
        _ => count.to_string(),
    }
}

/// The file's metadata, with what the loaded model knows where the file does not say it or is gone.
fn model_info(info: &ModelInfo, file: ModelFile) -> Map<String, Value> {
    let arch = &info.architecture;
    let mut all = Map::from_iter([
        ("general.architecture".to_owned(), json!(arch)),
        ("general.parameter_count".to_owned(), json!(info.n_params)),
        (format!("{arch}.block_count"), json!(info.n_layers)),
        (format!("{arch}.context_length"), json!(info.n_ctx_train)),
        (format!("{arch}.embedding_length"), json!(info.n_embd)),
        (format!("{arch}.vocab_size"), json!(info.n_vocab)),
    ]);
    all.extend(file.metadata);
    all
}

/// What the file system says about a model's files.
struct FileFacts {
    size: u64,
    modified: SystemTime,
}

impl FileFacts {
    /// A model without a file has the size of its tensors and the age of the server.
    async fn of(model: &dyn NodeModel, started: u64) -> Self {
        let files = model.files().await;
        Self {
            size: if files.bytes > 0 { files.bytes } else { model.report().info.size_bytes },
            modified: files.modified.unwrap_or_else(|| at(started)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_parameters_are_short() {
        for (count, text) in [
            (1, "1"),
            (999, "999"),
            (1_500, "2K"),
            (134_515_008, "134.52M"),
            (8_000_000, "8M"),
            (7_241_732_096, "7.2B"),
            (70_000_000_000, "70B"),
        ] {
            assert_eq!(parameter_size(count), text);
        }
    }

    #[test]
    fn a_model_that_embeds_does_nothing_else() {
        let all = Capabilities { embedding: false, tools: true, thinking: true, insert: true };
        assert_eq!(capability_words(all), ["completion", "tools", "insert", "thinking"]);
        assert_eq!(capability_words(Capabilities { embedding: true, ..all }), ["embedding"]);
        let plain = Capabilities { tools: false, thinking: false, insert: false, ..all };
        assert_eq!(capability_words(plain), ["completion"]);
    }
}
