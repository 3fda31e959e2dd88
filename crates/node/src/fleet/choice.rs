//! Which of several nodes with the same model computes a reply.
//!
//! Pure. A conversation prefers one node, which has its prefix in its cache; a busy node is passed over.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use poncho_api::{Generate, Prompt};

/// A node that has this number of requests more than the idlest one is passed over.
const BUSIER: usize = 4;
/// How much of a prompt says which conversation it is.
const BEGINNING: usize = 2048;

/// A node that has the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its number in the fleet.
    pub(super) number: usize,
    /// Requests that it has.
    pub(super) load: usize,
}

/// The node for a prompt; without one, the idlest.
pub(super) fn choose(candidates: &[Candidate], conversation: Option<u64>) -> Option<usize> {
    let idlest = candidates.iter().map(|candidate| candidate.load).min()?;
    let fair = candidates.iter().filter(|candidate| candidate.load < idlest + BUSIER);
    let chosen = match conversation {
        // Each conversation has its own order of nodes, so that one that comes or goes moves few of them.
        Some(conversation) => fair.max_by_key(|candidate| mixed(conversation, candidate.number)),
        None => fair.min_by_key(|candidate| candidate.load),
    };
    chosen.map(|candidate| candidate.number)
}

fn mixed(conversation: u64, number: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (conversation, number).hash(&mut hasher);
    hasher.finish()
}

/// Which conversation a prompt belongs to: its session, or else how it begins.
pub(super) fn conversation(generate: &Generate) -> u64 {
    let mut hasher = DefaultHasher::new();
    generate.request.tenant.map(|tenant| format!("{tenant:?}")).hash(&mut hasher);
    if let Some(session) = &generate.request.session_id {
        session.hash(&mut hasher);
        return hasher.finish();
    }
    match &generate.prompt {
        Prompt::Chat(turn) => {
            // The system prompt is shared by many; the first message after it is not.
            for message in turn.messages.iter().take(2) {
                let text = message.to_string();
                text.bytes().take(BEGINNING).collect::<Vec<u8>>().hash(&mut hasher);
            }
        }
        other => {
            let text = serde_json::to_string(other).unwrap_or_default();
            text.bytes().take(BEGINNING).collect::<Vec<u8>>().hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(loads: &[usize]) -> Vec<Candidate> {
        loads.iter().enumerate().map(|(number, load)| Candidate { number, load: *load }).collect()
    }

    #[test]
    fn a_conversation_stays_where_it_is_until_its_node_is_busy_or_gone() {
        let idle = candidates(&[0, 0, 0]);
        for conversation in 0..50 {
            let home = choose(&idle, Some(conversation)).unwrap();
            assert_eq!(choose(&candidates(&[3, 3, 3]), Some(conversation)), Some(home));
            let mut loads = [0; 3];
            loads[home] = 20;
            assert_ne!(choose(&candidates(&loads), Some(conversation)), Some(home));
            // Another node that goes moves nothing.
            let rest: Vec<_> = idle.iter().copied().filter(|other| other.number != (home + 1) % 3).collect();
            assert_eq!(choose(&rest, Some(conversation)), Some(home));
        }
        let homes: std::collections::BTreeSet<_> = (0..50).filter_map(|talk| choose(&idle, Some(talk))).collect();
        assert_eq!(homes.len(), 3, "all nodes have work");
        assert_eq!(choose(&candidates(&[2, 1, 3]), None), Some(1));
        assert_eq!(choose(&[], Some(1)), None);
    }
}
