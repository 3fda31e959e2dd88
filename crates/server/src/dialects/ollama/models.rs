//! `GET /api/tags`, `GET /api/ps` and `POST /api/show`: which models there are and what they are.
//!
//! Facts come from the loaded model and from its file, whose path is the server's own setting. It must never tell a path
//! of this machine.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use poncho_cache::{QuantType, to_hex};
use poncho_engine::Model;
use poncho_gguf::{self as gguf, Keep, Metadata};
use serde_json::{Map, Number, Value, json};
use tokio::time::Instant;

use super::capabilities::Capabilities;
use super::lines::timestamp;
use super::names;
use super::types::{Details, ListedOut, LoadedOut, ProgressOut, ShowAnswer, ShowBody};
use crate::dialects::shared::blocking;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::http::error::ApiError;
use crate::models::defaults::ServedDefaults;
use crate::models::library::{LibraryFacts, LibraryModel};
use crate::models::manager::{InMemory, Place};
use crate::models::names::Source;
use crate::models::served::ServedModel;

/// Longer arrays are told only when asked for.
const SHORT_ARRAY: usize = 5;
/// What "for ever" looks like: as far away as Ollama writes it, and a date that every client can read.
const FOREVER: Duration = Duration::from_secs(9_223_372_036);

/// Every name that requests may use.
pub(crate) async fn tags(State(app): State<SharedApp>) -> Result<Json<Value>, ApiError> {
    let listed = app.models.list().await?;
    let started = app.models.started();
    blocking("listed the models", move || {
        let models = listed.iter().map(|listed| {
            let name = names::tagged(&listed.id);
            let (size, modified, digest) = match &listed.source {
                Source::Loaded(model) => {
                    let file = FileFacts::of(model, started);
                    (file.size, file.modified, to_hex(&model.file().fingerprint))
                }
                Source::Installed(model) => {
                    let facts = &model.facts;
                    (facts.size, facts.modified.unwrap_or_else(|| at(started)), facts.digest.clone())
                }
            };
            let details = source_details(&listed.source);
            ListedOut { name: name.clone(), model: name, modified_at: timestamp(modified), size, digest, details }
        });
        Ok(Json(json!({"models": models.collect::<Vec<ListedOut>>()})))
    })
    .await
}

/// The models that are in memory, with those on their way in and out.
pub(crate) async fn ps(State(app): State<SharedApp>) -> Json<Value> {
    let listed: Vec<LoadedOut> = app.models.in_memory().iter().map(in_memory).collect();
    Json(json!({"models": listed}))
}

fn in_memory(listed: &InMemory) -> LoadedOut {
    let name = names::tagged(&listed.id);
    let left = listed.expires.map_or(FOREVER, |at| at.saturating_duration_since(Instant::now()));
    let facts = &listed.known.facts;
    let (state, details, digest, context_length, progress) = match &listed.place {
        Place::Ready(model) => {
            ("loaded", details(model), to_hex(&model.file().fingerprint), model.limits().context, None)
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
    Json(body): Json<ShowBody>,
) -> Result<Json<ShowAnswer>, ApiError> {
    let named = body.model.as_deref().filter(|name| !name.is_empty()).or(body.name.as_deref());
    let name = names::required(named)?.to_owned();
    let longest_array = if body.verbose.unwrap_or(false) { usize::MAX } else { SHORT_ARRAY };
    let started = app.models.started();
    match app.models.look_up(&name).await? {
        Source::Loaded(model) => {
            let model = app.models.shown(model);
            blocking("described a model", move || Ok(Json(describe(&model, &name, longest_array, started)))).await
        }
        Source::Installed(model) => {
            blocking("described a model", move || describe_installed(&model, &name, longest_array, started).map(Json))
                .await
        }
    }
}

/// What the library and the file say of a model that is not loaded.
fn describe_installed(
    model: &LibraryModel,
    name: &str,
    longest_array: usize,
    started: u64,
) -> Result<ShowAnswer, ApiError> {
    let keep = Keep::arrays_up_to(longest_array);
    let stored = Metadata::open(&model.config.model.path, &keep).unwrap_or_default();
    let own = stored.get("tokenizer.chat_template").and_then(gguf::Value::as_text);
    let own = own.map(|text| text.lossy().into_owned());
    let template = model.defaults.template.clone().or(own).unwrap_or_default();
    let defaults = ServedDefaults::new(&model.defaults)?;
    let parameters = parameters(model.config.context.n_ctx as usize, &defaults);
    let embeds = stored.iter().any(|(key, _)| key.ends_with(".pooling_type"));
    let capabilities = Capabilities {
        embedding: embeds,
        tools: template.contains("tools"),
        thinking: template.contains("think"),
        insert: stored.get("tokenizer.ggml.fim_mid_token_id").is_some(),
    };
    let info = stored.into_iter().filter(|(key, _)| !key.starts_with("tokenizer.chat_template"));
    Ok(ShowAnswer {
        license: model.facts.license.clone(),
        modelfile: modelfile(name, &template, &defaults, &parameters),
        parameters: parameter_lines(&parameters),
        template,
        system: model.defaults.system.clone(),
        details: facts_details(&model.facts),
        model_info: info.map(|(key, value)| (key, value_json(&value))).collect(),
        capabilities: capabilities.words(),
        modified_at: timestamp(model.facts.modified.unwrap_or_else(|| at(started))),
    })
}

fn describe(model: &ServedModel, name: &str, longest_array: usize, started: u64) -> ShowAnswer {
    let defaults = model.defaults();
    let template = defaults.template().map(str::to_owned).or_else(|| model.chat_template()).unwrap_or_default();
    let parameters = parameters(model.limits().context, defaults);
    ShowAnswer {
        license: model.metadata("general.license"),
        modelfile: modelfile(name, &template, defaults, &parameters),
        parameters: parameter_lines(&parameters),
        template,
        system: defaults.system().map(str::to_owned),
        details: details(model),
        model_info: model_info(model, longest_array),
        capabilities: Capabilities::of(model).words(),
        modified_at: timestamp(FileFacts::of(model, started).modified),
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

fn modelfile(name: &str, template: &str, defaults: &ServedDefaults, parameters: &[(&'static str, String)]) -> String {
    let mut text = format!("FROM {name}\n");
    if !template.is_empty() {
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
        Source::Loaded(model) => details(model),
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

fn details(model: &Model) -> Details {
    let info = model.info();
    Details {
        parent_model: "",
        format: "gguf",
        family: info.architecture.clone(),
        families: vec![info.architecture.clone()],
        parameter_size: parameter_size(info.n_params),
        quantization_level: match model.file().quant {
            QuantType::Other => "unknown".to_owned(),
            known => known.as_str().to_uppercase(),
        },
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
fn model_info(model: &Model, longest_array: usize) -> Map<String, Value> {
    let info = model.info();
    let arch = &info.architecture;
    let mut all = Map::from_iter([
        ("general.architecture".to_owned(), json!(arch)),
        ("general.parameter_count".to_owned(), json!(info.n_params)),
        (format!("{arch}.block_count"), json!(info.n_layers)),
        (format!("{arch}.context_length"), json!(info.n_ctx_train)),
        (format!("{arch}.embedding_length"), json!(info.n_embd)),
        (format!("{arch}.vocab_size"), json!(info.n_vocab)),
    ]);
    let keep = Keep::arrays_up_to(longest_array);
    let stored = Metadata::open(&model.config().model.path, &keep).unwrap_or_default();
    // The template has a place of its own in the answer.
    let stored = stored.into_iter().filter(|(key, _)| !key.starts_with("tokenizer.chat_template"));
    all.extend(stored.map(|(key, value)| (key, value_json(&value))));
    all
}

fn value_json(value: &gguf::Value) -> Value {
    match value {
        gguf::Value::U8(value) => (*value).into(),
        gguf::Value::I8(value) => (*value).into(),
        gguf::Value::U16(value) => (*value).into(),
        gguf::Value::I16(value) => (*value).into(),
        gguf::Value::U32(value) => (*value).into(),
        gguf::Value::I32(value) => (*value).into(),
        gguf::Value::U64(value) => (*value).into(),
        gguf::Value::I64(value) => (*value).into(),
        // By way of its shortest text, so that 1e-5 does not become 0.000009999999747378752.
        gguf::Value::F32(value) => value.to_string().parse().ok().and_then(Number::from_f64).into(),
        gguf::Value::F64(value) => Number::from_f64(*value).into(),
        gguf::Value::Bool(value) => (*value).into(),
        gguf::Value::Text(value) => value.lossy().into(),
        // Longer than any text of a model.
        gguf::Value::LongText(_) => Value::Null,
        gguf::Value::Array(array) => array.values.iter().map(value_json).collect(),
    }
}

/// What the file system says about a model's files.
struct FileFacts {
    size: u64,
    modified: SystemTime,
}

impl FileFacts {
    /// A model without a file has the size of its tensors and the age of the server.
    fn of(model: &Model, started: u64) -> Self {
        let options = &model.config().model;
        let paths =
            std::iter::once(options.path.as_path()).chain(options.split_paths.iter().map(AsRef::<Path>::as_ref));
        let found: Vec<std::fs::Metadata> = paths.filter_map(|path| std::fs::metadata(path).ok()).collect();
        let size: u64 = found.iter().filter(|file| file.is_file()).map(std::fs::Metadata::len).sum();
        let modified = found.iter().filter_map(|file| file.modified().ok()).max();
        Self {
            size: if size > 0 { size } else { model.info().size_bytes },
            modified: modified.unwrap_or_else(|| at(started)),
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
    fn values_keep_their_type_and_their_short_form() {
        assert_eq!(value_json(&gguf::Value::F32(1e-5)).to_string(), "0.00001");
        assert_eq!(value_json(&gguf::Value::F32(f32::NAN)), Value::Null);
        let values = vec![gguf::Value::I8(-1), gguf::Value::I8(2)];
        let array = gguf::Array { element: gguf::Kind::I8, count: 2, values };
        assert_eq!(value_json(&gguf::Value::Array(Box::new(array))), json!([-1, 2]));
        assert_eq!(value_json(&gguf::Value::U64(u64::MAX)), json!(u64::MAX));
    }
}
