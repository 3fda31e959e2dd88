//! What a request said that has no effect: each has a stable code, the field, and what to do.
//!
//! Made by the handlers out of the unknown fields of a body and of what they ignore themselves; sent in the `poncho`
//! object of the answer and logged once. The number and the length of warnings are bounded: fields and values come from
//! clients. It must never hold a word of a prompt.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use poncho_models::nearest;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::http::unknown_fields::{UnknownField, short};
use crate::telemetry::traces::scope::Scope;

/// The most warnings of an answer.
const MOST: usize = 16;
/// The same warnings are logged again after this time.
const LOG_AGAIN: Duration = Duration::from_secs(600);
/// Warnings that the log remembers.
const MOST_REMEMBERED: usize = 256;

/// What kind of warning it is. Clients may match the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "WarningCode")]
pub(crate) enum Code {
    /// No field of this request has that name.
    UnknownField,
    /// The dialect documents the field, and this server does not use it, or not here.
    IgnoredField,
    /// The value was replaced by the nearest one that this server has.
    ChangedValue,
    /// No model has that name, and another one answered.
    UnknownModel,
    /// The Modelfile of the model cannot be used; its settings are not applied.
    UnusableModelfile,
    /// There are more warnings than the answer lists.
    MoreWarnings,
}

impl Code {
    /// The one spelling.
    const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownField => "unknown_field",
            Self::IgnoredField => "ignored_field",
            Self::ChangedValue => "changed_value",
            Self::UnknownModel => "unknown_model",
            Self::UnusableModelfile => "unusable_modelfile",
            Self::MoreWarnings => "more_warnings",
        }
    }
}

/// One warning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Warning {
    code: Code,
    /// The field, header or setting that it is about.
    field: String,
    /// What happened and what to do.
    message: String,
}

/// A field that a dialect documents and that this server reads nowhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ignored {
    /// Its name with the objects around it, joined by dots; `*.name` is the name in any object.
    pub(crate) path: &'static str,
    /// Values that ask for what happens anyway.
    pub(crate) fulfilled: &'static [&'static str],
    /// Why, and what to do.
    pub(crate) advice: &'static str,
}

impl Ignored {
    /// A field that is ignored whatever its value.
    pub(crate) const fn new(path: &'static str, advice: &'static str) -> Self {
        Self { path, fulfilled: &[], advice }
    }

    /// The same, but for these values, which change nothing.
    pub(crate) const fn but(self, fulfilled: &'static [&'static str]) -> Self {
        Self { fulfilled, ..self }
    }

    fn is(&self, field: &UnknownField) -> bool {
        self.path.strip_prefix("*.").map_or(self.path == field.path, |name| name == field.name)
    }
}

/// The warnings of a request.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    all: Vec<Warning>,
    left_out: usize,
}

impl Warnings {
    /// About the unknown fields of a body; `ignored` lists those that its dialect documents.
    pub(crate) fn about(fields: Vec<UnknownField>, ignored: &[Ignored]) -> Self {
        let mut warnings = Self::default();
        for field in fields {
            match ignored.iter().find(|ignored| ignored.is(&field)) {
                Some(known) if field.word.as_deref().is_some_and(|word| known.fulfilled.contains(&word)) => {}
                Some(known) => warnings.ignored(&field.path, known.advice),
                None => warnings.unknown(&field),
            }
        }
        warnings
    }

    fn unknown(&mut self, field: &UnknownField) {
        let near = nearest(&field.name, field.known.iter().copied());
        let advice = match near.first() {
            Some(near) => format!("did you mean `{near}`?"),
            None if field.path.starts_with('?') => "remove it, or check its spelling".to_owned(),
            None => "remove it, or check its spelling and the object it belongs to".to_owned(),
        };
        let kind = if field.path.starts_with('?') { "parameter" } else { "field" };
        let message = format!("`{}` is not a {kind} of this request and was ignored; {advice}", field.path);
        self.add(Code::UnknownField, &field.path, message);
    }

    /// A field that was read and has no effect here.
    pub(crate) fn ignored(&mut self, field: &str, advice: &str) {
        self.add(Code::IgnoredField, field, format!("`{field}` was ignored: {advice}"));
    }

    /// The same, if it came.
    pub(crate) fn ignored_if(&mut self, came: bool, field: &str, advice: &str) {
        if came {
            self.ignored(field, advice);
        }
    }

    /// Names of an object that is read by hand.
    pub(crate) fn unknown_keys(&mut self, path: &str, object: &Map<String, Value>, known: &'static [&'static str]) {
        for (name, _) in object.iter().filter(|(name, value)| !known.contains(&name.as_str()) && !value.is_null()) {
            let name = short(name);
            self.unknown(&UnknownField { path: format!("{path}.{name}"), name, word: None, known });
        }
    }

    /// Anything else.
    pub(crate) fn add(&mut self, code: Code, field: &str, message: String) {
        if self.all.iter().any(|warning| warning.code == code && warning.field == field) {
            return;
        }
        if self.all.len() < MOST {
            self.all.push(Warning { code, field: field.to_owned(), message });
        } else {
            self.left_out += 1;
        }
    }

    /// The list for the answer; logged on the way.
    pub(crate) fn report(self, log: &WarningLog) -> Vec<Warning> {
        log.write(&self.all);
        let mut all = self.all;
        if self.left_out > 0 {
            let message = format!("{} more warnings are left out; correct these first", self.left_out);
            all.push(Warning { code: Code::MoreWarnings, field: String::new(), message });
        }
        all
    }
}

impl Warnings {
    /// Codes and messages, for an answer that has no place for objects; logged on the way.
    pub(crate) fn texts(self, log: &WarningLog) -> Vec<String> {
        let text = |warning: Warning| format!("{}: {}", warning.code.as_str(), warning.message);
        self.report(log).into_iter().map(text).collect()
    }
}

/// One log line for the warnings of a request. Clients repeat their requests, so the same warnings are logged once in a
/// while only.
#[derive(Default)]
pub(crate) struct WarningLog {
    logged: Mutex<HashMap<(Code, String), Instant>>,
}

impl WarningLog {
    fn write(&self, warnings: &[Warning]) {
        let fields: Vec<String> = self.new_ones(warnings, Instant::now());
        if fields.is_empty() {
            return;
        }
        tracing::warn!(
            request = Scope::current().as_ref().map(|scope| scope.id.as_str()),
            "parts of the request were ignored: {}; poncho.warnings or the warning header of the answer has the advice",
            fields.join(", ")
        );
    }

    fn new_ones(&self, warnings: &[Warning], now: Instant) -> Vec<String> {
        if warnings.is_empty() {
            return Vec::new();
        }
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|_, at| now.duration_since(*at) < LOG_AGAIN);
        if logged.len() >= MOST_REMEMBERED {
            logged.clear();
        }
        let mut fields = Vec::new();
        for Warning { code, field, .. } in warnings {
            // An entry keeps the time of its line, so that a client which goes on is logged again.
            if let Entry::Vacant(place) = logged.entry((*code, field.clone())) {
                place.insert(now);
                fields.push(format!("{field} ({})", code.as_str()));
            }
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(path: &str, word: Option<&str>) -> UnknownField {
        let name = path.rsplit('.').next().unwrap_or_default().to_owned();
        UnknownField { path: path.to_owned(), name, word: word.map(str::to_owned), known: &["temperature", "top_p"] }
    }

    const IGNORED: [Ignored; 2] =
        [Ignored::new("store", "nothing is stored").but(&["false"]), Ignored::new("*.cache_control", "all is cached")];

    fn warned(fields: Vec<UnknownField>) -> Vec<(Code, String)> {
        let all = Warnings::about(fields, &IGNORED).report(&WarningLog::default());
        all.into_iter().map(|warning| (warning.code, warning.message)).collect()
    }

    #[test]
    fn a_warning_says_what_to_do() {
        let all = warned(vec![field("temprature", None), field("xyzzy", None), field("store", Some("true"))]);
        let codes: Vec<Code> = all.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, [Code::UnknownField, Code::UnknownField, Code::IgnoredField]);
        assert!(all[0].1.contains("did you mean `temperature`?"), "{}", all[0].1);
        assert!(all[1].1.contains("remove it") && all[2].1.contains("nothing is stored"));
        assert!(warned(vec![field("store", Some("false"))]).is_empty(), "it asks for what happens anyway");
        assert_eq!(warned(vec![field("messages.content.cache_control", None)])[0].0, Code::IgnoredField);
    }

    #[test]
    fn an_answer_has_a_bounded_number_of_warnings() {
        let many = (0..30).map(|number| field(&format!("field{number}"), None)).collect();
        let all = warned(many);
        assert_eq!((all.len(), all[MOST].0), (MOST + 1, Code::MoreWarnings));
        assert!(all[MOST].1.starts_with("14 more"), "{}", all[MOST].1);
    }

    #[test]
    fn the_same_warnings_are_logged_once_in_a_while() {
        let log = WarningLog::default();
        let warnings = Warnings::about(vec![field("a", None), field("b", None)], &[]).all;
        let begin = Instant::now();
        assert_eq!(log.new_ones(&warnings, begin).len(), 2);
        assert!(log.new_ones(&warnings, begin + LOG_AGAIN / 2).is_empty());
        assert_eq!(log.new_ones(&warnings, begin + LOG_AGAIN).len(), 2, "a client that goes on is logged again");
        for number in 0..2 * MOST_REMEMBERED {
            let other = Warnings::about(vec![field(&format!("other{number}"), None)], &[]).all;
            log.new_ones(&other, begin);
        }
        assert!(log.logged.lock().unwrap().len() <= MOST_REMEMBERED);
    }
}
