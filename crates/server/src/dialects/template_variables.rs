//! Variables of a request that the chat template does not read, and the warnings about them.
//!
//! Asked by every dialect that sends a conversation to a template. Whether a template reads a variable is decided by its
//! source: a name that does not occur there cannot be read. Names come from clients, so they are cut; values are never
//! repeated.

use poncho_api::Generate;
use serde_json::{Map, Value};

use crate::http::unknown_fields::short;
use crate::http::warnings::Warnings;
use crate::models::served::ServedModel;

/// The effort of thinking, as llama.cpp passes it on.
const EFFORT: (&str, [&str; 2]) = ("reasoning_effort", ["reasoning_effort", "reasoning_strength"]);
/// Whether past thinking stays, under all names that llama.cpp gives to it.
const PRESERVING: (&str, [&str; 5]) = (
    "preserve_reasoning",
    ["preserve_reasoning", "preserve_thinking", "clear_thinking", "truncate_history_thinking", "drop_thinking"],
);

/// Warns of variables without effect. `effort` is the field of the dialect that sets the effort of thinking.
pub(crate) async fn warn_of_variables(
    warnings: &mut Warnings,
    model: &ServedModel,
    asked: &Generate,
    effort: &'static str,
) {
    let Some(turn) = asked.turn().filter(|turn| !turn.template_kwargs.is_empty()) else { return };
    let Ok(variables) = serde_json::from_str::<Map<String, Value>>(&turn.template_kwargs) else { return };
    let template = match turn.template.as_deref().or_else(|| model.defaults().template()) {
        Some(template) => template.to_owned(),
        None => model.chat_template().await.unwrap_or_default(),
    };
    for name in unread(&variables, &template) {
        let field = if name == EFFORT.0 { effort.to_owned() } else { format!("chat_template_kwargs.{}", short(name)) };
        warnings.ignored(&field, "the chat template of this model does not read it; leave it out");
    }
}

/// The variables that a template with this source cannot read.
fn unread<'v>(variables: &'v Map<String, Value>, template: &str) -> Vec<&'v str> {
    let is_read = |name: &str, value: &Value| match name {
        // What happens anyway without it.
        "enable_thinking" => value == false || template.contains("think"),
        name if name == EFFORT.0 => EFFORT.1.iter().any(|name| template.contains(name)),
        name if name == PRESERVING.0 => PRESERVING.1.iter().any(|name| template.contains(name)),
        name => template.contains(name),
    };
    let unread = variables.iter().filter(|(name, value)| !value.is_null() && !is_read(name, value));
    unread.map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_that_a_template_does_not_have_is_not_read() {
        let names = |variables: Value, template: &str| -> Vec<String> {
            unread(variables.as_object().unwrap(), template).into_iter().map(str::to_owned).collect()
        };
        assert_eq!(names(json!({"mood": 1, "tone": 2, "left": null}), "{{ tone }}"), ["mood"]);
        assert_eq!(names(json!({"reasoning_effort": "low"}), "{{ reasoning_strength }}"), [""; 0]);
        assert_eq!(names(json!({"reasoning_effort": "low"}), "{{ content }}"), ["reasoning_effort"]);
        assert_eq!(names(json!({"preserve_reasoning": true}), "{% if not clear_thinking %}"), [""; 0]);
        assert_eq!(names(json!({"enable_thinking": true}), "{{ content }}"), ["enable_thinking"]);
        assert_eq!(names(json!({"enable_thinking": false}), "{{ content }}"), [""; 0], "it does not think anyway");
    }
}
