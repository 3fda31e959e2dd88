//! What a client has of a reply, and what a newer reading adds to it.
//!
//! Used by `parse.rs`. Ids of calls are given here, when a call is first seen. It must never take back what was sent: a text
//! that changed before its end waits until it agrees again.

use poncho_api::{CallDelta, ChatOutput, ChatToolCall, Delta, random_id};

/// What a stretch of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Content,
    Thinking,
}

/// See the module.
pub(crate) struct Sent {
    output: ChatOutput,
    call_ids: Vec<String>,
    call_prefix: Option<String>,
    most_calls: usize,
    too_many: bool,
}

impl Sent {
    /// Nothing is sent. Calls get ids that begin with `call_prefix`; without it the model's own ids are kept. At most
    /// `most_calls` calls are sent.
    pub(crate) fn new(call_prefix: Option<String>, most_calls: usize) -> Self {
        Self { output: ChatOutput::default(), call_ids: Vec::new(), call_prefix, most_calls, too_many: false }
    }

    /// Whether the reply has more calls than are sent.
    pub(crate) fn has_too_many_calls(&self) -> bool {
        self.too_many
    }

    /// The ids of the calls so far.
    pub(crate) fn call_ids(&self) -> &[String] {
        &self.call_ids
    }

    /// Adds text that continues what was sent.
    pub(crate) fn append(&mut self, kind: Kind, text: &str) -> Delta {
        let mut delta = Delta::default();
        let (sent, new) = match kind {
            Kind::Content => (&mut self.output.content, &mut delta.content),
            Kind::Thinking => (&mut self.output.reasoning, &mut delta.reasoning),
        };
        sent.push_str(text);
        new.push_str(text);
        delta
    }

    /// What a reading of the whole text adds.
    pub(crate) fn update(&mut self, now: &ChatOutput) -> Delta {
        let mut delta = Delta {
            content: grown(&mut self.output.content, &now.content),
            reasoning: grown(&mut self.output.reasoning, &now.reasoning),
            ..Delta::default()
        };
        self.too_many |= now.tool_calls.len() > self.most_calls;
        for (index, call) in now.tool_calls.iter().take(self.most_calls).enumerate() {
            let is_new = index >= self.output.tool_calls.len();
            if is_new && call.name.is_empty() {
                break;
            }
            if is_new {
                let id = match &self.call_prefix {
                    Some(prefix) => random_id(prefix),
                    None if call.id.is_empty() => random_id("call_"),
                    None => call.id.clone(),
                };
                self.call_ids.push(id);
                self.output.tool_calls.push(ChatToolCall { name: call.name.clone(), ..ChatToolCall::default() });
            }
            let Some(sent) = self.output.tool_calls.get_mut(index) else { break };
            let arguments = grown(&mut sent.arguments, &call.arguments);
            let start = self.call_ids.get(index).filter(|_| is_new).map(|id| (id.clone(), call.name.clone()));
            if start.is_some() || !arguments.is_empty() {
                delta.calls.push(CallDelta { index, start, arguments });
            }
        }
        delta
    }
}

/// What a text gained. One that changed before its end waits until it agrees again.
fn grown(sent: &mut String, now: &str) -> String {
    let more = now.strip_prefix(sent.as_str()).unwrap_or_default().to_owned();
    sent.push_str(&more);
    more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_only_grows() {
        let mut sent = String::new();
        assert_eq!(grown(&mut sent, "Hé"), "Hé");
        assert_eq!(grown(&mut sent, "Hé"), "");
        assert_eq!(grown(&mut sent, "Hx"), "", "what was sent is not taken back");
        assert_eq!(grown(&mut sent, "Héllo"), "llo");
        assert_eq!(sent, "Héllo");
    }

    #[test]
    fn calls_beyond_the_limit_are_noticed_and_not_sent() {
        let call = |name: &str| ChatToolCall { name: name.into(), arguments: "{}".into(), ..ChatToolCall::default() };
        let mut sent = Sent::new(Some("toolu_".into()), 1);
        let output = ChatOutput { tool_calls: vec![call("f"), call("g")], ..ChatOutput::default() };
        let delta = sent.update(&output);
        assert_eq!((delta.calls.len(), sent.has_too_many_calls()), (1, true));
        assert!(sent.call_ids()[0].starts_with("toolu_"));
        assert!(sent.update(&output).calls.is_empty(), "nothing is sent twice");
    }
}
