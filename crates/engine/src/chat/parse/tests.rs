//! The pieces of a reply add up to its parse, and parsing costs no more than its bound.

use std::sync::Arc;

use poncho_api::ChatToolCall;
use proptest::prelude::*;

use super::cost::{Counted, ParseCost, ReplyShape, Thinker, generic, marks, parse_cost};
use super::*;

/// Everything that was sent, piece by piece and at the end, and the whole text.
fn sum(parser: &Arc<dyn ChatParser>, marks: &ReplyMarks, pieces: &[String]) -> (ChatOutput, String) {
    let mut sum = ChatOutput::default();
    let (mut reply, mut sent) = (ReplyParser::new(Arc::clone(parser), marks), Sent::new(None, usize::MAX));
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
        reply.push(piece);
        add(reply.advance(&mut sent));
    }
    if let Ok(whole) = reply.whole(false) {
        add(sent.update(&whole));
    }
    (sum, pieces.concat())
}

fn long(text: &str) -> String {
    text.repeat(80)
}

fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "word ", "é", "\n", " ", "<", "<tool_call>", "</tool_call>", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
            "x", "<think>", "</think>", "<<<<<<<<", "<tool_", "call>", "</thi", "nk>",
        ]).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["plain text. ", "let x = a < b;\n", "ééé ", "<<<<<<<<", "        "]).prop_map(long),
    ]
}

proptest! {
    #[test]
    fn the_pieces_add_up_to_the_parse(pieces in prop::collection::vec(piece(), 0..14)) {
        for starts_thinking in [false, true] {
            let parsers: [Arc<dyn ChatParser>; 2] =
                [Arc::new(generic(starts_thinking)), Arc::new(Thinker { opened: starts_thinking })];
            for parser in parsers {
                let counted = Arc::new(Counted::new(Arc::clone(&parser)));
                let (sum, raw) = sum(&(Arc::clone(&counted) as _), &marks(), &pieces);
                prop_assert!(counted.bytes() <= ParseCost::bound(raw.len()));
                if let Ok(whole) = parser.parse(&raw, false) {
                    prop_assert_eq!(&sum, &whole);
                }
            }
        }
    }
}

#[test]
fn white_space_before_a_mark_is_not_taken_for_content() {
    let call = "{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
    let parser: Arc<dyn ChatParser> = Arc::new(generic(false));
    for start in ["", "Look:"] {
        let pieces = [start.to_owned(), long("        "), "<think>".into(), "<tool_call>".into(), call.into()];
        let (sum, raw) = sum(&parser, &marks(), &pieces);
        assert_eq!(Some(sum), parser.parse(&raw, false).ok());
    }
}

#[test]
fn text_streams_with_every_piece_and_a_mark_is_never_sent() {
    let parser: Arc<dyn ChatParser> = Arc::new(generic(false));
    let (mut reply, mut sent) = (ReplyParser::new(parser, &marks()), Sent::new(None, usize::MAX));
    let mut said = Vec::new();
    for piece in ["One", " two", " <", "b> ", "three", " <tool_", "call>{\"name\": \"f\", \"argu"] {
        reply.push(piece);
        said.push(reply.advance(&mut sent));
    }
    let contents: Vec<&str> = said.iter().map(|delta| delta.content.as_str()).collect();
    assert_eq!(contents, ["One", " two", "", " <b>", " three", "", ""]);
    assert_eq!(said.iter().map(|delta| delta.calls.len()).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_form_with_unknown_marks_is_always_parsed() {
    let unknown = ReplyMarks { texts: Vec::new(), end_content: false, end_thinking: false };
    let counted = Arc::new(Counted::new(Arc::new(generic(false))));
    let pieces: Vec<String> = long("word ").split_inclusive(' ').map(str::to_owned).collect();
    let (_, raw) = sum(&(Arc::clone(&counted) as _), &unknown, &pieces);
    assert_eq!(counted.parses(), pieces.len() + 1);
    assert!(counted.bytes() <= ParseCost::bound(raw.len()));
}

#[test]
fn the_cost_of_a_long_reply_is_linear() {
    for tokens in [1000, 2000, 4000, 8000] {
        for shape in [ReplyShape::Content, ReplyShape::Thinking] {
            let cost = parse_cost(shape, tokens);
            // The end and the marks are parsed; what lies between is not.
            assert!(cost.parses <= 12 && cost.parsed_bytes <= 4 * cost.reply_bytes, "{shape:?} {tokens}: {cost:?}");
        }
        let cost = parse_cost(ReplyShape::Call, tokens);
        assert!(cost.parsed_bytes <= ParseCost::bound(cost.reply_bytes), "{tokens}: {cost:?}");
    }
}

#[test]
fn a_reply_full_of_marks_keeps_to_the_bound() {
    let counted = Arc::new(Counted::new(Arc::new(generic(false))));
    let pieces: Vec<String> = std::iter::repeat_n("so <think> ".to_owned(), 4000).collect();
    let (sum, raw) = sum(&(Arc::clone(&counted) as _), &marks(), &pieces);
    assert_eq!(sum.content, raw);
    assert!(counted.bytes() <= ParseCost::bound(raw.len()), "{} for {}", counted.bytes(), raw.len());
}

#[cfg(feature = "llama")]
#[test]
fn llama_cpps_own_parser_adds_up_too() {
    use crate::backend::llama::LlamaBackend;
    use crate::backend::{Backend as _, ChatRequest, ModelOptions};
    use crate::chat::tools::GenericParser;

    let path = poncho_testkit::default_model_path();
    let model = LlamaBackend.load_model(&ModelOptions { vocab_only: true, ..ModelOptions::new(path) }).unwrap();
    let messages_json = r#"[{"role":"user","content":"x"}]"#.to_owned();
    let inner = model.apply_chat_template(&ChatRequest { messages_json, ..ChatRequest::default() }).unwrap().parser;
    let parser: Arc<dyn ChatParser> = Arc::new(GenericParser { inner, ..generic(false) });
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    for text in [long("word <b> é "), format!("{}\n{call}", long("Look: ")), call.to_owned()] {
        let counted = Arc::new(Counted::new(Arc::clone(&parser)));
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let (sum, raw) = sum(&(Arc::clone(&counted) as _), &marks(), &pieces);
        assert_eq!(Some(sum), parser.parse(&raw, false).ok());
        assert!(counted.bytes() <= ParseCost::bound(raw.len()));
    }
}
