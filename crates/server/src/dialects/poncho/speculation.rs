//! `POST /api/verify` and `POST /api/draft`: the model's own greedy tokens, for programs that speculate.
//!
//! Texts are tokenized as for `/v1/completions`; a draft goes on from the prompt and gets no mark of its own. The model
//! answers each call between two of its batches and nobody else meanwhile, so the number of tokens is bounded. Errors have
//! OpenAI's shape.

use std::future::Future;

use axum::extract::State;
use poncho_api::{EngineError, SpecialText, TokenizeMode, Verified};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::http::app::SharedApp;
use crate::http::body::Json;
use crate::http::token_list::TokenList;
use crate::models::served::ServedModel;

/// The most tokens of a draft, asked for or verified.
const MOST_DRAFTED: usize = 256;

/// A whole prompt has its marks in it.
const PROMPT: TokenizeMode = TokenizeMode { add_special: true, parse_special: true };
/// A draft goes on from the prompt.
const DRAFT: TokenizeMode = TokenizeMode { add_special: false, parse_special: true };

/// `POST /api/verify`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VerifyBody {
    model: Option<String>,
    prompt: Option<String>,
    /// Instead of `prompt`.
    tokens: Option<TokenList>,
    draft: Option<String>,
    /// Instead of `draft`.
    draft_tokens: Option<TokenList>,
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
    let id = model.id();
    Ok(Json(json!({
        "model": id, "accepted": accepted, "next": next, "next_text": next_text, "draft_tokens": draft,
    })))
}

/// `POST /api/draft`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DraftBody {
    model: Option<String>,
    prompt: Option<String>,
    /// Instead of `prompt`.
    tokens: Option<TokenList>,
    count: usize,
}

/// The model's own next tokens. There are fewer than asked for if the model ends its text.
pub(crate) async fn draft(State(app): State<SharedApp>, Json(body): Json<DraftBody>) -> Result<Json<Value>, ApiError> {
    if !(1..=MOST_DRAFTED).contains(&body.count) {
        let reason = format!("it is {} and must be from 1 to {MOST_DRAFTED}", body.count);
        return Err(ApiError::field("count", reason));
    }
    let model = app.models.resolve_known_or_only(body.model.as_deref()).await?;
    let prefix = Either { text: ("prompt", body.prompt), tokens: ("tokens", body.tokens), mode: PROMPT };
    let prefix = prefix.read(&model).await?;
    let tokens = within(&app, model.draft(prefix, body.count)).await?;
    let text = model.detokenize(tokens.clone(), SpecialText::Render).await?;
    Ok(Json(json!({"model": model.id(), "tokens": tokens, "text": text})))
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
