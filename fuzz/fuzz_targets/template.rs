//! Conversations, tools and template variables through llama.cpp's templates, and raw text through its reply parsers.
//!
//! Whatever comes is rendered or refused; parts of a rendered prompt join to its text. Input: choices for a conversation,
//! then the reply.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use poncho_engine::Model;
use poncho_engine::backend::{ChatRequest, ToolChoice};
use poncho_fuzz::json::Choices;
use poncho_fuzz::models::served;
use poncho_testkit::{ChatSpec, ModelKind, ModelSpec, path_of};
use serde_json::json;

/// Templates with thinking, with tools, and with neither.
const TEMPLATES: [&str; 3] = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}",
];

static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let load = |template: &&str| {
        let chat = ChatSpec { template: (*template).to_owned(), marks: Vec::new() };
        let spec = ModelSpec { chat: Some(chat), ..ModelSpec::tiny(ModelKind::Attention) };
        let path = path_of(&spec).expect("a model can be written");
        served(&path)
    };
    TEMPLATES.iter().map(load).collect()
});

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let model = &MODELS[usize::from(choices.below(3))];
    let flags = choices.byte();
    let mut request = ChatRequest { messages_json: choices.messages().to_string(), ..ChatRequest::default() };
    if flags & 1 == 1 {
        let function = json!({"name": choices.text(), "description": choices.text(), "parameters": choices.schema(3)});
        request.tools_json = json!([{"type": "function", "function": function}]).to_string();
        request.tool_choice = if flags & 2 == 2 { ToolChoice::Required } else { ToolChoice::Auto };
        request.parallel_tool_calls = flags & 4 == 4;
    } else if flags & 8 == 8 {
        request.json_schema = choices.schema(3).to_string();
    }
    if flags & 16 == 16 {
        request.template_kwargs_json = choices.value(3).to_string();
    }
    request.add_generation_prompt = flags & 32 == 32;
    request.enable_thinking = flags & 64 == 64;
    let Ok(prompt) = model.apply_chat_template(&request) else { return };
    let joined: String = prompt.parts.iter().map(|part| part.text.as_str()).collect();
    assert_eq!(joined, prompt.text);
    let reply = String::from_utf8_lossy(choices.rest());
    let _ = prompt.parser.parse(&reply, true);
    let _ = prompt.parser.parse(&reply, false);
});
