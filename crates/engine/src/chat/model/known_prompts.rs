//! Prompts that were rendered before.
//!
//! Asked by `ChatModel` for the conversation of a turn. A template is a program, so a prompt is reused only for the very
//! same request of the same owner: a client that tries again, counts before it sends, or returns to a conversation. The
//! clock is the one input of a template that its request does not have; `template_clock.rs` detects what it reads of
//! it. Bounded in bytes, with a share for every owner. It must never be asked for less than the whole request.

use std::sync::{Arc, Mutex, PoisonError};

use poncho_kinds::FairLru;
use sha2::{Digest, Sha256};

use super::template_clock::Slot;
use super::tokens::Share;
use crate::backend::{ChatPrompt, ChatRequest, ReasoningFormat, ToolChoice};

/// Prompts that are remembered.
const MOST: usize = 1 << 10;
/// Bytes of all of them: some hundred prompts of 20,000 tokens.
const MOST_BYTES: usize = 32 << 20;
/// What an entry takes besides its texts: the parser of the reply, most of all.
const ENTRY: usize = 16 << 10;

/// A hash of everything that a prompt depends on.
pub(super) type PromptKey = [u8; 32];

/// See the module.
pub(super) struct KnownPrompts(Mutex<FairLru<Share, PromptKey, Arc<ChatPrompt>>>);

impl Default for KnownPrompts {
    fn default() -> Self {
        Self(Mutex::new(FairLru::new(MOST, MOST_BYTES)))
    }
}

impl KnownPrompts {
    /// The prompt of a request, if it is known.
    pub(super) fn find(&self, key: &PromptKey) -> Option<ChatPrompt> {
        let found = {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let found = known.peek(key).cloned()?;
            if known.is_old(key) {
                known.touch(key);
            }
            found
        };
        // Copied without the lock.
        Some(ChatPrompt::clone(&found))
    }

    /// Remembers a prompt.
    pub(super) fn put(&self, owner: Share, key: PromptKey, prompt: &ChatPrompt) {
        let parts: usize = prompt.parts.iter().map(|part| part.text.len() + size_of_val(part)).sum();
        let bytes = prompt.text.len() + parts + prompt.grammar.len() + ENTRY;
        let prompt = Arc::new(prompt.clone());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).put(owner, key, prompt, bytes);
    }
}

/// The key of a request, by the fingerprint of the model, by its owner, by the time that the template reads, and by the
/// template that stands for the model's own.
pub(super) fn key(
    fingerprint: [u8; 32],
    owner: Share,
    slot: Slot,
    template: Option<&str>,
    request: &ChatRequest,
) -> PromptKey {
    // Every field: one that is added later must be hashed too.
    let ChatRequest {
        messages_json,
        tools_json,
        tool_choice,
        parallel_tool_calls,
        json_schema,
        grammar,
        template_kwargs_json,
        add_generation_prompt,
        enable_thinking,
        reasoning,
        template_override,
    } = request;
    let mut hash = Sha256::new_with_prefix(fingerprint);
    hash.update([u8::from(owner.is_some())]);
    hash.update(owner.unwrap_or_default());
    hash.update(slot.to_le_bytes());
    let choice = match tool_choice {
        ToolChoice::Auto => 0,
        ToolChoice::Required => 1,
        ToolChoice::None => 2,
    };
    let reasoning = match reasoning {
        ReasoningFormat::None => 0,
        ReasoningFormat::Auto => 1,
        ReasoningFormat::Deepseek => 2,
    };
    let has_templates = [template.is_some(), template_override.is_some()];
    let switches = [*parallel_tool_calls, *add_generation_prompt, *enable_thinking];
    hash.update([choice, reasoning]);
    hash.update(switches.map(u8::from));
    hash.update(has_templates.map(u8::from));
    let templates = [template, template_override.as_deref()].map(Option::unwrap_or_default);
    let texts = [messages_json, tools_json, json_schema, grammar, template_kwargs_json].map(String::as_str);
    for text in texts.into_iter().chain(templates) {
        // With its length, so that two texts cannot be taken for two others.
        hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use poncho_cache::OwnerId;

    use super::*;

    /// A request that differs from the usual one in each of its fields.
    fn others() -> Vec<ChatRequest> {
        let text = || "x".to_owned();
        let usual = ChatRequest::default;
        vec![
            ChatRequest { messages_json: text(), ..usual() },
            ChatRequest { tools_json: text(), ..usual() },
            ChatRequest { tool_choice: ToolChoice::Required, ..usual() },
            ChatRequest { tool_choice: ToolChoice::None, ..usual() },
            ChatRequest { parallel_tool_calls: true, ..usual() },
            ChatRequest { json_schema: text(), ..usual() },
            ChatRequest { grammar: text(), ..usual() },
            ChatRequest { template_kwargs_json: text(), ..usual() },
            ChatRequest { add_generation_prompt: false, ..usual() },
            ChatRequest { enable_thinking: false, ..usual() },
            ChatRequest { reasoning: ReasoningFormat::None, ..usual() },
            ChatRequest { reasoning: ReasoningFormat::Deepseek, ..usual() },
            ChatRequest { template_override: Some(String::new()), ..usual() },
            ChatRequest { template_override: Some(text()), ..usual() },
        ]
    }

    #[test]
    fn requests_that_differ_in_anything_have_different_keys() {
        let usual = ChatRequest::default();
        let mut keys = vec![
            key([1; 32], None, 0, None, &usual),
            key([2; 32], None, 0, None, &usual),
            key([1; 32], Some([0; OwnerId::LENGTH]), 0, None, &usual),
            key([1; 32], None, 1, None, &usual),
            key([1; 32], None, 0, Some(""), &usual),
            key([1; 32], None, 0, Some("x"), &usual),
        ];
        keys.extend(others().iter().map(|request| key([1; 32], None, 0, None, request)));
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
        assert_eq!(key([1; 32], None, 0, None, &usual), key([1; 32], None, 0, None, &ChatRequest::default()));
    }
}
