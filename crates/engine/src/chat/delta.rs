//! What a growing reply says that was not yet told: the parser's output, compared with what the client has.
//!
//! Used by `reply.rs` with every piece. Parsing the whole text each time would cost the square of its length, so once
//! everything so far is plain content (or thinking) and was told, only what comes after is parsed, behind a word that
//! stands for it. From time to time the whole is parsed all the same, and if the two ever differ the short way is given
//! up. What was told is never taken back, and the pieces always add up to the parse of the whole.

use poncho_api::{CallDelta, ChatOutput, ChatToolCall, Delta, random_id};

use crate::backend::ChatParser;
use crate::chat::turn::ReplyForm;

/// A text is worth leaving behind when it is this long.
const WORTH: usize = 512;
/// A tail longer than this (a long tool call) is parsed again only when it has grown by a sixteenth.
const LONG: usize = 4096;
/// Stands for the text that is not parsed again.
const STAND_IN: &str = "x";

/// What the text before the tail was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Content,
    Reasoning,
}

/// A place before which everything is told.
#[derive(Debug, Clone)]
struct Anchor {
    /// Its offset in the text.
    at: usize,
    kind: Kind,
    /// Parsed before the tail: the stand-in, and what opens or closes thinking before it.
    lead: String,
    /// How much of each was told when the anchor was set.
    content: usize,
    reasoning: usize,
}

/// See the module.
pub(crate) struct Growing {
    told: ChatOutput,
    call_ids: Vec<String>,
    call_prefix: Option<String>,
    /// How many calls are told; what comes after them is not the client's.
    most_calls: usize,
    /// Whether there were more.
    too_many: bool,
    anchor: Option<Anchor>,
    /// Whether the short way may be taken.
    short_way: bool,
    /// Length of the text at the last parse, and at the next parse of the whole.
    parsed: usize,
    next_whole: usize,
}

impl Default for Growing {
    fn default() -> Self {
        Self {
            told: ChatOutput::default(),
            call_ids: Vec::new(),
            call_prefix: None,
            most_calls: usize::MAX,
            too_many: false,
            anchor: None,
            short_way: true,
            parsed: 0,
            next_whole: 2 * LONG,
        }
    }
}

impl Growing {
    /// One whose calls get ids that begin in this way; without it, the model's own ids are kept. No more calls are told
    /// than `most_calls`.
    pub(crate) fn new(call_prefix: Option<String>, most_calls: usize) -> Self {
        Self { call_prefix, most_calls, ..Self::default() }
    }

    /// Whether the reply has more calls than are told.
    pub(crate) fn has_too_many_calls(&self) -> bool {
        self.too_many
    }

    /// The ids of the calls so far.
    pub(crate) fn call_ids(&self) -> &[String] {
        &self.call_ids
    }

    /// What is new in a text that is all content and thinking.
    pub(crate) fn plain(&mut self, content: &str, reasoning: &str) -> Delta {
        Delta {
            content: appended(&mut self.told.content, content),
            reasoning: appended(&mut self.told.reasoning, reasoning),
            ..Delta::default()
        }
    }

    /// What is new in a text that may go on; nothing if it cannot be read yet, such as in the middle of a mark.
    pub(crate) fn more(&mut self, raw: &str, parser: &dyn ChatParser, form: &ReplyForm) -> Option<Delta> {
        let from = self.anchor.as_ref().map_or(0, |anchor| anchor.at);
        let tail = raw.len().saturating_sub(from);
        if tail > LONG && raw.len().saturating_sub(self.parsed) < tail / 16 {
            return None;
        }
        self.parsed = raw.len();
        let output = self.parse(raw, parser)?;
        let delta = self.compare(&output);
        if self.short_way && tail >= WORTH {
            self.settle(raw, &output, parser, form);
        }
        Some(delta)
    }

    /// What the whole text says beyond what was told.
    pub(crate) fn rest(&mut self, whole: &ChatOutput) -> Delta {
        self.anchor = None;
        self.compare(whole)
    }

    /// The text from the anchor on; all of it without one.
    fn parse(&mut self, raw: &str, parser: &dyn ChatParser) -> Option<ChatOutput> {
        let Some(anchor) = &self.anchor else { return parser.parse(raw, true).ok() };
        let tail = parser.parse(&format!("{}{}", anchor.lead, raw.get(anchor.at..)?), true).ok();
        let tail = tail.and_then(|mut tail| {
            let text = match anchor.kind {
                Kind::Content => &mut tail.content,
                Kind::Reasoning => &mut tail.reasoning,
            };
            *text = text.strip_prefix(STAND_IN)?.to_owned();
            Some(tail)
        });
        if raw.len() < self.next_whole && tail.is_some() {
            return tail;
        }
        self.next_whole = raw.len().saturating_mul(2);
        let whole = parser.parse(raw, true).ok()?;
        let agrees = tail.as_ref().is_some_and(|tail| {
            whole.content.get(anchor.content..) == Some(&tail.content)
                && whole.reasoning.get(anchor.reasoning..) == Some(&tail.reasoning)
                && whole.tool_calls == tail.tool_calls
        });
        if agrees {
            return tail;
        }
        self.anchor = None;
        self.short_way = false;
        Some(whole)
    }

    /// Moves the anchor to the end of the text, if all of it was told and nothing is held back.
    fn settle(&mut self, raw: &str, output: &ChatOutput, parser: &dyn ChatParser, form: &ReplyForm) {
        let from = self.anchor.as_ref().map_or(0, |anchor| anchor.at);
        let Some(kind) = raw.get(from..).and_then(|tail| self.settled(tail, output, form)) else { return };
        let bare = |kind, output: &ChatOutput| match kind {
            Kind::Content => output.content == STAND_IN && output.reasoning.is_empty() && output.tool_calls.is_empty(),
            Kind::Reasoning => {
                output.reasoning == STAND_IN && output.content.is_empty() && output.tool_calls.is_empty()
            }
        };
        let known = self.anchor.as_ref().filter(|anchor| anchor.kind == kind).map(|anchor| anchor.lead.clone());
        let lead = known.or_else(|| {
            let mark = if kind == Kind::Content { &form.thinking_end } else { &form.thinking_start };
            let leads = [STAND_IN.to_owned(), format!("{mark}{STAND_IN}"), format!("{mark}\n\n{STAND_IN}")];
            leads.into_iter().find(|lead| parser.parse(lead, true).is_ok_and(|output| bare(kind, &output)))
        });
        match lead {
            Some(lead) => {
                let (content, reasoning) = (self.told.content.len(), self.told.reasoning.len());
                self.anchor = Some(Anchor { at: raw.len(), kind, lead, content, reasoning });
            }
            None => self.short_way = false,
        }
    }

    /// Whether a tail was read to its last byte, and as what.
    fn settled(&self, tail: &str, output: &ChatOutput, form: &ReplyForm) -> Option<Kind> {
        if !output.tool_calls.is_empty() || !self.told.tool_calls.is_empty() {
            return None;
        }
        let now = self.anchor.as_ref().map(|anchor| anchor.kind);
        let (kind, text, mark) = match (output.content.is_empty(), output.reasoning.is_empty()) {
            (false, _) => (Kind::Content, &output.content, &form.thinking_end),
            (true, false) => (Kind::Reasoning, &output.reasoning, &form.thinking_start),
            (true, true) => return None,
        };
        // White space may still turn out to stand before a mark that opens thinking, which a word in its place would not.
        let (opening, start) = (form.thinking_start.as_str(), text.trim_start());
        if start.is_empty() || (!opening.is_empty() && (start.starts_with(opening) || opening.starts_with(start))) {
            return None;
        }
        let before = tail.strip_suffix(text.as_str())?;
        let after_mark = !mark.is_empty() && before.trim_end().ends_with(mark.as_str());
        let goes_on = before.is_empty() && (now == Some(kind) || (now.is_none() && kind == Kind::Content));
        let opened = before.is_empty() && now.is_none() && kind == Kind::Reasoning && form.starts_thinking;
        (after_mark || goes_on || opened).then_some(kind)
    }

    /// What is new in a parse; it counts as told afterwards.
    fn compare(&mut self, now: &ChatOutput) -> Delta {
        let (content, reasoning) = self.anchor.as_ref().map_or((0, 0), |anchor| (anchor.content, anchor.reasoning));
        let mut delta = Delta {
            content: grown(&mut self.told.content, content, &now.content),
            reasoning: grown(&mut self.told.reasoning, reasoning, &now.reasoning),
            ..Delta::default()
        };
        self.too_many |= now.tool_calls.len() > self.most_calls;
        for (index, call) in now.tool_calls.iter().take(self.most_calls).enumerate() {
            let is_new = index >= self.told.tool_calls.len();
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
                self.told.tool_calls.push(ChatToolCall { name: call.name.clone(), ..ChatToolCall::default() });
            }
            let Some(told) = self.told.tool_calls.get_mut(index) else { break };
            let arguments = grown(&mut told.arguments, 0, &call.arguments);
            let start = self.call_ids.get(index).filter(|_| is_new).map(|id| (id.clone(), call.name.clone()));
            if start.is_some() || !arguments.is_empty() {
                delta.calls.push(CallDelta { index, start, arguments });
            }
        }
        delta
    }
}

/// What a text gained; `now` is what comes after its first `base` bytes. One that changed in its middle waits until it
/// agrees again.
fn grown(told: &mut String, base: usize, now: &str) -> String {
    let more = told.get(base..).and_then(|told| now.strip_prefix(told)).unwrap_or_default().to_owned();
    told.push_str(&more);
    more
}

/// What a text that only ever gets longer gained.
fn appended(told: &mut String, now: &str) -> String {
    let more = now.get(told.len()..).unwrap_or_default().to_owned();
    told.push_str(&more);
    more
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::backend::ChatError;
    use proptest::prelude::*;

    use super::*;
    use crate::chat::tools::GenericParser;

    /// Thinking at the start, then content; holds back what may become a mark, as llama.cpp's parsers do.
    struct Thinker {
        opened: bool,
    }

    impl ChatParser for Thinker {
        fn parse(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError> {
            let mut output = ChatOutput::default();
            let inside = if self.opened { Some(generated) } else { generated.strip_prefix("<think>") };
            match inside.map(|inside| (inside, inside.split_once("</think>"))) {
                None if partial && "<think>".starts_with(generated) => {}
                None => generated.clone_into(&mut output.content),
                Some((_, Some((thought, said)))) => {
                    thought.clone_into(&mut output.reasoning);
                    said.trim_start().clone_into(&mut output.content);
                }
                Some((thought, None)) => {
                    let held =
                        (1.."</think>".len()).rev().find(|len| partial && thought.ends_with(&"</think>"[..*len]));
                    thought[..thought.len() - held.unwrap_or(0)].clone_into(&mut output.reasoning);
                }
            }
            Ok(output)
        }
    }

    fn form() -> ReplyForm {
        ReplyForm { thinking_start: "<think>".into(), thinking_end: "</think>".into(), ..ReplyForm::default() }
    }

    fn generic(starts_thinking: bool) -> GenericParser {
        let ReplyForm { thinking_start, thinking_end, .. } = form();
        let inner = Arc::new(Thinker { opened: starts_thinking });
        GenericParser { inner, thinking_start, thinking_end, starts_thinking }
    }

    /// Counts the bytes that are parsed.
    struct Counted<'p>(&'p dyn ChatParser, AtomicUsize);

    impl ChatParser for Counted<'_> {
        fn parse(&self, generated: &str, partial: bool) -> Result<ChatOutput, ChatError> {
            self.1.fetch_add(generated.len(), Ordering::Relaxed);
            self.0.parse(generated, partial)
        }
    }

    /// Everything that was told, piece by piece and at the end.
    fn told(parser: &dyn ChatParser, form: &ReplyForm, pieces: &[String]) -> (ChatOutput, String) {
        let (mut growing, mut raw, mut sum) = (Growing::default(), String::new(), ChatOutput::default());
        let mut add = |delta: Delta| {
            sum.content.push_str(&delta.content);
            sum.reasoning.push_str(&delta.reasoning);
            for call in delta.calls {
                if let Some((_, name)) = call.start {
                    sum.tool_calls.push(ChatToolCall { name, ..ChatToolCall::default() });
                }
                sum.tool_calls[call.index].arguments.push_str(&call.arguments);
            }
        };
        for piece in pieces {
            raw.push_str(piece);
            growing.more(&raw, parser, form).into_iter().for_each(&mut add);
        }
        if let Ok(whole) = parser.parse(&raw, false) {
            add(growing.rest(&whole));
        }
        (sum, raw)
    }

    fn long(text: &str) -> String {
        text.repeat(80)
    }

    fn piece() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => prop::sample::select(vec![
                "word ", "é", "\n", " ", "<", "<tool_call>", "</tool_call>", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
                "x", "<think>", "</think>", "<<<<<<<<",
            ]).prop_map(str::to_owned),
            2 => prop::sample::select(vec!["plain text. ", "let x = a < b;\n", "ééé ", "<<<<<<<<", "        "]).prop_map(long),
        ]
    }

    proptest! {
        #[test]
        fn the_pieces_add_up_to_the_parse(pieces in prop::collection::vec(piece(), 0..14)) {
            for starts_thinking in [false, true] {
                let form = ReplyForm { starts_thinking, ..form() };
                let (with_calls, without) = (generic(starts_thinking), Thinker { opened: starts_thinking });
                let parsers: [&dyn ChatParser; 2] = [&with_calls, &without];
                for parser in parsers {
                    let (sum, raw) = told(parser, &form, &pieces);
                    if let Ok(whole) = parser.parse(&raw, false) {
                        prop_assert_eq!(&sum, &whole);
                    }
                }
            }
        }
    }

    #[test]
    fn white_space_before_a_mark_is_not_taken_for_content() {
        let pieces = [
            long("        "),
            "<think>".into(),
            "<tool_call>".into(),
            "{\"name\": \"f\", \"arguments\": {\"a\": 1}}".into(),
        ];
        let parser = generic(false);
        let (sum, raw) = told(&parser, &form(), &pieces);
        assert_eq!(Some(sum), parser.parse(&raw, false).ok());
    }

    #[test]
    fn a_long_reply_costs_little_more_than_its_length() {
        let inner = generic(false);
        let call = format!(
            "<tool_call>{{\"name\": \"f\", \"arguments\": {{\"text\": \"{}\"}}}}</tool_call>",
            long(&long("written "))
        );
        for text in
            [long(&long("word <b> ")), format!("<think>{}</think>{}", long(&long("hm ")), long(&long("so "))), call]
        {
            let parser = Counted(&inner, AtomicUsize::new(0));
            let pieces: Vec<String> =
                text.as_bytes().chunks(4).map(|part| String::from_utf8(part.to_vec()).unwrap()).collect();
            let (sum, raw) = told(&parser, &form(), &pieces);
            assert_eq!(Some(sum), inner.parse(&raw, false).ok());
            let parsed = parser.1.load(Ordering::Relaxed);
            assert!(
                parsed < 400 * text.len(),
                "{parsed} bytes parsed for {}; each piece anew would be {}",
                text.len(),
                text.len() * text.len() / 8
            );
        }
    }

    #[cfg(feature = "llama")]
    #[test]
    fn llama_cpps_own_parser_can_be_asked_about_a_tail() {
        use crate::backend::llama::LlamaBackend;
        use crate::backend::{Backend as _, ChatRequest, ModelOptions};

        let path = poncho_testkit::default_model_path();
        let model = LlamaBackend.load_model(&ModelOptions { vocab_only: true, ..ModelOptions::new(path) }).unwrap();
        let messages_json = r#"[{"role":"user","content":"x"}]"#.to_owned();
        let inner = model.apply_chat_template(&ChatRequest { messages_json, ..ChatRequest::default() }).unwrap().parser;
        let parser = GenericParser { inner, ..generic(false) };
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
        for text in [long("word <b> é "), format!("{}\n{call}", long("Look: ")), call.to_owned()] {
            let counted = Counted(&parser, AtomicUsize::new(0));
            let pieces: Vec<String> = text.chars().map(String::from).collect();
            let (sum, raw) = told(&counted, &ReplyForm::default(), &pieces);
            assert_eq!(Some(sum), parser.parse(&raw, false).ok());
            assert!(counted.1.load(Ordering::Relaxed) < 600 * text.len());
        }
    }

    #[test]
    fn a_text_only_grows() {
        let mut told = String::new();
        assert_eq!(grown(&mut told, 0, "Hé"), "Hé");
        assert_eq!(grown(&mut told, 0, "Hé"), "");
        assert_eq!(grown(&mut told, 0, "Hx"), "", "what was sent is not taken back");
        assert_eq!(grown(&mut told, 0, "Héllo"), "llo");
        assert_eq!(grown(&mut told, 6, " you"), " you");
        assert_eq!(told, "Héllo you");
    }
}
