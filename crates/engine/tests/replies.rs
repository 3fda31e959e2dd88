//! What a reply is made of: stops, characters, thinking, tool calls, log probabilities, and why it ends.

use poncho_engine::SigningKey;
use poncho_engine::backend::MemoryKind;
use poncho_engine::backend::stub::StubBackend;
use poncho_engine::backend::stub::vocab::{EOS, THINK_CLOSE, THINK_OPEN, TOOL_CLOSE, TOOL_OPEN};
use poncho_engine::reply::markers::{MarkerSet, ThinkingMarkers, ToolMarkers};
use poncho_engine::{
    Completion, EngineError, FinishReason, Grammar, GrammarSource, ModelConfig, Request, Sampling, StreamEvent,
    Thinking,
};

use crate::stub::{bench, bench_with, roomy, words};
use crate::support::{greedy, memory_cache, prompt};

/// Everything that one request sent.
struct Said {
    events: Vec<StreamEvent>,
    done: Completion,
}

impl Said {
    fn join(&self, pick: impl Fn(&StreamEvent) -> Option<&str>) -> String {
        self.events.iter().filter_map(pick).collect()
    }

    fn text(&self) -> String {
        self.join(|event| if let StreamEvent::Text(text) = event { Some(text) } else { None })
    }

    fn thinking(&self) -> String {
        self.join(|event| if let StreamEvent::ThinkingDelta(text) = event { Some(text) } else { None })
    }

    fn tool_call(&self) -> String {
        self.join(|event| if let StreamEvent::ToolCallDelta(text) = event { Some(text) } else { None })
    }

    fn signatures(&self) -> Vec<Option<[u8; 32]>> {
        let ends = self.events.iter();
        ends.filter_map(
            |event| if let StreamEvent::ThinkingEnd { signature } = event { Some(*signature) } else { None },
        )
        .collect()
    }

    fn calls(&self) -> Vec<String> {
        let ends = self.events.iter();
        ends.filter_map(|event| if let StreamEvent::ToolCallEnd { bytes } = event { Some(bytes.clone()) } else { None })
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .collect()
    }
}

/// The prompt of every scripted reply.
const PROMPT: &str = "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n";

/// Sends a request to a model that most likely gives this reply.
fn say(config: ModelConfig, reply: &str, request: Request) -> Said {
    let backend = StubBackend::new(MemoryKind::Attention).with_reply(&request.tokens, &words(reply));
    let bench = bench_with(config, &backend, &memory_cache());
    let mut events: Vec<StreamEvent> = bench.model.submit(request).unwrap().collect();
    let Some(StreamEvent::Done(done)) = events.pop() else { panic!("{events:?}") };
    let said = Said { events, done: *done };
    assert_eq!(said.text(), said.done.reply);
    said
}

fn ask(max_tokens: u32) -> Request {
    Request { ignore_eos: false, ..greedy(&words(PROMPT), max_tokens) }
}

#[test]
fn a_stop_sequence_over_several_tokens_is_cut_out() {
    let stop = |stop: &[&str]| Request { stop: stop.iter().map(|&stop| stop.to_owned()).collect(), ..ask(60) };
    let reply = "One ENormous EN, then END and more</s>";
    let said = say(roomy(), reply, stop(&["never", "END"]));
    assert_eq!(said.done.reply, "One ENormous EN, then ");
    assert_eq!((said.done.finish_reason, said.done.stop_sequence.as_deref()), (FinishReason::Stop, Some("END")));
    assert_eq!(said.done.generated, words("One ENormous EN, then END"), "what was drawn stays what it was");
    // A start of a stop sequence that the reply ends with belongs to it.
    let said = say(roomy(), "at the EN</s>", stop(&["END"]));
    assert_eq!((said.done.reply.as_str(), said.done.stop_sequence), ("at the EN", None));
    let said = say(roomy(), "at the END", Request { max_tokens: Some(9), ..stop(&["END"]) });
    assert_eq!((said.done.reply.as_str(), said.done.finish_reason), ("at the EN", FinishReason::Length));
    // The first byte at which any is complete; the longest of those that end there.
    let said = say(roomy(), "a cat sat</s>", stop(&["sat", "t", "cat"]));
    assert_eq!((said.done.reply.as_str(), said.done.stop_sequence.as_deref()), ("a ", Some("cat")));
}

#[test]
fn characters_come_whole() {
    let reply = "nö € 😀!";
    let said = say(roomy(), &format!("{reply}</s>"), ask(60));
    assert_eq!(said.done.reply, reply);
    assert_eq!(said.done.generated.len(), reply.len() + 1, "every byte is a token");
    let texts: Vec<&str> = said
        .events
        .iter()
        .filter_map(|event| if let StreamEvent::Text(text) = event { Some(text.as_str()) } else { None })
        .collect();
    assert_eq!(texts, ["n", "ö", " ", "€", " ", "😀", "!"]);
    // Cut in the middle of a character: what can never become one is shown as such.
    let said = say(roomy(), reply, ask(u32::try_from("nö €".len()).unwrap() - 1));
    assert_eq!((said.done.reply.as_str(), said.done.finish_reason), ("nö \u{fffd}", FinishReason::Length));
}

fn thinking(signing_key: Option<SigningKey>) -> ModelConfig {
    let thinking = ThinkingMarkers { open: vec![THINK_OPEN], close: vec![vec![THINK_CLOSE]] };
    ModelConfig { markers: MarkerSet { thinking: Some(thinking), tool_call: None }, signing_key, ..roomy() }
}

#[test]
fn a_thinking_block_is_apart_from_the_reply_and_signed() {
    let key = SigningKey::new(b"secret").unwrap();
    let reply = "<think>hm, nö</think>Answer.</s>";
    let said = say(thinking(Some(key.clone())), reply, ask(60));
    assert_eq!((said.thinking().as_str(), said.done.reply.as_str()), ("hm, nö", "Answer."));
    assert_eq!(said.done.generated, words(reply));
    let [Some(signature)] = said.signatures()[..] else { panic!("{:?}", said.signatures()) };
    assert!(key.is_signed("hm, nö".as_bytes(), &signature));
    assert!(!key.is_signed("hm, no".as_bytes(), &signature));
    assert_eq!(say(thinking(None), reply, ask(60)).signatures(), [None]);
    // A block that the reply's end closes is signed too, and so is one that the prompt opened.
    let said = say(thinking(Some(key.clone())), "<think>on and on", ask(7));
    let [Some(signature)] = said.signatures()[..] else { panic!("{:?}", said.signatures()) };
    assert!(key.is_signed(b"on and", &signature));
    let opened = Request { tokens: words(&format!("{PROMPT}<think>\n")), ..ask(60) };
    let said = say(thinking(Some(key)), "so</think>Yes.</s>", opened);
    assert_eq!((said.thinking().as_str(), said.done.reply.as_str(), said.signatures().len()), ("so", "Yes.", 1));
}

#[test]
fn markers_of_several_tokens_are_found_and_what_only_looks_like_one_is_text() {
    let markers = ThinkingMarkers { open: words("[T]"), close: vec![words("[/T]")] };
    let config = ModelConfig { markers: MarkerSet { thinking: Some(markers), tool_call: None }, ..roomy() };
    let said = say(config.clone(), "[T[T]a[/b[/T]c[T</s>", ask(60));
    assert_eq!((said.thinking().as_str(), said.done.reply.as_str()), ("a[/b", "[Tc[T"));
    // A budget closes with the whole marker.
    let said = say(config, "[T]abcdefgh", Request { thinking_budget: Some(4), ..ask(20) });
    assert_eq!(said.done.generated[..11], words("[T]abcd[/T]"));
    assert_eq!(said.thinking(), "abcd");
}

#[test]
fn a_request_may_bring_its_own_thinking_markers() {
    let markers = ThinkingMarkers { open: words("[T]"), close: vec![words("[/T]")] };
    let own = Request { thinking_markers: Some(markers), thinking_budget: Some(2), ..ask(14) };
    for config in [roomy(), thinking(None)] {
        let said = say(config, "[T]abcdefgh", own.clone());
        assert_eq!(said.done.generated[..9], words("[T]ab[/T]"));
        assert_eq!(said.thinking(), "ab");
    }
    let said = say(roomy(), "[T]ab[/T]c</s>", ask(14));
    assert_eq!((said.thinking().as_str(), said.text().as_str()), ("", "[T]ab[/T]c"), "others are not asked");
}

#[test]
fn the_first_event_says_what_was_found_of_the_prompt() {
    let prompt = words(&"A long enough prompt. ".repeat(8));
    let bench = bench_with(roomy(), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let first = || {
        let events: Vec<StreamEvent> = bench.model.submit(greedy(&prompt, 3)).unwrap().collect();
        let Some(StreamEvent::Done(done)) = events.last() else { panic!("{events:?}") };
        assert_eq!(events.iter().filter(|event| matches!(event, StreamEvent::Started { .. })).count(), 1);
        assert_eq!(events[0], StreamEvent::Started { prompt: prompt.len(), cached_tokens: done.cached_tokens });
        done.cached_tokens
    };
    assert_eq!(first(), 0);
    assert!(first() >= prompt.len() - 1);
}

#[test]
fn a_prompt_of_several_batches_reports_how_far_it_is() {
    let prompt = words(&"A long enough prompt. ".repeat(20));
    let bench = bench_with(roomy(), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let events: Vec<StreamEvent> = bench.model.submit(greedy(&prompt, 1)).unwrap().collect();
    let read: Vec<usize> = events
        .iter()
        .filter_map(|event| match event {
            StreamEvent::Progress { prompt: all, processed_tokens, .. } => {
                assert_eq!(*all, prompt.len());
                Some(*processed_tokens)
            }
            _ => None,
        })
        .collect();
    assert!(!read.is_empty() && read.is_sorted() && read.iter().all(|read| *read < prompt.len()), "{read:?}");
    let first_token = events.iter().position(|event| matches!(event, StreamEvent::Token { .. })).unwrap();
    let last_report = events.iter().rposition(|event| matches!(event, StreamEvent::Progress { .. })).unwrap();
    assert!(last_report < first_token, "nothing is reported once the prompt is read");
}

#[test]
fn a_budget_closes_the_block_and_off_closes_it_at_once() {
    let reply = "<think>abcdefgh</think>Answer.</s>";
    let said = say(thinking(None), reply, Request { thinking_budget: Some(3), ..ask(12) });
    assert_eq!(said.done.generated[..5], words("<think>abc</think>"));
    assert_eq!((said.thinking().as_str(), said.signatures().len()), ("abc", 1));
    assert_eq!(said.done.generated.len(), 12, "the reply goes on");
    let said = say(thinking(None), reply, Request { thinking: Thinking::Off, ..ask(12) });
    assert_eq!(said.done.generated[..2], [THINK_OPEN, THINK_CLOSE]);
    assert_eq!((said.thinking().as_str(), said.signatures().len()), ("", 1));
    let opened = Request { tokens: words(&format!("{PROMPT}<think>")), thinking: Thinking::Off, ..ask(12) };
    let said = say(thinking(None), "never said", opened);
    assert_eq!((said.done.generated[0], said.thinking().as_str()), (THINK_CLOSE, ""));
    let said = say(thinking(None), reply, Request { thinking: Thinking::On, thinking_budget: Some(8), ..ask(60) });
    assert_eq!((said.thinking().as_str(), said.done.reply.as_str()), ("abcdefgh", "Answer."));
}

fn tools(payload: Option<(&str, &str)>) -> ModelConfig {
    let payload = payload.map(|(open, close)| (words(open), words(close)));
    let tool_call = ToolMarkers { open: vec![TOOL_OPEN], close: vec![TOOL_CLOSE], payload };
    ModelConfig { markers: MarkerSet { thinking: None, tool_call: Some(tool_call) }, ..roomy() }
}

#[test]
fn a_tool_call_comes_byte_for_byte() {
    let (one, two) = ("<tool_call>{\"a\": \"nö <s>\"}</tool_call>", "<tool_call>[]</tool_call>");
    let said = say(tools(None), &format!("Look: {one} and {two}.</s>"), ask(120));
    assert_eq!((said.done.reply.as_str(), said.done.finish_reason), ("Look:  and .", FinishReason::Stop));
    assert_eq!(said.calls(), [one, two]);
    assert_eq!(said.tool_call(), format!("{one}{two}"));
    let said = say(tools(None), one, ask(7));
    assert_eq!((said.calls(), said.done.finish_reason), (vec!["<tool_call>{\"a\": ".to_owned()], FinishReason::Length));
    // A stop sequence is looked for in the reply, not in a call.
    let said =
        say(tools(None), &format!("{one}a!b</s>"), Request { stop: vec!["\"a\"".into(), "!".into()], ..ask(60) });
    assert_eq!((said.calls(), said.done.reply.as_str()), (vec![one.to_owned()], "a"));
}

#[test]
fn a_request_for_raw_text_gets_every_byte_in_order() {
    let reply = "Well<think>hm, nö END</think>Look: <tool_call>{\"a\": 1}</tool_call>EN.";
    let MarkerSet { thinking, .. } = thinking(None).markers;
    let key = SigningKey::new(b"secret").unwrap();
    let config = ModelConfig {
        markers: MarkerSet { thinking, ..tools(None).markers },
        signing_key: Some(key.clone()),
        ..roomy()
    };
    let raw = Request { raw_text: true, stop: vec!["END".into(), "ll<".into()], ..ask(80) };
    let said = say(config.clone(), &format!("{reply}END and more"), raw.clone());
    assert_eq!((said.text().as_str(), said.done.stop_sequence.as_deref()), (reply, Some("END")));
    assert_eq!((said.thinking(), said.tool_call()), (String::new(), String::new()));
    let [Some(signature)] = said.signatures()[..] else { panic!("{:?}", said.signatures()) };
    assert!(key.is_signed("hm, nö END".as_bytes(), &signature), "the text of the block is signed, not its markers");
    let said = say(config, "<think>abcdefgh", Request { thinking_budget: Some(3), ..raw });
    assert!(said.text().starts_with("<think>abc</think>"), "{}", said.text());
}

#[test]
fn syntax_is_drawn_greedily_and_the_payload_as_the_request_says() {
    let call = "<tool_call>{\"name\": \"look\", \"arguments\": {\"where\": \"up\"}}</tool_call>";
    // Hot enough that a script is left within a few tokens.
    let hot = |seed| {
        let sampling =
            Sampling { temperature: 6.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: Some(seed), ..Sampling::default() };
        Request { sampling, ..greedy(&words(PROMPT), u32::try_from(words(call).len()).unwrap()) }
    };
    let seed = (0..200).find(|seed| say(tools(None), call, hot(*seed)).done.generated[0] == TOOL_OPEN).unwrap();
    let said = say(tools(None), call, hot(seed));
    assert_eq!(said.done.generated, words(call), "every token after the marker is the most likely one");
    assert_ne!(say(roomy(), call, hot(seed)).done.generated, words(call), "without markers it is not");
    let said = say(tools(Some((": {", "}}"))), call, hot(seed));
    let syntax = words("<tool_call>{\"name\": \"look\", \"arguments\": {");
    assert_eq!(said.done.generated[..syntax.len()], syntax);
    assert_ne!(said.done.generated, words(call), "the payload is drawn hot");
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let bench = bench(MemoryKind::Attention);
    let hot = Sampling { temperature: 1.3, seed: Some(3), frequency_penalty: 1.0, ..Sampling::default() };
    let request = Request { logprobs: Some(5), ..greedy(&prompt(1, 20), 30) };
    let best = bench.model.complete(request.clone()).unwrap();
    let drawn = bench.model.complete(Request { sampling: hot, ..request.clone() }).unwrap();
    for (completion, is_best) in [(&best, true), (&drawn, false)] {
        assert_eq!(completion.logprobs.len(), 30);
        for (entry, token) in completion.logprobs.iter().zip(&completion.generated) {
            assert_eq!((entry.token.id, &entry.token.bytes), (*token, &bench.model.token_bytes(*token)));
            assert!(entry.top.is_sorted_by(|one, two| one.logprob >= two.logprob));
            assert!(entry.top.len() == 5 && entry.token.logprob <= entry.top[0].logprob && entry.top[0].logprob <= 0.0);
            assert!(entry.top.iter().map(|top| f64::from(top.logprob).exp()).sum::<f64>() <= 1.0 + 1e-6);
            let listed = entry.top.iter().find(|top| top.id == entry.token.id);
            assert!(listed.is_none_or(|listed| *listed == entry.token));
            assert!(!is_best || entry.top[0] == entry.token);
        }
    }
    assert_eq!(best.logprobs[0].top, drawn.logprobs[0].top, "the sampler does not change what is reported");
    let bare = bench.model.complete(Request { logprobs: Some(0), ..request.clone() }).unwrap();
    assert!(bare.logprobs.len() == 30 && bare.logprobs.iter().all(|entry| entry.top.is_empty()));
    assert!(bench.model.complete(Request { logprobs: None, ..request }).unwrap().logprobs.is_empty());
}

#[test]
fn a_reply_ends_for_the_right_reason() {
    let said = say(roomy(), "ab</s>cd</s>", ask(60));
    assert_eq!((said.done.reply.as_str(), said.done.finish_reason), ("ab", FinishReason::Stop));
    assert_eq!((said.done.generated.last(), said.done.completion_tokens), (Some(&EOS), 3));
    let said = say(roomy(), "ab</s>cd", Request { ignore_eos: true, ..ask(5) });
    assert_eq!((said.done.reply.as_str(), said.done.finish_reason), ("abcd", FinishReason::Length));
    let said = say(roomy(), "<|im_end|>ab", Request { shown_tokens: words("<|im_end|>"), ignore_eos: true, ..ask(3) });
    assert_eq!(said.done.reply, "<|im_end|>ab");
    let said = say(roomy(), "abc", ask(2));
    assert_eq!((said.done.generated.len(), said.done.finish_reason), (2, FinishReason::Length));
    // Without a limit the context is one.
    let bench = bench(MemoryKind::Attention);
    let endless = Request { max_tokens: None, ..greedy(&prompt(1, 500), 1) };
    let completion = bench.model.complete(endless).unwrap();
    assert_eq!((completion.completion_tokens, completion.finish_reason), (12, FinishReason::Length));
    assert_eq!((completion.context_tokens.len(), completion.committed_tokens), (512, 511));
}

#[test]
fn a_grammar_ends_a_reply_when_it_is_complete_or_stuck() {
    let gbnf = |text: &str| {
        let source = GrammarSource::Gbnf { text: text.to_owned(), root: "root".to_owned() };
        Request { grammar: Some(Grammar { source, triggers: Vec::new(), accepted: Vec::new() }), ..ask(60) }
    };
    let said = say(roomy(), "nonsense", gbnf("root ::= \"yes\""));
    assert_eq!((said.done.reply.as_str(), said.done.finish_reason), ("yes", FinishReason::Stop));
    let said = say(roomy(), "nonsense", gbnf("root ::= \"a\" [^\\x00-\\xff]"));
    assert_eq!((said.done.reply.as_str(), said.done.finish_reason), ("a", FinishReason::Stop));
    let schema = GrammarSource::JsonSchema(r#"{"enum": ["red", "blue"]}"#.to_owned());
    let grammar = Some(Grammar { source: schema, triggers: Vec::new(), accepted: Vec::new() });
    let said = say(roomy(), "nonsense", Request { grammar, ..ask(60) });
    assert!(["\"red\"", "\"blue\""].contains(&said.done.reply.as_str()), "{}", said.done.reply);
    let bench = bench(MemoryKind::Attention);
    let refused = bench.model.submit(gbnf("root ::= (")).unwrap_err();
    assert!(matches!(refused, EngineError::GrammarInvalid { .. }), "{refused:?}");
    assert_eq!(bench.model.status().queue_depth, 0);
}
