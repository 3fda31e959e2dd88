//! Drafts change the time of a reply and nothing else: the same events with and without them, whatever a request asks for.

use std::num::NonZeroUsize;
use std::sync::Arc;

use poncho_cache::{Cache, OwnerId};
use poncho_engine::backend::stub::vocab::{THINK_CLOSE, THINK_OPEN, TOOL_CLOSE, TOOL_OPEN};
use poncho_engine::backend::stub::{DecodeFault, StubBackend};
use poncho_engine::backend::{ContextOptions, KvLayout, MemoryKind};
use poncho_engine::reply::markers::{MarkerSet, ThinkingMarkers, ToolMarkers};
use poncho_engine::{
    Completion, DraftObstacle, DraftReport, DraftRule, Drafts, Exactness, FinishReason, Grammar, GrammarSource,
    ModelConfig, Privacy, Request, Sampling, Stream, StreamEvent, Tenant,
};

use crate::stub::{
    Bench, KINDS, assert_idle, assert_serves, bench_with, eventually, roomy, roomy_with, submit_together,
    until_first_token, words,
};
use crate::support::{greedy, memory_cache, prompt};

/// What a caller can see of a reply, without times and without how it was computed.
#[derive(Debug, PartialEq)]
struct Seen {
    events: Vec<StreamEvent>,
    generated: Vec<u32>,
    context: Vec<u32>,
    committed: usize,
    finish: FinishReason,
    stop: Option<String>,
    reply: String,
}

fn seen(stream: Stream) -> (Seen, DraftReport) {
    let mut events: Vec<StreamEvent> = stream.collect();
    let Some(StreamEvent::Done(done)) = events.pop() else { panic!("{events:?}") };
    // Progress depends on the ticks that others take.
    events.retain(|event| !matches!(event, StreamEvent::Started { .. } | StreamEvent::Progress { .. }));
    let Completion { generated, context_tokens: context, committed_tokens: committed, drafts, .. } = *done;
    let (finish, stop, reply) = (done.finish_reason, done.stop_sequence, done.reply);
    // What was saved is a time.
    (Seen { events, generated, context, committed, finish, stop, reply }, DraftReport { saved_micros: 0, ..drafts })
}

fn always(config: ModelConfig) -> ModelConfig {
    let drafts = if config.drafts == Drafts::Off { Drafts::Auto } else { config.drafts };
    ModelConfig { drafts, draft_rule: DraftRule::Always, ..config }
}

fn off(config: ModelConfig) -> ModelConfig {
    ModelConfig { drafts: Drafts::Off, ..config }
}

/// A batch holds a step of it beside all sequences.
const GRID: NonZeroUsize = NonZeroUsize::MIN.saturating_add(31);

/// A reply that repeats itself, so that its own tokens guess it.
const PROMPT: &str = "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n";
const REFRAIN: &str = "the quick brown fox; the quick brown fox, the quick brown cat; the quick brown END of it</s>";

fn ask(max_tokens: u32) -> Request {
    Request { ignore_eos: false, ..greedy(&words(PROMPT), max_tokens) }
}

/// Sends a request to two models that most likely give this reply, one with drafts and one without, and compares what they
/// send. Returns what drafts did.
fn compare(config: &ModelConfig, reply: &str, request: &Request) -> DraftReport {
    let answer = |config: ModelConfig| {
        let backend = StubBackend::new(MemoryKind::Attention).with_reply(&request.tokens, &words(reply));
        let bench = bench_with(config, &backend, &memory_cache());
        let answer = seen(bench.model.submit(request.clone()).unwrap());
        assert_idle(&bench);
        answer
    };
    let (without, none) = answer(off(config.clone()));
    let (with, report) = answer(always(config.clone()));
    assert_eq!(without, with);
    assert_eq!((none.drafted, none.accepted), (0, 0));
    let drawn = with.events.iter().filter(|event| matches!(event, StreamEvent::Token { .. })).count();
    assert_eq!(
        report.steps + report.accepted,
        drawn.saturating_sub(1),
        "the first token is drawn from the prompt's logits"
    );
    report
}

#[test]
fn replies_with_and_without_drafts_are_equal() {
    let gbnf = |text: &str| {
        let source = GrammarSource::Gbnf { text: text.to_owned(), root: "root".to_owned() };
        Some(Grammar { source, triggers: Vec::new(), accepted: Vec::new() })
    };
    let seeded = |temperature: f32| Sampling { temperature, seed: Some(7), ..Sampling::default() };
    let penalties = Sampling { repetition_penalty: 1.1, presence_penalty: 0.4, frequency_penalty: 0.1, ..seeded(0.5) };
    let cases = [
        ("greedy", ask(200)),
        ("seeded", Request { sampling: seeded(0.9), ..ask(200) }),
        ("penalties", Request { sampling: penalties, ..ask(200) }),
        ("grammar", Request { grammar: gbnf("root ::= [a-z ;,]+ \"END\""), sampling: seeded(0.9), ..ask(200) }),
        ("log probabilities", Request { logprobs: Some(3), ..ask(200) }),
        ("a stop sequence", Request { stop: vec!["never".to_owned(), "END".to_owned()], ..ask(200) }),
        ("a limit", ask(43)),
        ("no end", Request { ignore_eos: true, ..ask(120) }),
        ("raw text", Request { raw_text: true, ..ask(200) }),
    ];
    for (name, request) in cases {
        let report = compare(&roomy(), REFRAIN, &request);
        assert!(report.accepted > 5 && report.drafted > report.accepted, "{name}: {report:?}");
    }
}

#[test]
fn thinking_and_tool_calls_are_equal_too() {
    let thinking = ThinkingMarkers { open: vec![THINK_OPEN], close: vec![vec![THINK_CLOSE]] };
    let tool_call = ToolMarkers { open: vec![TOOL_OPEN], close: vec![TOOL_CLOSE], payload: None };
    let config = ModelConfig { markers: MarkerSet { thinking: Some(thinking), tool_call: Some(tool_call) }, ..roomy() };
    let call = r#"<tool_call>{"name":"read","path":"/a/file"}</tool_call>"#;
    let reply = format!("<think>a file, a file, a file</think>So: {call} and {call}</s>");
    let sampling = Sampling { temperature: 0.9, seed: Some(3), ..Sampling::default() };
    let requests = [ask(200), Request { sampling, ..ask(200) }, Request { thinking_budget: Some(11), ..ask(200) }];
    for request in requests {
        let report = compare(&config, &reply, &request);
        // A block that is closed early goes on unlike the script.
        assert!(report.accepted > 5 || (request.thinking_budget.is_some() && report.drafted > 0), "{report:?}");
    }
}

/// A model that drafts from what is stored, and has stored the reply to a request.
fn taught(config: ModelConfig, backend: &StubBackend, cache: &Arc<Cache>, request: &Request) -> (Bench, Seen) {
    let bench = bench_with(always(config), backend, cache);
    let (first, _) = seen(bench.model.submit(request.clone()).unwrap());
    eventually("an index of the reply", || is_indexed(&bench, first.committed));
    (bench, first)
}

fn is_indexed(bench: &Bench, tokens: usize) -> bool {
    bench.model.status().drafts.index_tokens >= tokens as u64
}

/// What drafts do for a plain request without any stored conversation.
fn by_chance() -> DraftReport {
    let bench = bench_with(always(roomy()), &StubBackend::new(MemoryKind::Attention), &memory_cache());
    let (_, report) = seen(bench.model.submit(plain(1)).unwrap());
    assert!(report.accepted < 10, "{report:?}");
    report
}

/// A request for a reply in which only letters repeat.
fn plain(number: u32) -> Request {
    greedy(&prompt(number, 60), 40)
}

#[test]
fn a_stored_conversation_is_guessed_when_it_comes_again_also_after_a_restart() {
    let (backend, cache) = (StubBackend::new(MemoryKind::Attention), memory_cache());
    let (bench, first) = taught(roomy(), &backend, &cache, &plain(1));
    let (again, report) = seen(bench.model.submit(plain(1)).unwrap());
    assert_eq!(first, again);
    assert!(report.tokens_per_step().unwrap() > 4.0, "{report:?}");
    let reported = || bench.model.status().drafts;
    eventually("the counters", || reported().accepted >= report.accepted as u64);
    assert!(reported().drafted >= reported().accepted && reported().steps > 0 && reported().index_bytes > 0);
    drop(bench);
    let restarted = bench_with(always(roomy()), &backend, &cache);
    eventually("an index after a restart", || is_indexed(&restarted, first.committed));
    let (again, report) = seen(restarted.model.submit(plain(1)).unwrap());
    assert_eq!(first, again);
    assert!(report.tokens_per_step().unwrap() > 4.0, "{report:?}");
}

#[test]
fn requests_and_models_can_do_without() {
    let (backend, cache) = (StubBackend::new(MemoryKind::Attention), memory_cache());
    let (bench, first) = taught(roomy(), &backend, &cache, &plain(1));
    let (again, report) = seen(bench.model.submit(Request { drafts: Drafts::Off, ..plain(1) }).unwrap());
    assert_eq!((again, report.drafted), (first_again(&bench), 0));
    let (again, report) = seen(bench.model.submit(Request { drafts: Drafts::Context, ..plain(1) }).unwrap());
    assert_eq!((again, report), (first_again(&bench), by_chance()));
    let limited = bench_with(always(ModelConfig { drafts: Drafts::Context, ..roomy() }), &backend, &cache);
    let (again, report) = seen(limited.model.submit(Request { drafts: Drafts::Stored, ..plain(1) }).unwrap());
    assert_eq!((again, report), (first, by_chance()), "a request cannot ask for more than its model offers");
    assert_eq!(limited.model.status().drafts.index_tokens, 0);
    let without = bench_with(off(roomy()), &backend, &cache);
    assert_eq!(without.model.status().drafts.off, Some(DraftObstacle::Setting));
}

fn first_again(bench: &Bench) -> Seen {
    seen(bench.model.submit(plain(1)).unwrap()).0
}

#[test]
fn a_draft_never_outlives_an_eviction_and_never_crosses_owners() {
    let tenant = |number: u8, privacy| Some(Tenant { id: OwnerId::from_bytes([number; 16]), privacy });
    for privacy in [Privacy::Open, Privacy::Discreet, Privacy::Isolated] {
        let (backend, cache) = (StubBackend::new(MemoryKind::Attention), memory_cache());
        let of = |number: u8| Request { tenant: tenant(number, privacy), ..plain(1) };
        let bench = bench_with(always(roomy()), &backend, &cache);
        let (first, _) = seen(bench.model.submit(of(1)).unwrap());
        let drafted = |request: Request| {
            let (again, report) = seen(bench.model.submit(request).unwrap());
            assert_eq!(first, again);
            report
        };
        eventually("drafts of its own", || drafted(of(1)).accepted > 30);
        let stranger = Request { session_id: None, ..of(2) };
        let (again, report) = seen(bench.model.submit(stranger).unwrap());
        assert_eq!((again.generated, report), (first.generated.clone(), by_chance()), "{privacy:?}");
        assert_idle(&bench);
        cache.clear();
        // Before and after the thread has seen it.
        assert_eq!(drafted(of(1)), by_chance(), "{privacy:?}");
    }
}

#[test]
fn four_kinds_of_memory_and_many_at_once() {
    for kind in KINDS {
        for (parallel, kv) in
            [(1, KvLayout::Unified), (4, KvLayout::Split), (4, KvLayout::Unified), (16, KvLayout::Split)]
        {
            let base = roomy_with(parallel);
            let context = ContextOptions { kv, n_cells: Some(512 * parallel), ..base.context.clone() };
            let config = ModelConfig { context, ..base };
            let seeded = |number: u32| Sampling { temperature: 0.8, seed: Some(number.into()), ..Sampling::default() };
            let short = prompt(1, 6);
            let requests: Vec<Request> = (0..parallel)
                .flat_map(|number| {
                    [greedy(&prompt(number, 50), 30), Request { sampling: seeded(number), ..greedy(&short, 30) }]
                })
                .take(parallel as usize)
                .collect();
            let cache = memory_cache();
            let run = |config: ModelConfig| {
                let bench = bench_with(config, &StubBackend::new(kind), &cache);
                let mut drafts = DraftReport::default();
                let mut rounds = Vec::new();
                for _ in 0..2 {
                    let streams = submit_together(&bench, &requests);
                    rounds.push(
                        streams
                            .into_iter()
                            .map(|stream| {
                                let (seen, report) = seen(stream);
                                drafts.accepted += report.accepted;
                                seen
                            })
                            .collect::<Vec<Seen>>(),
                    );
                    let can_draft = bench.model.status().drafts.off.is_none();
                    eventually("an index", || {
                        !can_draft || bench.model.config().drafts == Drafts::Off || is_indexed(&bench, 50)
                    });
                }
                assert_idle(&bench);
                (rounds, drafts, bench.model.status().drafts.off)
            };
            let (without, ..) = run(off(config.clone()));
            let (with, drafts, obstacle) = run(always(config));
            assert_eq!(without, with, "{kind:?}, {parallel} at once");
            let expected = if matches!(kind, MemoryKind::Attention | MemoryKind::Window { .. }) {
                None
            } else {
                Some(DraftObstacle::Memory)
            };
            assert_eq!(obstacle, expected);
            assert_eq!(
                drafts.accepted > 0,
                kind == MemoryKind::Attention || (drafts.accepted > 0 && expected.is_none()),
                "{kind:?}"
            );
        }
    }
}

#[test]
fn exact_replies_are_drafted_where_several_rows_give_the_bits_of_one() {
    let config = ModelConfig { exactness: Exactness::Always, exact_grid: GRID, ..roomy() };
    let exact = Request { exact: true, ..ask(200) };
    assert!(compare(&config, REFRAIN, &exact).accepted > 5);
    let on_request = ModelConfig { exactness: Exactness::OnRequest, exact_grid: GRID, ..roomy() };
    assert!(compare(&on_request, REFRAIN, &exact).accepted > 5);
    assert!(compare(&on_request, REFRAIN, &ask(200)).accepted > 5);
}

#[test]
fn a_reply_that_is_resumed_draws_what_it_would_have_drawn() {
    let sampling = Sampling { temperature: 0.9, seed: Some(7), ..Sampling::default() };
    let request = Request { sampling, ..ask(200) };
    let backend = StubBackend::new(MemoryKind::Attention).with_reply(&request.tokens, &words(REFRAIN));
    let whole = seen(bench_with(always(roomy()), &backend, &memory_cache()).model.submit(request.clone()).unwrap()).0;
    for count in [1, 20, 40] {
        let (tokens, draws) = whole
            .events
            .iter()
            .filter_map(|event| match event {
                StreamEvent::Token { id, draws, .. } => Some((*id, *draws)),
                _ => None,
            })
            .take(count)
            .fold((Vec::new(), 0), |(mut tokens, _), (id, draws)| {
                tokens.push(id);
                (tokens, draws)
            });
        let resume = Some(poncho_api::Resume { tokens, draws });
        let bench = bench_with(always(roomy()), &backend, &memory_cache());
        let (resumed, report) = seen(bench.model.submit(Request { resume, ..request.clone() }).unwrap());
        // What was drawn before is sent again with the numbers used up by then.
        let draws = |seen: &Seen| match seen.events.last() {
            Some(StreamEvent::Token { draws, .. }) => *draws,
            other => panic!("{other:?}"),
        };
        assert_eq!((&resumed.generated, draws(&resumed)), (&whole.generated, draws(&whole)));
        assert!(resumed.reply == whole.reply && report.accepted > 5);
    }
}

#[test]
fn cancelled_aborted_and_crowded_replies_leave_nothing_behind() {
    let (backend, cache) = (StubBackend::new(MemoryKind::Attention), memory_cache());
    let (bench, first) = taught(roomy(), &backend, &cache, &plain(1));
    let mut cancelled = bench.model.submit(plain(1)).unwrap();
    until_first_token(&mut cancelled);
    drop(cancelled);
    assert_serves(&bench, MemoryKind::Attention);
    // A call that is aborted in the middle of its rows is taken back and computed again.
    for nth in 1..6 {
        bench.faults.on_decode(nth, DecodeFault::Aborted);
        assert_eq!(first_again(&bench).generated, first.generated);
        bench.faults.clear();
    }
    // Where there is no room for drafts, replies go on without.
    bench.faults.on_decode(1, DecodeFault::NoRoom);
    assert_eq!(first_again(&bench).generated, first.generated);
    bench.faults.clear();
    assert_serves(&bench, MemoryKind::Attention);
    let tight = roomy();
    let tight =
        ModelConfig { context: ContextOptions { n_cells: Some(104), n_ctx: 104, ..tight.context.clone() }, ..tight };
    let bench = bench_with(always(tight), &backend, &cache);
    eventually("an index", || is_indexed(&bench, 99));
    let (again, report) = seen(bench.model.submit(plain(1)).unwrap());
    assert!(again == first && report.accepted > 0, "{report:?}");
}

#[test]
fn a_model_that_measures_first_gives_the_same_replies() {
    let (backend, cache) = (StubBackend::new(MemoryKind::Attention), memory_cache());
    let (_, first) = taught(roomy(), &backend, &cache, &plain(1));
    let bench = bench_with(ModelConfig { drafts: Drafts::Auto, ..roomy() }, &backend, &cache);
    eventually("an index", || is_indexed(&bench, first.committed));
    for _ in 0..5 {
        assert_eq!(first_again(&bench), first);
    }
}
