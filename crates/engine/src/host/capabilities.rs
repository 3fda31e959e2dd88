//! What a model can do, as its file and its template show.
//!
//! Asked by the host. A template is rendered with a tool that no template knows: if its name comes out, the template
//! passes tools on to the model. It blocks, so callers run it off the async threads.

use poncho_api::Capabilities;

use crate::backend::{ChatPrompt, ChatRequest};
use crate::chat::model::ChatModel;

/// A name that is in no template.
const PROBE: &str = "poncho_probe_tool";

pub(super) fn capabilities(model: &ChatModel) -> Capabilities {
    let info = model.info();
    let plain = render(model, String::new());
    let tool = format!(
        r#"[{{"type":"function","function":{{"name":"{PROBE}","description":"","parameters":{{"type":"object","properties":{{}}}}}}}}]"#
    );
    let with_tool = render(model, tool);
    Capabilities {
        embedding: model.metadata(&format!("{}.pooling_type", info.architecture)).is_some(),
        tools: with_tool.is_some_and(|prompt| prompt.text.contains(PROBE)),
        thinking: plain.is_some_and(|prompt| prompt.supports_thinking || !prompt.thinking_start.is_empty()),
        insert: info.special.fill.is_some(),
    }
}

/// A template that refuses the question cannot do it.
fn render(model: &ChatModel, tools_json: String) -> Option<ChatPrompt> {
    let messages_json = r#"[{"role":"user","content":"Hello"}]"#.to_owned();
    model.apply_chat_template(&ChatRequest { messages_json, tools_json, ..ChatRequest::default() }).ok()
}
