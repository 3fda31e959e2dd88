//! Why a prompt was not found: where it leaves the best cached one, both texts around that place, and the likely cause.
//!
//! Called by `POST /api/cache/explain`. The cache knows tokens only; the words for a cause come from looking at the texts
//! on both sides. A cause is a guess and says so by its name; the offset is exact.

use poncho_cache::{Cut, Verdict};
use poncho_engine::Model;
use poncho_engine::backend::{SpecialText, TokenizeMode};
use serde_json::{Value, json};

use crate::chat::hygiene;
use crate::chat::turn::{self, ChatTurn, Generation};
use crate::dialects::openai::convert::chat_turn;
use crate::dialects::openai::types::ChatRequestBody;
use crate::http::error::ApiError;
use crate::models::served::ServedModel;

/// Tokens shown on each side of the place.
const SHOWN: usize = 24;
/// Prompts that agree on fewer tokens have only the template's first words in common.
const FIRST_WORDS: usize = 8;
/// Tokens looked at on each side for the line around a place: it is rarely longer, and the prompt may be a book.
const REACH: usize = 128;
/// So many tokens in a row that come back further on are no accident.
const RUN: usize = 8;

/// What is asked about.
pub(crate) enum Asked {
    /// The prompt of a conversation.
    Chat(Box<ChatTurn>),
    /// A prompt as `/v1/completions` takes it.
    Text(String),
    Tokens(Vec<u32>),
}

impl Asked {
    pub(crate) fn chat(body: &ChatRequestBody) -> Result<Self, ApiError> {
        chat_turn(body, &Generation::default()).map(|turn| Self::Chat(Box::new(turn)))
    }

    fn is_exact(&self) -> bool {
        matches!(self, Self::Chat(turn) if turn.generation.exact)
    }

    fn tokens(&self, model: &ServedModel) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Chat(turn) => Ok(turn::render(model, turn)?.tokens),
            Self::Text(text) => {
                let mode = TokenizeMode { add_special: true, parse_special: true };
                let tokens = model.tokenize_within(text, mode, turn::most_counted(model));
                tokens.map_err(|error| ApiError::from(error).in_field("prompt"))
            }
            Self::Tokens(tokens) => Ok(tokens.clone()),
        }
    }
}

/// The likely reason why a prompt is not cached to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Cached,
    Grown,
    Clock,
    BillingHeader,
    ToolOrder,
    ModelChanged,
    SettingsChanged,
    TruncatedHistory,
    EditedHistory,
    NeverSeen,
}

impl Cause {
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Cached => ("cached", "every token is cached"),
            Self::Grown => ("grown", "nothing differs; the prompt goes on where the cached one ends"),
            Self::Clock => ("clock", "a time of day differs; keep the hygiene rule clock on or take the time out"),
            Self::BillingHeader => {
                ("billing_header", "a billing header differs; keep the hygiene rule billing_header on")
            }
            Self::ToolOrder => {
                ("tool_order", "the same tools come in another order; keep the hygiene rule tool_order on")
            }
            Self::ModelChanged => {
                ("model_changed", "the same tokens are cached for another model file or other adapters")
            }
            Self::SettingsChanged => ("settings_changed", "the same tokens are cached for other context settings"),
            Self::TruncatedHistory => {
                ("truncated_history", "something was left out here; what follows is cached further on")
            }
            Self::EditedHistory => (
                "edited_history",
                "the texts differ from here on: an edited message, or another conversation with the same beginning",
            ),
            Self::NeverSeen => ("never_seen", "no cached prompt begins like this one"),
        }
    }
}

/// The answer for one prompt. Where keys tell callers apart it is that of a cache which holds the caller's rows alone.
pub(crate) fn explain(model: &ServedModel, asked: &Asked) -> Result<Value, ApiError> {
    let tokens = asked.tokens(model)?;
    let cut = if model.info().memory.can_cut() { Cut::AnyToken } else { Cut::SavedBoundary };
    let namespace = model.namespace_for(asked.is_exact(), model.tenant());
    let found = match model.private_to() {
        Some(owner) => model.cache().explain_for(owner, &namespace, &tokens, cut),
        None => model.cache().explain(&namespace, &tokens, cut),
    };
    let stored = found.row.as_ref().and_then(|row| model.cache().tokens_of(&row.key)).unwrap_or_default();
    let cause = match found.verdict {
        Verdict::Stored => Cause::Cached,
        Verdict::Ends => Cause::Grown,
        Verdict::NothingStored => Cause::NeverSeen,
        Verdict::OtherNamespace { fingerprint: true, .. } => Cause::ModelChanged,
        Verdict::OtherNamespace { .. } => Cause::SettingsChanged,
        Verdict::Parts => cause(model, &stored, &tokens, found.common),
    };
    let parts = found.parting.is_some();
    let around = |tokens: &[u32]| {
        let before = tokens.get(found.common.saturating_sub(SHOWN)..found.common).unwrap_or_default();
        let after: Vec<u32> = tokens.iter().skip(found.common).take(SHOWN).copied().collect();
        json!({"before": text(model, before), "after": text(model, &after)})
    };
    let (word, sentence) = cause.words();
    Ok(json!({
        "model": model.id(),
        "tokens": tokens.len(),
        "agree": found.common,
        "usable": found.usable,
        "offset": parts.then_some(found.common),
        "cause": word,
        "reason": sentence,
        "row": found.row.map(|row| json!({"key": row.key.to_string(), "tokens": row.tokens, "tier": row.tier.map(|tier| tier.as_str())})),
        "cached": parts.then(|| around(&stored)),
        "asked": parts.then(|| around(&tokens)),
    }))
}

fn text(model: &Model, tokens: &[u32]) -> String {
    model.detokenize(tokens, SpecialText::Render)
}

/// What may have made two token lists part at a place.
fn cause(model: &Model, stored: &[u32], asked: &[u32], at: usize) -> Cause {
    if at < FIRST_WORDS {
        return Cause::NeverSeen;
    }
    let lines = [stored, asked].map(|tokens| line_at(model, tokens, at));
    if lines.iter().any(|line| hygiene::is_billing_header(line)) {
        return Cause::BillingHeader;
    }
    let [one, two] = lines.each_ref().map(|line| hygiene::without_clock(line));
    if one.is_some() && one == two {
        return Cause::Clock;
    }
    let [stored_rest, asked_rest] = [stored, asked].map(|tokens| tokens.get(at..).unwrap_or_default());
    // From a little before: two definitions may part in the middle of a name.
    let from = at.saturating_sub(REACH);
    let [mut one, mut two] =
        [stored, asked].map(|tokens| tool_names(&text(model, tokens.get(from..).unwrap_or_default())));
    if one != two && one.len() > 1 {
        one.sort();
        two.sort();
        if one == two {
            return Cause::ToolOrder;
        }
    }
    let run = asked_rest.get(..RUN.min(asked_rest.len())).unwrap_or_default();
    if run.len() == RUN && stored_rest.windows(RUN).any(|window| window == run) {
        return Cause::TruncatedHistory;
    }
    Cause::EditedHistory
}

/// The line around a place.
fn line_at(model: &Model, tokens: &[u32], at: usize) -> String {
    let before = text(model, tokens.get(at.saturating_sub(REACH)..at).unwrap_or_default());
    let after: Vec<u32> = tokens.iter().skip(at).take(REACH).copied().collect();
    let after = text(model, &after);
    let head = before.rsplit('\n').next().unwrap_or_default();
    let tail = after.split('\n').next().unwrap_or_default();
    format!("{head}{tail}")
}

/// The names in tool definitions, as far as a text has any.
fn tool_names(text: &str) -> Vec<String> {
    let after = text.split("\"name\"").skip(1);
    let names =
        after.filter_map(|rest| rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?.split('"').next());
    names.map(str::to_owned).collect()
}
