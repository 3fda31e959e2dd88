//! `/api/pull`, `/api/copy`, `/api/delete`, `/api/create` and `/api/blobs`: the models on disk, in Ollama's words.
//!
//! Progress goes out as lines of JSON, errors after the first line as a line too. Names go to the library as they came;
//! nothing here makes a path of one. A model that was changed while it is loaded is unloaded, so that the next request
//! finds the new one.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::ignored;
use super::types::MessageBody;
use crate::blocking::blocking;
use crate::dialects::openai::types::Texts;
use crate::dialects::shared::WithWarnings;
use crate::error::{ApiError, Family};
use crate::http::app::SharedApp;
use crate::http::body::{Checked, Json, Object};
use crate::http::uploads;
use crate::library::{LibraryError, ModelDefaults, ModelLibrary, PullStep, Recipe};
use crate::models::pulls::{Pull, PullState};
use crate::models::tags;

/// `POST /api/pull`.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "PullRequest")]
pub(crate) struct PullBody {
    model: Option<String>,
    /// What older clients call it.
    name: Option<String>,
    stream: Option<bool>,
}

fn either<'n>(model: Option<&'n String>, name: Option<&'n String>) -> Result<&'n str, ApiError> {
    tags::required(model.filter(|model| !model.is_empty()).or(name).map(String::as_str))
}

fn library(app: &SharedApp, name: &str) -> Result<Arc<dyn ModelLibrary>, ApiError> {
    let library = app.models.manager().library().map(Arc::clone);
    library.ok_or_else(|| LibraryError::ReadOnly { name: name.to_owned() }.into())
}

/// Fetches a model.
pub(crate) async fn pull(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<PullBody>,
) -> Result<Response, ApiError> {
    let name = either(body.model.as_ref(), body.name.as_ref())?;
    let library = library(&app, name)?;
    let success = WithWarnings::new(&app, status("success"), ignored::of_library(unknown));
    let success = json!(success);
    let pull = app.pulls.join(&library, name);
    let state = pull.watch();
    if body.stream.unwrap_or(true) {
        let lines = VecDeque::from([status("pulling manifest")]);
        let writer = PullWriter { app, name: name.to_owned(), pull, state, lines, told: Told::default(), success };
        return Ok(ndjson(writer.into_lines()));
    }
    let mut state = state;
    let ended = state.wait_for(|state| matches!(state, PullState::Ended(_))).await.map(|state| state.clone());
    match ended {
        Ok(PullState::Ended(ended)) => ended?,
        Ok(PullState::Going(_)) | Err(_) => return Err(ApiError::Internal { doing: "fetched a model" }),
    }
    app.models.changed(name).await;
    Ok(Json(success).into_response())
}

/// A line of progress, or all of the answer.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Status")]
pub(crate) struct StatusLine<'a> {
    status: &'a str,
}

fn status(text: &str) -> Value {
    json!(StatusLine { status: text })
}

fn ndjson(lines: impl Stream<Item = Result<String, Infallible>> + Send + 'static) -> Response {
    let mut response = Body::from_stream(lines).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// What the client has heard.
#[derive(Default)]
struct Told {
    /// The last line about bytes.
    bytes: Option<PullStep>,
    verifying: bool,
    writing: bool,
    end: bool,
}

struct PullWriter {
    app: SharedApp,
    name: String,
    /// Dropped with the response, because then this client no longer waits.
    pull: Arc<Pull>,
    state: watch::Receiver<PullState>,
    lines: VecDeque<Value>,
    told: Told,
    /// The last line, with the warnings about the request.
    success: Value,
}

impl PullWriter {
    fn into_lines(self) -> impl Stream<Item = Result<String, Infallible>> {
        let cut = self.app.life.cut_signal();
        stream::unfold((self, cut), |(mut writer, mut cut)| async move {
            loop {
                if let Some(line) = writer.lines.pop_front() {
                    return Some((Ok(format!("{line}\n")), (writer, cut)));
                }
                if writer.told.end {
                    return None;
                }
                let changed = tokio::select! {
                    changed = writer.state.changed() => changed,
                    () = cut.received() => {
                        writer.fail(&ApiError::ShuttingDown);
                        continue;
                    }
                };
                let gone = changed.is_err();
                let state = writer.state.borrow_and_update().clone();
                if let PullState::Ended(Ok(())) = state {
                    writer.app.models.changed(&writer.name).await;
                }
                writer.tell(state);
                if gone && !writer.told.end {
                    writer.fail(&ApiError::Internal { doing: "fetched a model" });
                }
            }
        })
    }

    fn tell(&mut self, state: PullState) {
        match state {
            PullState::Going(PullStep::Manifest) => {}
            PullState::Going(step @ PullStep::Bytes { .. }) => self.bytes(step),
            PullState::Going(PullStep::Verifying) => self.verifying(),
            PullState::Going(PullStep::Writing) => self.writing(),
            PullState::Ended(Ok(())) => {
                self.writing();
                self.lines.push_back(self.success.clone());
                self.told.end = true;
            }
            PullState::Ended(Err(error)) => self.fail(&error.into()),
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.lines.push_back(error.body(Family::Ollama));
        self.told.end = true;
    }

    fn bytes(&mut self, step: PullStep) {
        if let PullStep::Bytes { digest, total, completed } = &step {
            let short: String = digest.trim_start_matches("sha256:").chars().take(12).collect();
            let mut line = json!({"status": format!("pulling {short}"), "digest": digest, "completed": completed});
            if let (Some(total), Some(line)) = (total, line.as_object_mut()) {
                line.insert("total".to_owned(), (*total).into());
            }
            self.lines.push_back(line);
            self.told.bytes = Some(step);
        }
    }

    fn verifying(&mut self) {
        if !std::mem::replace(&mut self.told.verifying, true) {
            // Clients draw a bar from these lines, so the last of them must not be missing.
            if let Some(last) = self.pull.bytes().filter(|last| self.told.bytes.as_ref() != Some(last)) {
                self.bytes(last);
            }
            self.lines.push_back(status("verifying sha256 digest"));
        }
    }

    /// Steps that went by too fast to be seen are reported all the same.
    fn writing(&mut self) {
        self.verifying();
        if !std::mem::replace(&mut self.told.writing, true) {
            self.lines.push_back(status("writing manifest"));
        }
    }
}

/// `POST /api/copy`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CopyRequest")]
pub(crate) struct CopyBody {
    source: String,
    destination: String,
}

/// Gives a model a second name.
pub(crate) async fn copy(State(app): State<SharedApp>, Json(body): Json<CopyBody>) -> Result<StatusCode, ApiError> {
    let library = library(&app, &body.destination)?;
    let (source, destination) = (body.source, body.destination.clone());
    blocking("copied a model", move || Ok(library.copy(&source, &destination)?)).await?;
    app.models.changed(&body.destination).await;
    Ok(StatusCode::OK)
}

/// `DELETE /api/delete`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DeleteRequest")]
pub(crate) struct DeleteBody {
    model: Option<String>,
    name: Option<String>,
}

/// Forgets a model.
pub(crate) async fn remove(State(app): State<SharedApp>, Json(body): Json<DeleteBody>) -> Result<StatusCode, ApiError> {
    let name = either(body.model.as_ref(), body.name.as_ref())?.to_owned();
    let library = library(&app, &name)?;
    let removed = name.clone();
    // Looked up first: afterwards the full name is no longer known.
    let id = app.models.look_up(&name).await.ok().map(|source| source.id().to_owned());
    blocking("deleted a model", move || Ok(library.remove(&removed)?)).await?;
    app.models.changed(id.as_deref().unwrap_or(&name)).await;
    Ok(StatusCode::OK)
}

/// `POST /api/create`, in its older and its newer form. A field that it does not know is refused: the model would differ
/// from what its author wrote, for every later request.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "CreateRequest")]
pub(crate) struct CreateBody {
    model: Option<String>,
    name: Option<String>,
    modelfile: Option<String>,
    from: Option<String>,
    files: Option<BTreeMap<String, String>>,
    adapters: Option<BTreeMap<String, String>>,
    template: Option<String>,
    system: Option<String>,
    license: Option<Texts>,
    parameters: Option<Map<String, Value>>,
    messages: Option<Vec<Object<MessageBody>>>,
    stream: Option<bool>,
    quantize: Option<String>,
    /// Refused: no client may name a path of the server's machine.
    path: Option<String>,
}

impl CreateBody {
    fn recipe(self) -> Result<Recipe, ApiError> {
        if self.quantize.as_deref().is_some_and(|kind| !kind.is_empty()) {
            let reason = "models are not quantised here; bring a file that is, or leave it out";
            return Err(ApiError::field("quantize", reason));
        }
        if self.path.as_deref().is_some_and(|path| !path.is_empty()) {
            return Err(ApiError::field("path", "files of the server cannot be named; send the modelfile itself"));
        }
        let messages = self.messages.unwrap_or_default();
        for (at, message) in messages.iter().enumerate() {
            check_message(at, message)?;
        }
        let message = |Object(message): Object<MessageBody>| (message.role, message.content.unwrap_or_default());
        Ok(Recipe {
            modelfile: self.modelfile.filter(|text| !text.is_empty()),
            from: self.from.filter(|from| !from.is_empty()),
            files: self.files.unwrap_or_default().into_iter().collect(),
            adapters: self.adapters.unwrap_or_default().into_iter().collect(),
            license: self.license.map(|texts| texts.0).unwrap_or_default(),
            defaults: ModelDefaults {
                system: self.system,
                template: self.template,
                messages: messages.into_iter().map(message).collect(),
                parameters: self.parameters.unwrap_or_default(),
            },
        })
    }
}

/// A message of a model has a role and a text.
fn check_message(at: usize, message: &MessageBody) -> Result<(), ApiError> {
    let MessageBody { thinking, images, tool_calls, tool_name, tool_call_id, .. } = message;
    let other = [
        ("thinking", thinking.is_some()),
        ("images", images.is_some()),
        ("tool_calls", tool_calls.is_some()),
        ("tool_name", tool_name.is_some()),
        ("tool_call_id", tool_call_id.is_some()),
    ];
    match other.iter().find(|(_, came)| *came) {
        Some((name, _)) => {
            let field = format!("messages[{at}].{name}");
            Err(ApiError::field(field, "a message of a model has a role and a content; leave it out"))
        }
        None => Ok(()),
    }
}

/// Makes a model out of another one.
pub(crate) async fn create(
    State(app): State<SharedApp>,
    Checked { body, unknown }: Checked<CreateBody>,
) -> Result<Response, ApiError> {
    if let Some(field) = unknown.first() {
        return Err(ApiError::field(field.path.as_str(), "it is not a field of this request; remove it"));
    }
    let name = either(body.model.as_ref(), body.name.as_ref())?.to_owned();
    let library = library(&app, &name)?;
    let streams = body.stream.unwrap_or(true);
    let recipe = body.recipe()?;
    let created = name.clone();
    blocking("created a model", move || Ok(library.create(&created, &recipe)?)).await?;
    app.models.changed(&name).await;
    if !streams {
        return Ok(Json(status("success")).into_response());
    }
    let lines = ["reading model metadata", "writing manifest", "success"].map(|text| Ok(format!("{}\n", status(text))));
    Ok(ndjson(stream::iter(lines)))
}

/// Whether an uploaded file is here.
pub(crate) async fn has_blob(State(app): State<SharedApp>, Path(digest): Path<String>) -> Result<StatusCode, ApiError> {
    let library = library(&app, &digest)?;
    let is_here = blocking("looked for a file", move || Ok(library.has_blob(&digest)?)).await?;
    Ok(if is_here { StatusCode::OK } else { StatusCode::NOT_FOUND })
}

/// Takes a file.
pub(crate) async fn add_blob(
    State(app): State<SharedApp>,
    Path(digest): Path<String>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let library = library(&app, &digest)?;
    let (parts, body) = request.into_parts();
    uploads::receive(&app, library, digest, &parts.headers, body).await.map(|()| StatusCode::CREATED)
}
