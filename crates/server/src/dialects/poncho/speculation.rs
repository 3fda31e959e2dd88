//! `POST /api/verify`, `POST /api/draft` and `POST /api/speculate`: a model's own greedy tokens, for programs that
//! speculate, and a whole reply that another model drafts.
//!
//! Called by the router. Texts are tokenized as for `/v1/completions`; a draft goes on from the prompt and gets no mark
//! of its own. The model answers each call between two of its batches and nobody else meanwhile, so a call must never
//! be for an unbounded number of tokens. Errors have OpenAI's shape.

mod rounds;

use std::future::Future;

use axum::extract::State;
use poncho_api::{EngineError, Mode, SpecialText, TokenizeMode, Verified};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::rounds::{DRAFT_WAIT, Speculated, Speculation};

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::http::token_list::TokenList;
use crate::models::served::ServedModel;

/// The most tokens of a draft, asked for or verified.
const MOST_DRAFTED: usize = 256;

/// Tokens of a reply with drafts: the most, and how many there are if nobody says.
const MOST_REPLIED: usize = 4096;
const USUAL_REPLY: usize = 256;
/// Tokens of one of its drafts, likewise.
const MOST_IN_ROUND: usize = 64;
const USUAL_ROUND: usize = 8;

/// A whole prompt has its marks in it.
const PROMPT: TokenizeMode = TokenizeMode { add_special: true, parse_special: true };
/// A draft goes on from the prompt.
const DRAFT: TokenizeMode = TokenizeMode { add_special: false, parse_special: true };

/// Tokens instead of a text.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the document has a name for it; requests are read as lists")]
struct OptionalTokens(Option<TokenList>);

/// `POST /api/verify`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "VerifyRequest")]
pub(crate) struct VerifyBody {
    model: Option<String>,
    prompt: Option<String>,
    /// Instead of `prompt`.
    #[schemars(with = "OptionalTokens")]
    tokens: Option<TokenList>,
    draft: Option<String>,
    /// Instead of `draft`.
    #[schemars(with = "OptionalTokens")]
    draft_tokens: Option<TokenList>,
}

/// The answer of `POST /api/verify`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct VerifyAnswer {
    model: String,
    /// How many tokens of the draft the model would draw.
    #[schemars(range(max = MOST_DRAFTED))]
    accepted: usize,
    /// The token that it draws after them.
    next: u32,
    next_text: String,
    draft_tokens: Vec<u32>,
}

/// How many tokens of a draft the model would have drawn itself.
pub(crate) async fn verify(
    State(app): State<SharedApp>,
    Json(body): Json<VerifyBody>,
) -> Result<Json<Value>, ApiError> {
    let model = app.models.resolve_known_or_only(body.model.as_deref()).await?;
    let prefix = Either { text: ("prompt", body.prompt), tokens: ("tokens", body.tokens), mode: PROMPT };
    let draft = Either { text: ("draft", body.draft), tokens: ("draft_tokens", body.draft_tokens), mode: DRAFT };
    let draft_field = draft.field();
    let (prefix, draft) = (prefix.read(&model).await?, draft.read(&model).await?);
    if draft.len() > MOST_DRAFTED {
        let reason = format!("it has {} tokens and may have {MOST_DRAFTED}; verify it in parts", draft.len());
        return Err(ApiError::field(draft_field, reason));
    }
    let Verified { accepted, next } = within(&app, model.verify(prefix, draft.clone())).await?;
    let next_text = model.detokenize(vec![next], SpecialText::Render).await?;
    let model = model.id().to_owned();
    Ok(Json(json!(VerifyAnswer { model, accepted, next, next_text, draft_tokens: draft })))
}

/// `POST /api/draft`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DraftRequest")]
pub(crate) struct DraftBody {
    model: Option<String>,
    prompt: Option<String>,
    /// Instead of `prompt`.
    #[schemars(with = "OptionalTokens")]
    tokens: Option<TokenList>,
    #[schemars(range(min = 1, max = MOST_DRAFTED))]
    count: usize,
}

/// The answer of `POST /api/draft`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DraftAnswer {
    model: String,
    tokens: Vec<u32>,
    text: String,
}

/// The model's own next tokens. There are fewer than asked for if the model ends its text.
pub(crate) async fn draft(State(app): State<SharedApp>, Json(body): Json<DraftBody>) -> Result<Json<Value>, ApiError> {
    let count = from_one("count", body.count, MOST_DRAFTED)?;
    let model = app.models.resolve_known_or_only(body.model.as_deref()).await?;
    let prefix = Either { text: ("prompt", body.prompt), tokens: ("tokens", body.tokens), mode: PROMPT };
    let prefix = prefix.read(&model).await?;
    let tokens = within(&app, model.draft(prefix, count)).await?;
    let text = model.detokenize(tokens.clone(), SpecialText::Render).await?;
    Ok(Json(json!(DraftAnswer { model: model.id().to_owned(), tokens, text })))
}

/// `POST /api/speculate`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SpeculateRequest")]
pub(crate) struct SpeculateBody {
    model: Option<String>,
    /// The model that drafts.
    draft_model: String,
    prompt: Option<String>,
    /// Instead of `prompt`.
    #[schemars(with = "OptionalTokens")]
    tokens: Option<TokenList>,
    /// 256 if it is left out.
    #[schemars(range(min = 1, max = MOST_REPLIED))]
    max_tokens: Option<usize>,
    /// Tokens of one draft; 8 if it is left out.
    #[schemars(range(min = 1, max = MOST_IN_ROUND))]
    count: Option<usize>,
}

/// A reply and the models that made it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SpeculateAnswer {
    model: String,
    draft_model: String,
    text: String,
    #[serde(flatten)]
    reply: Speculated,
}

/// The model's greedy reply, drafted by another model.
pub(crate) async fn speculate(
    State(app): State<SharedApp>,
    Json(body): Json<SpeculateBody>,
) -> Result<Json<SpeculateAnswer>, ApiError> {
    let max_tokens = from_one("max_tokens", body.max_tokens.unwrap_or(USUAL_REPLY), MOST_REPLIED)?;
    let count = from_one("count", body.count.unwrap_or(USUAL_ROUND), MOST_IN_ROUND)?;
    let model = app.models.resolve_known_or_only(body.model.as_deref()).await?;
    let drafter = find_drafter(&app, &body.draft_model).await?;
    if let Ok(drafter) = &drafter {
        check_vocabularies((model.id(), model.limits().vocab), (drafter.id(), drafter.limits().vocab))?;
    }
    let prompt = Either { text: ("prompt", body.prompt), tokens: ("tokens", body.tokens), mode: PROMPT };
    let prompt = prompt.read(&model).await?;
    let limit = model.limits().longest_prompt(Mode::Complete);
    if prompt.len() > limit {
        return Err(EngineError::PromptTooLong { tokens: prompt.len(), limit }.into());
    }
    let draft_model = drafter.as_ref().map_or(body.draft_model, |drafter| drafter.id().to_owned());
    let reply = within(&app, Speculation::new(&model, drafter, prompt, count).run(max_tokens)).await?;
    let text = model.detokenize(reply.tokens.clone(), SpecialText::Hide).await?;
    Ok(Json(SpeculateAnswer { model: model.id().to_owned(), draft_model, text, reply }))
}

/// The model that drafts, or why it cannot be used now. A name that no model has is an error.
async fn find_drafter(app: &SharedApp, name: &str) -> Result<Result<ServedModel, String>, ApiError> {
    match tokio::time::timeout(DRAFT_WAIT, app.models.resolve_known_or_only(Some(name))).await {
        Ok(found) => found.map(Ok),
        Err(_) => {
            let seconds = DRAFT_WAIT.as_secs();
            Ok(Err(format!("{name} was not ready within {seconds} s; check its node, or load it before")))
        }
    }
}

/// Tokens of another vocabulary are other words. Each model comes with its name and the size of its vocabulary.
fn check_vocabularies(target: (&str, u32), drafter: (&str, u32)) -> Result<(), ApiError> {
    if target.1 == drafter.1 {
        return Ok(());
    }
    let reason = format!(
        "the vocabulary of {} has {} tokens and that of {} has {}; name a draft model with the vocabulary of {}",
        drafter.0, drafter.1, target.0, target.1, target.0
    );
    Err(ApiError::field("draft_model", reason))
}

/// The number, if it is from 1 to `most`.
fn from_one(field: &str, number: usize, most: usize) -> Result<usize, ApiError> {
    if (1..=most).contains(&number) {
        return Ok(number);
    }
    Err(ApiError::field(field, format!("it is {number} and must be from 1 to {most}")))
}

/// A text or its tokens, each with the name of its field.
struct Either {
    text: (&'static str, Option<String>),
    tokens: (&'static str, Option<TokenList>),
    mode: TokenizeMode,
}

impl Either {
    /// The field that came.
    fn field(&self) -> &'static str {
        if self.tokens.1.is_some() { self.tokens.0 } else { self.text.0 }
    }

    /// The tokens, of which there is at least one.
    async fn read(self, model: &ServedModel) -> Result<Vec<u32>, ApiError> {
        let field = self.field();
        let (text_field, tokens_field) = (self.text.0, self.tokens.0);
        let tokens = match (self.text.1, self.tokens.1) {
            (Some(text), None) => {
                let tokens = model.tokenize(text, self.mode).await;
                tokens.map_err(|error| ApiError::from(error.in_field(text_field)))?
            }
            (None, Some(tokens)) => tokens.known(tokens_field, model.limits().vocab)?,
            (Some(_), Some(_)) => {
                return Err(ApiError::field(tokens_field, format!("{text_field} came too; send one of them")));
            }
            (None, None) => {
                return Err(ApiError::field(text_field, format!("it is missing; send {text_field} or {tokens_field}")));
            }
        };
        if tokens.is_empty() { Err(ApiError::field(field, "it is empty; send at least one token")) } else { Ok(tokens) }
    }
}

/// Waits for the model as long as a request may take. A call that the model has begun goes on to its end.
async fn within<T>(app: &SharedApp, call: impl Future<Output = Result<T, EngineError>>) -> Result<T, ApiError> {
    let Some(limit) = app.config.request_timeout else { return Ok(call.await?) };
    let ended = tokio::time::timeout(limit, call).await.map_err(|_| ApiError::Timeout { limit })?;
    Ok(ended?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_model_with_another_vocabulary_is_refused_with_both_sizes() {
        assert!(check_vocabularies(("large", 128), ("small", 128)).is_ok());
        let Err(ApiError::Field { field, reason }) = check_vocabularies(("large", 128), ("small", 96)) else {
            panic!("other sizes are refused by field");
        };
        assert_eq!(field, "draft_model");
        for part in ["small has 96", "large has 128", "name a draft model"] {
            assert!(reason.contains(part), "{reason}");
        }
    }
}
