//! What a model can do, found out by asking its template.
//!
//! Used by `/api/show` and by requests that want thinking. A template is rendered with a tool that no template knows:
//! if its name comes out, the model hears of tools. It blocks, so callers run it off the async threads.

use poncho_engine::backend::{ChatPrompt, ChatRequest};

use crate::models::served::ServedModel;

/// A name that is in no template.
const PROBE: &str = "poncho_probe_tool";

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Its file says how to pool, so it was made to embed.
    pub(crate) embedding: bool,
    pub(crate) tools: bool,
    pub(crate) thinking: bool,
    /// It can fill a gap.
    pub(crate) insert: bool,
}

impl Capabilities {
    pub(crate) fn of(model: &ServedModel) -> Self {
        let info = model.info();
        let plain = render(model, String::new());
        let tool = format!(
            r#"[{{"type":"function","function":{{"name":"{PROBE}","description":"","parameters":{{"type":"object","properties":{{}}}}}}}}]"#
        );
        let with_tool = render(model, tool);
        Self {
            embedding: model.metadata(&format!("{}.pooling_type", info.architecture)).is_some(),
            tools: with_tool.is_some_and(|prompt| prompt.text.contains(PROBE)),
            thinking: plain.is_some_and(|prompt| prompt.supports_thinking || !prompt.thinking_start.is_empty()),
            insert: info.special.fill.is_some(),
        }
    }

    /// Ollama's words for them.
    pub(crate) fn words(self) -> Vec<&'static str> {
        let all = [
            ("embedding", self.embedding),
            ("completion", !self.embedding),
            ("tools", !self.embedding && self.tools),
            ("insert", !self.embedding && self.insert),
            ("thinking", !self.embedding && self.thinking),
        ];
        all.into_iter().filter(|(_, can)| *can).map(|(word, _)| word).collect()
    }
}

/// A template that refuses the question says that it cannot.
fn render(model: &ServedModel, tools_json: String) -> Option<ChatPrompt> {
    let messages_json = r#"[{"role":"user","content":"Hello"}]"#.to_owned();
    model.apply_chat_template(&ChatRequest { messages_json, tools_json, ..ChatRequest::default() }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_embeds_does_nothing_else() {
        let all = Capabilities { embedding: false, tools: true, thinking: true, insert: true };
        assert_eq!(all.words(), ["completion", "tools", "insert", "thinking"]);
        assert_eq!(Capabilities { embedding: true, ..all }.words(), ["embedding"]);
        assert_eq!(Capabilities { tools: false, thinking: false, insert: false, ..all }.words(), ["completion"]);
    }
}
