//! Tests of `markers.rs`: the classes of a known reply, budgets, odd ends, and random replies against a whole-text parse.
//!
//! Run by `cargo test` only. They must never accept a lost, invented or reordered token.

use proptest::prelude::*;

use super::*;

fn markers() -> MarkerSet {
    MarkerSet {
        thinking: Some(ThinkingMarkers { open: vec![1], close: vec![vec![2, 3], vec![9]] }),
        tool_call: Some(ToolMarkers { open: vec![4, 5], close: vec![6], payload: Some((vec![7], vec![8, 7])) }),
    }
}

fn run(set: &MarkerSet, start: Start, tokens: &[u32]) -> Vec<MarkerEvent> {
    let mut machine = MarkerMachine::new(set, start, None);
    let mut out = Vec::new();
    tokens.iter().for_each(|&token| machine.push(token, &mut out));
    machine.finish(&mut out);
    out
}

fn token(token: u32, class: Class) -> MarkerEvent {
    MarkerEvent::Token(token, class)
}

#[test]
fn each_token_of_a_reply_gets_its_class() {
    use Class::{Text, Thinking, ThinkingMarker, ToolMarker, ToolPayload, ToolSyntax};
    let events = run(&markers(), Start::Text, &[1, 20, 2, 21, 2, 3, 22, 4, 5, 23, 7, 24, 8, 7, 25, 6, 4, 26]);
    let expected = [
        token(1, ThinkingMarker),
        token(20, Thinking),
        token(2, Thinking),
        token(21, Thinking),
        token(2, ThinkingMarker),
        token(3, ThinkingMarker),
        MarkerEvent::ThinkingEnd(EndedBy::Marker),
        token(22, Text),
        token(4, ToolMarker),
        token(5, ToolMarker),
        token(23, ToolSyntax),
        token(7, ToolSyntax),
        token(24, ToolPayload),
        token(8, ToolSyntax),
        token(7, ToolSyntax),
        token(25, ToolSyntax),
        token(6, ToolMarker),
        MarkerEvent::ToolEnd(EndedBy::Marker),
        token(4, Text),
        token(26, Text),
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_token_is_held_only_while_it_may_begin_a_marker() {
    let mut machine = MarkerMachine::new(&markers(), Start::Text, None);
    let mut out = Vec::new();
    machine.push(4, &mut out);
    assert_eq!(out, []);
    machine.push(4, &mut out);
    assert_eq!(out, [token(4, Class::Text)]);
    machine.push(30, &mut out);
    assert_eq!(out, [token(4, Class::Text), token(4, Class::Text), token(30, Class::Text)]);
}

#[test]
fn any_of_the_closing_markers_closes_and_the_end_closes_too() {
    let events = run(&markers(), Start::Thinking, &[20, 9, 21]);
    assert!(events.contains(&MarkerEvent::ThinkingEnd(EndedBy::Marker)));
    assert_eq!(events.last(), Some(&token(21, Class::Text)));

    let events = run(&markers(), Start::Thinking, &[20, 2]);
    let end = MarkerEvent::ThinkingEnd(EndedBy::EndOfReply);
    assert_eq!(events, [token(20, Class::Thinking), token(2, Class::Thinking), end]);
    let events = run(&markers(), Start::Text, &[4, 5, 7, 20]);
    assert_eq!(events.last(), Some(&MarkerEvent::ToolEnd(EndedBy::EndOfReply)), "from inside a payload as well");
}

#[test]
fn a_call_closed_inside_its_payload_is_over() {
    let events = run(&markers(), Start::Text, &[4, 5, 7, 20, 6, 21]);
    assert_eq!(
        events[4..],
        [token(6, Class::ToolMarker), MarkerEvent::ToolEnd(EndedBy::Marker), token(21, Class::Text)]
    );
}

#[test]
fn syntax_is_greedy_and_the_payload_is_not() {
    let mut machine = MarkerMachine::new(&markers(), Start::Text, None);
    let mut modes = Vec::new();
    for token in [20, 4, 5, 21, 7, 22, 8, 7, 23, 6, 24] {
        machine.push(token, &mut Vec::new());
        modes.push(if machine.sampling_mode() == SamplingMode::Greedy { 'g' } else { 'r' });
    }
    assert_eq!(modes.iter().collect::<String>(), "rrggrrrggrr");
}

#[test]
fn a_used_up_budget_forces_what_is_missing_of_the_closing_marker() {
    let mut machine = MarkerMachine::new(&markers(), Start::Text, Some(3));
    let mut out = Vec::new();
    for token in [1, 20, 21] {
        machine.push(token, &mut out);
        assert_eq!(machine.must_close(), None);
    }
    machine.push(2, &mut out);
    assert_eq!(machine.must_close(), Some([3].as_slice()), "the model wrote the first half itself");
    machine.push(3, &mut out);
    assert_eq!(machine.must_close(), None);
    assert_eq!(out.last(), Some(&MarkerEvent::ThinkingEnd(EndedBy::Marker)));
    machine.push(1, &mut out);
    assert_eq!(machine.must_close(), Some([2, 3].as_slice()), "a second block gets no second budget");
}

#[test]
fn no_budget_at_all_closes_a_block_that_the_prompt_opened() {
    let mut machine = MarkerMachine::new(&markers(), Start::Thinking, Some(0));
    let mut out = Vec::new();
    while let Some(&[next, ..]) = machine.must_close() {
        machine.push(next, &mut out);
    }
    let marker = |id| token(id, Class::ThinkingMarker);
    assert_eq!(out, [marker(2), marker(3), MarkerEvent::ThinkingEnd(EndedBy::Marker)]);
}

#[test]
fn only_a_marker_at_the_end_of_the_prompt_opens_the_reply() {
    let set = markers();
    assert_eq!(Start::of(&set, &[50, 1]), Start::Thinking);
    assert_eq!(Start::of(&set, &[50, 1, 60]), Start::Thinking, "a line break may follow");
    assert_eq!(Start::of(&set, &[50, 1, 60, 61, 62]), Start::Text);
    assert_eq!(Start::of(&set, &[50, 1, 2, 3]), Start::Text, "a template that closes it at once");
    assert_eq!(Start::of(&set, &[50, 1, 9]), Start::Text);
    assert_eq!(Start::of(&set, &[]), Start::Text);
    assert_eq!(Start::of(&MarkerSet::default(), &[1]), Start::Text);
}

#[test]
fn without_markers_everything_is_text() {
    let machine = MarkerMachine::new(&MarkerSet::default(), Start::Text, Some(0));
    assert!(machine.is_trivial() && machine.must_close().is_none());
    let events = run(&MarkerSet::default(), Start::Text, &[1, 2]);
    assert_eq!(events, [token(1, Class::Text), token(2, Class::Text)]);
}

/// Classifies a whole reply at once: in each state, the first marker to be complete, the longest of them.
fn naive(tokens: &[u32]) -> Vec<(u32, Class)> {
    let (open, close, also): (&[u32], &[u32], &[u32]) = (&[1, 1, 2], &[2, 1, 2], &[3]);
    let (mut classes, mut rest, mut inside) = (Vec::new(), tokens, false);
    loop {
        let plain = if inside { Class::Thinking } else { Class::Text };
        let watched: &[&[u32]] = if inside { &[close, also] } else { &[open] };
        let found = (1..=rest.len()).find_map(|end| {
            let ending = watched.iter().filter(|marker| rest[..end].ends_with(marker));
            ending.map(|marker| marker.len()).max().map(|len| (end - len, end))
        });
        let Some((start, end)) = found else {
            classes.extend(rest.iter().map(|&token| (token, plain)));
            return classes;
        };
        classes.extend(rest[..start].iter().map(|&token| (token, plain)));
        classes.extend(rest[start..end].iter().map(|&token| (token, Class::ThinkingMarker)));
        (rest, inside) = (&rest[end..], !inside);
    }
}

proptest! {
    #[test]
    fn token_by_token_equals_the_whole_reply(tokens in prop::collection::vec(1_u32..4, 0..60)) {
        let thinking = ThinkingMarkers { open: vec![1, 1, 2], close: vec![vec![2, 1, 2], vec![3]] };
        let set = MarkerSet { thinking: Some(thinking), tool_call: None };
        let events = run(&set, Start::Text, &tokens);
        let classes: Vec<_> = events.iter().filter_map(|event| match event {
            MarkerEvent::Token(token, class) => Some((*token, *class)),
            _ => None,
        }).collect();
        prop_assert_eq!(classes, naive(&tokens));
    }

    #[test]
    fn tokens_come_out_once_and_in_order_and_blocks_end(tokens in prop::collection::vec(1_u32..11, 0..80)) {
        let events = run(&markers(), Start::Text, &tokens);
        let out: Vec<u32> = events.iter().filter_map(|event| match event {
            MarkerEvent::Token(token, _) => Some(*token),
            _ => None,
        }).collect();
        prop_assert_eq!(out, tokens);
        let mut open = Class::Text;
        for event in events {
            match event {
                MarkerEvent::Token(_, class @ (Class::Thinking | Class::ThinkingMarker)) => {
                    prop_assert!(matches!(open, Class::Text | Class::Thinking), "{:?} inside {:?}", class, open);
                    open = Class::Thinking;
                }
                MarkerEvent::Token(_, Class::Text) => prop_assert_eq!(open, Class::Text),
                MarkerEvent::Token(_, class) => {
                    prop_assert!(matches!(open, Class::Text | Class::ToolSyntax), "{:?} inside {:?}", class, open);
                    open = Class::ToolSyntax;
                }
                MarkerEvent::ThinkingEnd(_) => {
                    prop_assert_eq!(open, Class::Thinking);
                    open = Class::Text;
                }
                MarkerEvent::ToolEnd(_) => {
                    prop_assert_eq!(open, Class::ToolSyntax);
                    open = Class::Text;
                }
            }
        }
        prop_assert_eq!(open, Class::Text, "no block is left open");
    }

    #[test]
    fn a_budget_is_never_exceeded_by_more_than_the_marker(budget in 0_u32..10, tokens in prop::collection::vec(1_u32..11, 0..80)) {
        let mut machine = MarkerMachine::new(&markers(), Start::Thinking, Some(budget));
        let (mut out, mut drawn) = (Vec::new(), tokens.into_iter());
        loop {
            let forced = machine.must_close().map(|close| close[0]);
            let Some(next) = forced.or_else(|| drawn.next()) else { break };
            machine.push(next, &mut out);
        }
        machine.finish(&mut out);
        let thinking = out.iter().filter(|event| matches!(event, MarkerEvent::Token(_, Class::Thinking))).count();
        prop_assert!(thinking <= budget as usize, "{thinking} of {budget}");
    }
}
