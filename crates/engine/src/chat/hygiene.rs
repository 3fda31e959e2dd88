//! Prefix hygiene: parts of a prompt that change on every request are made equal before it is rendered.
//!
//! Called by `turn.rs`. Clients put a billing header, a clock or tools in a random order in front of everything else, and
//! one changed token there costs the whole cached prefix. Each rule has a name, can be switched off, and says what it
//! did. Only the system prompt and the order of the tools are touched; what a user wrote never is.

mod clock;

use std::borrow::Cow;

use poncho_api::{ChatTurn, HygieneRule, Normalised};
use serde_json::Value;

/// The turn as it is rendered, and what was done to it.
pub(crate) fn clean<'t>(on: &[HygieneRule], turn: &'t ChatTurn) -> (Cow<'t, ChatTurn>, Vec<Normalised>) {
    let mut cleaned = Cow::Borrowed(turn);
    let mut done = Vec::new();
    for rule in HygieneRule::ALL.into_iter().filter(|rule| on.contains(rule)) {
        let places = match rule {
            HygieneRule::BillingHeader => clean_system(&mut cleaned, without_headers),
            HygieneRule::Clock => clean_system(&mut cleaned, clock::blanked),
            HygieneRule::ToolOrder => sort_tools(&mut cleaned),
        };
        if places > 0 {
            done.push(Normalised { rule, places });
        }
    }
    (cleaned, done)
}

/// Changes the texts of the messages that a conversation begins with, as long as they are the system's.
fn clean_system(turn: &mut Cow<'_, ChatTurn>, change: fn(&str) -> Option<(String, usize)>) -> usize {
    let is_system = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("system");
    let count = turn.messages.iter().take_while(is_system).count();
    let mut places = 0;
    for at in 0..count {
        let Some((content, changed)) = turn
            .messages
            .get(at)
            .and_then(|message| message.get("content"))
            .and_then(|content| change_content(content, change))
        else {
            continue;
        };
        places += changed;
        if let Some(place) = turn.to_mut().messages.get_mut(at).and_then(|message| message.get_mut("content")) {
            *place = content;
        }
    }
    places
}

fn change_content(content: &Value, change: fn(&str) -> Option<(String, usize)>) -> Option<(Value, usize)> {
    match content {
        Value::String(text) => change(text).map(|(text, places)| (text.into(), places)),
        Value::Array(parts) => {
            let mut places = 0;
            let mut kept = Vec::with_capacity(parts.len());
            for part in parts {
                let changed = part.get("text").and_then(Value::as_str).and_then(change);
                match changed {
                    None => kept.push(part.clone()),
                    Some((text, count)) => {
                        places += count;
                        let mut part = part.clone();
                        if let Some(place) = part.get_mut("text") {
                            *place = text.clone().into();
                        }
                        // A part that was nothing but a header is gone with it.
                        kept.extend(Some(part).filter(|_| !text.is_empty()));
                    }
                }
            }
            (places > 0).then_some((Value::Array(kept), places))
        }
        _ => None,
    }
}

fn without_headers(text: &str) -> Option<(String, usize)> {
    let mut removed = 0;
    let kept = text.split_inclusive('\n').filter(|line| {
        let is_header = is_billing_header(line);
        removed += usize::from(is_header);
        !is_header
    });
    let kept: String = kept.collect();
    (removed > 0).then_some((kept, removed))
}

/// Whether a line is a header about billing or attribution.
pub(crate) fn is_billing_header(line: &str) -> bool {
    let Some((name, _)) = line.split_once(':') else { return false };
    let name = name.to_ascii_lowercase();
    let is_name = name.starts_with("x-") && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_name && (name.contains("billing") || name.contains("attribution"))
}

/// A text with its times blanked, if it has any.
pub(crate) fn without_clock(text: &str) -> Option<String> {
    clock::blanked(text).map(|(text, _)| text)
}

/// Whether a text has a date in it.
pub(crate) fn has_date(text: &str) -> bool {
    clock::has_date(&text.to_ascii_lowercase())
}

fn sort_tools(turn: &mut Cow<'_, ChatTurn>) -> usize {
    if turn.tools.is_sorted_by(|one, two| one.name <= two.name) {
        return 0;
    }
    let before: Vec<String> = turn.tools.iter().map(|tool| tool.name.clone()).collect();
    let tools = &mut turn.to_mut().tools;
    tools.sort_by(|one, two| one.name.cmp(&two.name));
    tools.iter().zip(before).filter(|(tool, name)| tool.name != *name).count()
}

#[cfg(test)]
mod tests {
    use poncho_api::Tool;
    use serde_json::json;

    use super::*;

    fn turn(messages: &Value, tools: &[&str]) -> ChatTurn {
        let tools = tools.iter().map(|name| Tool { name: (*name).to_owned(), json: "{}".to_owned() }).collect();
        ChatTurn { messages: messages.as_array().unwrap().clone(), tools, ..ChatTurn::default() }
    }

    #[test]
    fn every_rule_does_what_its_example_says() {
        for rule in HygieneRule::ALL {
            assert_eq!(HygieneRule::from_name(rule.as_str()), Some(rule));
            let (_, before, after) = rule.example();
            if rule == HygieneRule::ToolOrder {
                let tools: Vec<&str> = before.split(", ").collect();
                let mixed = turn(&json!([]), &tools);
                let (sorted, done) = clean(&[rule], &mixed);
                let names: Vec<&str> = sorted.tools.iter().map(|tool| tool.name.as_str()).collect();
                assert_eq!((names.join(", ").as_str(), done[0].places), (after, 2));
                continue;
            }
            let asked = turn(&json!([{"role": "system", "content": before}, {"role": "user", "content": before}]), &[]);
            let (cleaned, done) = clean(&[rule], &asked);
            assert_eq!(cleaned.messages[0]["content"], after);
            assert_eq!(cleaned.messages[1]["content"], before, "what a user wrote stays");
            assert_eq!(done, [Normalised { rule, places: 1 }]);
            let others: Vec<HygieneRule> = HygieneRule::ALL.into_iter().filter(|other| *other != rule).collect();
            assert_eq!(clean(&others, &asked).0.messages, asked.messages, "switched off");
            assert_eq!(clean(&[], &asked).1, []);
        }
    }

    #[test]
    fn parts_are_cleaned_and_a_part_of_nothing_goes() {
        let system = json!([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be kind."}]);
        let asked = turn(&json!([{"role": "system", "content": system}, {"role": "user", "content": "x"}]), &[]);
        let (cleaned, _) = clean(&HygieneRule::ALL, &asked);
        assert_eq!(cleaned.messages[0]["content"], json!([{"type": "text", "text": "Be kind."}]));
    }

    #[test]
    fn what_only_looks_like_a_header_stays() {
        for text in ["Send x-billing: 1 with it", "x-request-id: 5", "billing: none", "x-billing (see docs): 1", ""] {
            assert_eq!(without_headers(text), None, "{text}");
        }
        assert_eq!(without_headers("a\nX-Attribution: me\nb").unwrap().0, "a\nb");
    }
}
