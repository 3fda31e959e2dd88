//! Left recursion: rules that begin with themselves.
//!
//! Looked for by the parser once all rules are known. It visits each rule once, however many ways lead to it, and keeps
//! its path in a list instead of on the stack.

use super::{Element, invalid};
use crate::backend::GrammarError;

/// A rule that may begin with itself never gets on. As in llama.cpp a rule counts as empty only if one of its own
/// alternatives is: others that lead back to themselves without reading are found while the grammar is used.
pub(super) fn find_left_recursion(rules: &[Vec<Element>]) -> Result<(), GrammarError> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        Never,
        Open,
        Done,
    }
    let may_be_empty: Vec<bool> = rules
        .iter()
        .map(|rule| {
            let mut at_start = true;
            rule.iter().any(|element| {
                let empty = element.is_end() && at_start;
                at_start = element.is_end();
                empty
            })
        })
        .collect();
    // The rules that each one may begin with.
    let begins_with = |rule: &Vec<Element>| {
        let mut first = Vec::new();
        let mut at_start = true;
        for element in rule {
            match element {
                Element::Rule(other) if at_start => {
                    first.push(*other);
                    let other = usize::try_from(*other).unwrap_or(usize::MAX);
                    at_start = may_be_empty.get(other).copied().unwrap_or(false);
                }
                element => at_start = element.is_end(),
            }
        }
        first
    };
    let graph: Vec<Vec<u32>> = rules.iter().map(begins_with).collect();
    let mut seen = vec![Seen::Never; rules.len()];
    for start in 0..rules.len() {
        if seen.get(start) != Some(&Seen::Never) {
            continue;
        }
        let mut path: Vec<(usize, usize)> = vec![(start, 0)];
        while let Some((rule, next)) = path.last_mut() {
            let rule_id = *rule;
            if let Some(state) = seen.get_mut(rule_id) {
                *state = Seen::Open;
            }
            let Some(other) = graph.get(rule_id).and_then(|first| first.get(*next)) else {
                if let Some(state) = seen.get_mut(rule_id) {
                    *state = Seen::Done;
                }
                path.pop();
                continue;
            };
            *next += 1;
            let other = usize::try_from(*other).unwrap_or(usize::MAX);
            match seen.get(other) {
                Some(Seen::Open) => {
                    return Err(invalid("left recursion: a rule begins with itself, which never gets on"));
                }
                Some(Seen::Never) => path.push((other, 0)),
                Some(Seen::Done) | None => {}
            }
        }
    }
    Ok(())
}
