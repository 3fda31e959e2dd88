//! A conversation that is too long, without its oldest turns.
//!
//! Called by the host for turns that allow it. Only whole turns go, and the system's messages stay.

use poncho_api::{ChatTurn, EngineError, Mode, Request};
use serde_json::Value;

use crate::chat::model::ChatModel;
use crate::chat::turn::{Prepared, prepare_chat};

/// Makes a request out of a turn, with as much of the conversation as fits.
pub(crate) fn prepare_fitting(model: &ChatModel, turn: &ChatTurn, request: &Request) -> Result<Prepared, EngineError> {
    let limit = model.limits().longest_prompt(Mode::Complete);
    // `None` for an error that a shorter conversation would have too.
    let fits = |prepared: &Result<Prepared, EngineError>| match prepared {
        Ok(prepared) => Some(prepared.request.tokens.len() <= limit),
        Err(EngineError::PromptTooLarge { .. }) => Some(false),
        Err(_) => None,
    };
    let whole = prepare_chat(model, turn, request);
    if fits(&whole) != Some(false) {
        return whole;
    }
    let (system, starts) = turn_starts(&turn.messages);
    let from = |start: usize| {
        let kept = turn.messages.iter().take(system).chain(turn.messages.iter().skip(start));
        let messages = kept.cloned().collect();
        prepare_chat(model, &ChatTurn { messages, ..turn.clone() }, request)
    };
    // The fewest turns that must go: shorter conversations fit whenever longer ones do.
    let (mut low, mut high) = (0, starts.len());
    let mut best = None;
    while low < high {
        let middle = low.midpoint(high);
        let prepared = from(starts.get(middle).copied().unwrap_or(system));
        match fits(&prepared) {
            Some(true) => {
                best = Some(prepared);
                high = middle;
            }
            Some(false) => low = middle + 1,
            None => return prepared,
        }
    }
    // Not even the last turn fits: the error says so, with the numbers.
    best.unwrap_or(whole)
}

/// How many system messages come first, and where the user's turns after the first one start.
fn turn_starts(messages: &[Value]) -> (usize, Vec<usize>) {
    let role = |message: &Value| message.get("role").and_then(Value::as_str).map(str::to_owned);
    let system = messages.iter().take_while(|message| role(message).as_deref() == Some("system")).count();
    let users = messages.iter().enumerate().skip(system + 1);
    let starts = users.filter(|(_, message)| role(message).as_deref() == Some("user")).map(|(at, _)| at);
    (system, starts.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_whole_turns_are_left_out() {
        let roles = ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "user"];
        let messages: Vec<Value> = roles.iter().map(|role| json!({"role": role})).collect();
        assert_eq!(turn_starts(&messages), (1, vec![5, 7]));
        assert_eq!(turn_starts(&messages[1..2]), (0, vec![]));
        assert_eq!(turn_starts(&[]), (0, vec![]));
    }
}
