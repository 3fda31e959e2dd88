//! One request on its way over the nodes of a cluster: where it was sent, and how that ended.
//!
//! Kept by `lasting` with each request, read by `fleet` when it chooses the next node. Pure.

use poncho_cluster::index::Slot;
use poncho_cluster::route::{Attempt, Dispatch, Step};

/// What a request went through on its way over nodes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Journey {
    pub(crate) dispatch: Dispatch,
    /// The node that it was sent to last.
    pub(crate) at: Option<Slot>,
    /// Whether a node refused it because it was full.
    pub(crate) is_refused: bool,
}

impl Journey {
    /// The node refused it. Says whether another one may be tried.
    pub(crate) fn refused(&mut self) -> bool {
        self.is_refused = true;
        self.ended(Attempt::Refused) == Some(Step::TryAgain)
    }

    /// The node was lost, with the request in flight or before it began. Says whether another one may be tried.
    pub(crate) fn lost(&mut self, is_begun: bool) -> bool {
        let attempt = if is_begun { Attempt::Lost } else { Attempt::Unreachable };
        self.ended(attempt) != Some(Step::GiveUp)
    }

    fn ended(&mut self, attempt: Attempt) -> Option<Step> {
        self.at.take().map(|slot| self.dispatch.attempted(slot, attempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_gives_up_after_two_nodes_that_died_with_it() {
        let mut journey = Journey { at: Some(Slot(1)), ..Journey::default() };
        assert!(journey.lost(true));
        journey.at = Some(Slot(2));
        assert!(journey.lost(false), "this one was not there");
        journey.at = Some(Slot(3));
        assert!(!journey.lost(true));
    }

    #[test]
    fn a_full_node_is_left_and_an_unknown_one_is_the_last() {
        let mut journey = Journey { at: Some(Slot(1)), ..Journey::default() };
        assert!(journey.refused() && journey.is_refused);
        assert!(!journey.dispatch.may_try(Slot(1)));
        assert!(!journey.refused(), "nobody knows where it was");
    }
}
