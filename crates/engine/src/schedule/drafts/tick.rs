//! The decode rows of a tick, and the passes over the weights that they take with a number of draft rows.
//!
//! Made by the worker for each tick; the planner asks what draft rows would cost. Pure. It must never be more hopeful than
//! llama.cpp, which computes rows of different sequences together only under the conditions of [`Joining`].

use crate::backend::SeqId;
use crate::schedule::drafts::acceptance::Candidate;
use crate::schedule::drafts::times::StepTimes;

/// How the rows of a batch are computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joining {
    /// All rows together.
    Together,
    /// Each sequence has cells of its own: one pass computes equal numbers of rows of sequences that follow each other, and
    /// what is left over takes more passes.
    Neighbours {
        /// The sequences of the requests, ascending.
        requests: Vec<SeqId>,
        /// Resting sequences between them, ascending: each has as many rows as the request with most of them.
        bridges: Vec<SeqId>,
    },
}

/// The decode rows of a tick that drafts are added to.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// Requests with a decode row.
    pub decodes: usize,
    /// Seconds that the prompts in it take.
    pub prefill_seconds: f64,
    /// Draft rows that fit.
    pub room: usize,
    /// How rows are computed.
    pub joining: Joining,
}

impl Tick {
    /// The rows of each pass. `drafts` are the draft rows by request; those that are missing have none.
    #[must_use]
    pub fn passes(&self, drafts: &[usize]) -> Vec<usize> {
        let mut passes = Vec::new();
        self.each_pass(drafts, |rows| passes.push(rows));
        passes
    }

    fn each_pass(&self, drafts: &[usize], mut pass: impl FnMut(usize)) {
        let (Joining::Neighbours { requests, bridges }, true) = (&self.joining, self.decodes > 1) else {
            return pass(self.decodes + drafts.iter().sum::<usize>());
        };
        let of = |(place, seq): (usize, &SeqId)| (*seq, 1 + drafts.get(place).copied().unwrap_or(0));
        let most = 1 + drafts.iter().max().copied().unwrap_or(0);
        let bridges = bridges.iter().map(|seq| (*seq, most));
        let mut left: Vec<(SeqId, usize)> = requests.iter().enumerate().map(of).chain(bridges).collect();
        left.sort_unstable();
        loop {
            let (mut last, mut count, mut rows) = (None, 0, usize::MAX);
            for (seq, left) in &left {
                if *left > 0 && follows(last, *seq) {
                    (last, count, rows) = (Some(*seq), count + 1, rows.min(*left));
                }
            }
            let Some(end) = last.take() else { return };
            pass(count * rows);
            for (seq, left) in &mut left {
                if *left > 0 && *seq <= end && follows(last, *seq) {
                    (last, *left) = (Some(*seq), *left - rows);
                }
            }
        }
    }

    /// The drafts that cost least: one row for the best request, or for all of them if they are computed together then.
    pub(super) fn try_one(&self, candidates: &[Candidate], best: usize, lengths: &mut [usize]) {
        let is_alone = self.joining == Joining::Together || self.decodes == 1;
        let all = candidates.len() == self.decodes && candidates.iter().all(|candidate| candidate.available() > 0);
        if !is_alone && all && self.decodes <= self.room {
            lengths.fill(1);
        } else if let Some(length) = lengths.get_mut(best) {
            *length = 1;
        }
    }

    /// The expected seconds with these draft rows, and with what it takes to prepare passes that are not like the last one.
    pub(super) fn seconds(&self, times: &StepTimes, drafts: &[usize]) -> Option<f64> {
        let (mut last, mut sum) = (times.last(), Some(self.prefill_seconds));
        self.each_pass(drafts, |rows| {
            sum = sum.zip(times.seconds_after(last, rows)).map(|(sum, seconds)| sum + seconds);
            last = Some(rows);
        });
        sum
    }

    /// The expected seconds with as few draft rows as are possible, one for one request or one for each of them, if every
    /// tick were like this one: no call with drafts is faster. `None` if nothing is known of one of the two.
    pub(super) fn least_seconds(&self, times: &StepTimes) -> Option<f64> {
        let one = self.steady_seconds(times, &[1])?;
        if self.decodes == 1 || self.decodes > self.room {
            return Some(one);
        }
        Some(one.min(self.steady_seconds(times, &vec![1; self.decodes])?))
    }

    /// The expected seconds of the decode rows alone, if every tick were like this one.
    pub(super) fn plain_seconds(&self, times: &StepTimes) -> Option<f64> {
        self.steady_seconds(times, &[])
    }

    /// The expected seconds with these draft rows, if every tick were like this one.
    pub(super) fn steady_seconds(&self, times: &StepTimes, drafts: &[usize]) -> Option<f64> {
        let mut sum = Some(0.0);
        self.each_pass(drafts, |rows| sum = sum.zip(times.seconds(rows)).map(|(sum, seconds)| sum + seconds));
        sum
    }
}

/// Whether a sequence is computed together with the last one.
fn follows(last: Option<SeqId>, seq: SeqId) -> bool {
    last.is_none_or(|last| last.checked_add(1) == Some(seq))
}
