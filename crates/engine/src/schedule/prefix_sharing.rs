//! Requests that begin alike and run at the same time: the first one reads what they share, the others wait for that and
//! take it over.
//!
//! Part of the worker; `lifecycle.rs` asks at admission, and after every tick it is seen who can go on. A request only ever
//! follows one that was admitted before it, so nobody waits in a circle. Whatever happens to the leader, a follower is let
//! go in the same tick at the latest: it must never wait for a request that does not move.

use poncho_cache::HitKind;

use crate::calls::request::{Mode, RequestId};
use crate::sequence::live::common_prefix;
use crate::sequence::task::{End, Task};
use crate::worker::Worker;

/// Fewer tokens are computed in hardly more time than it takes to wait for them.
const WORTH_WAITING_FOR: usize = 64;

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Follow {
    leader: RequestId,
    /// Leading tokens to be taken over.
    upto: usize,
}

/// What becomes of a request that follows.
enum Verdict {
    Wait,
    /// Take so many tokens over from the request at that place.
    Take {
        from: usize,
        upto: usize,
    },
    /// The leader is gone or does not get there.
    LetGo,
}

impl Worker {
    /// The request in flight that holds, or is about to read, more of the prompt than this one has.
    pub(crate) fn find_leader(&self, task: &Task) -> Option<Follow> {
        if task.request.mode == Mode::Continue || task.is_background() {
            return None;
        }
        let own = self.tasks.iter().position(|other| other.id == task.id).unwrap_or(self.tasks.len());
        let earlier = self.tasks.iter().take(own).filter(|leader| leader.end.is_none() && !leader.is_background());
        let shared = earlier.filter(|leader| leader.namespace == task.namespace).filter_map(|leader| {
            let upto = self.shared_tokens(task, leader)?;
            let gain = upto.saturating_sub(task.n_past);
            // A leader that is far behind is not worth it either.
            let wait = upto.saturating_sub(leader.n_past);
            (gain >= WORTH_WAITING_FOR && wait <= gain.saturating_mul(2)).then_some((upto, leader))
        });
        // Of equals the first: it is the furthest.
        let (upto, leader) = shared.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        Some(Follow { leader: leader.id, upto })
    }

    /// How many leading tokens of `task` can be taken over from `leader`, now or when it has read its prompt.
    fn shared_tokens(&self, task: &Task, leader: &Task) -> Option<usize> {
        let computed = leader.n_past.max(leader.prompt_len).min(leader.tokens.len());
        let mut common = common_prefix(task.tokens.get(..task.prompt_len)?, leader.tokens.get(..computed)?);
        if let Some(grid) = self.grid_of(&task.request) {
            common = grid.usable(common.min(leader.prompt_len), task.prompt_len);
        }
        // What cannot be cut is taken over at the very moment at which it holds the shared tokens and nothing else.
        let reached = self.context.info().memory.can_cut()
            || leader.n_past == common
            || (leader.n_past < common && common <= leader.prompt_len);
        (common > 0 && reached).then_some(common)
    }

    /// Makes the leader pause where the two part, if its state cannot be cut there later.
    pub(crate) fn arrange_pause(&mut self, follow: Follow) {
        if self.context.info().memory.can_cut() {
            return;
        }
        let Some(leader) = self.tasks.iter_mut().find(|leader| leader.id == follow.leader) else { return };
        if follow.upto > leader.n_past && follow.upto < leader.prompt_len {
            let place = leader.stops.partition_point(|stop| *stop < follow.upto);
            if leader.stops.get(place) != Some(&follow.upto) {
                leader.stops.insert(place, follow.upto);
            }
        }
    }

    /// Lets everybody go on who waits for nothing any more.
    pub(crate) fn serve_followers(&mut self) {
        for place in 0..self.tasks.len() {
            let Some(task) = self.tasks.get(place) else { break };
            let Some(follow) = task.follow.filter(|_| task.end.is_none()) else { continue };
            match self.verdict(follow) {
                Verdict::Wait => continue,
                Verdict::Take { from, upto } => self.take_over(place, from, upto),
                Verdict::LetGo => {}
            }
            self.let_go(place);
        }
    }

    /// Everybody goes on with what they have: nothing else moves.
    pub(crate) fn release_followers(&mut self) -> bool {
        let mut released = false;
        for place in 0..self.tasks.len() {
            if self.tasks.get(place).is_some_and(|task| task.follow.is_some() && task.end.is_none()) {
                self.let_go(place);
                released = true;
            }
        }
        released
    }

    fn verdict(&self, follow: Follow) -> Verdict {
        let can_cut = self.context.info().memory.can_cut();
        let Some((from, leader)) = self.tasks.iter().enumerate().find(|(_, task)| task.id == follow.leader) else {
            return Verdict::LetGo;
        };
        let there = leader.n_past == follow.upto || (can_cut && leader.n_past > follow.upto);
        match &leader.end {
            Some(End::Failed(_)) => Verdict::LetGo,
            _ if there => Verdict::Take { from, upto: follow.upto },
            // Its caller left: what it read so far is good.
            Some(End::Finished { .. }) if can_cut => Verdict::Take { from, upto: leader.n_past.min(follow.upto) },
            Some(End::Finished { .. }) => Verdict::LetGo,
            None if leader.n_past > follow.upto => Verdict::LetGo,
            None => Verdict::Wait,
        }
    }

    /// Copies the first `upto` tokens of one request's sequence to another's, if that is more than it has.
    fn take_over(&mut self, place: usize, from: usize, upto: usize) {
        let can_cut = self.context.info().memory.can_cut();
        let (Some(task), Some(leader)) = (self.tasks.get(place), self.tasks.get(from)) else { return };
        let (seq, source, held) = (task.seq, leader.seq, leader.n_past);
        let is_all = upto == task.prompt_len;
        let logits = Some(leader.logits_at(upto)).filter(|logits| is_all && !logits.is_empty()).map(<[f32]>::to_vec);
        // Without logits the last token is computed again, which only a model that can be cut allows.
        let keep = if is_all && logits.is_none() { upto.saturating_sub(1) } else { upto };
        let grid = self.grid_of(&task.request);
        let keep = grid.filter(|_| !is_all).map_or(keep, |grid| grid.floor(keep));
        if keep <= task.n_past || (keep < held && !can_cut) {
            return;
        }
        let taken = self.copy_live(source, seq, keep, held);
        if !taken {
            self.context.remove(seq, 0..u32::MAX);
        }
        let Some(task) = self.tasks.get_mut(place) else { return };
        let n_past = if taken { keep } else { 0 };
        (task.n_past, task.read, task.last_save) = (n_past, n_past, n_past);
        task.hit = match (taken, logits.is_some()) {
            (false, _) => HitKind::Cold,
            (true, false) => HitKind::Partial,
            (true, true) => HitKind::Exact,
        };
        if let Some(logits) = logits.filter(|_| taken) {
            task.keep_logits(logits);
        }
    }

    /// The request goes on by itself, unless there is another one to follow.
    fn let_go(&mut self, place: usize) {
        let Some(task) = self.tasks.get(place) else { return };
        let (at_end, n_past) = (task.n_past == task.prompt_len, task.n_past);
        let next = self.find_leader(task).filter(|next| !at_end && next.upto > n_past);
        let known = at_end.then(|| task.logits_at(n_past).to_vec()).filter(|logits| !logits.is_empty());
        if let Some(task) = self.tasks.get_mut(place) {
            task.follow = next;
        }
        match next {
            Some(next) => self.arrange_pause(next),
            None => self.begin(place, known),
        }
    }
}
