//! Both servers side by side: the same work on each, who goes first alternating, failures noted.
//!
//! Used by the scenarios. A request that fails is a line of the report and a hole in its pair; the run goes on. A server
//! that fails several times in a row is not asked again, so that a dead peer does not cost the rest of the run its time.

use poncho_client::Refusal;
use poncho_terminal::Progress;
use serde::Serialize;

use crate::compare::args::Scenario;
use crate::compare::contender::Contender;
use crate::compare::plan::Plan;
use crate::compare::sheet::{Kind, Pair, Sheet};
use crate::measure::prompts::Prompts;

/// Failures in a row after which a server is given up.
const FAILURES: u32 = 3;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Poncho,
    Peer,
}

/// Something that did not work.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Failure {
    pub(crate) side: Side,
    pub(crate) scenario: Scenario,
    pub(crate) step: String,
    pub(crate) message: String,
}

/// What both came to; a hole where one failed.
#[derive(Debug, Clone)]
pub(crate) struct Both<T> {
    pub(crate) poncho: Option<T>,
    pub(crate) peer: Option<T>,
}

impl<T> Both<T> {
    /// A figure of each.
    pub(crate) fn pair(&self, figure: impl Fn(&T) -> Option<f64>) -> Pair {
        Pair { poncho: self.poncho.as_ref().and_then(&figure), peer: self.peer.as_ref().and_then(&figure) }
    }
}

/// The two servers and all that was found so far.
pub(crate) struct Ring {
    poncho: Contender,
    peer: Contender,
    pub(crate) plan: Plan,
    pub(crate) prompts: Prompts,
    pub(crate) sheet: Sheet,
    pub(crate) failures: Vec<Failure>,
    /// Requests that both refused alike: they say nothing about either.
    pub(crate) refused_by_both: usize,
    /// What could not be measured at all, and why.
    pub(crate) skipped: Vec<String>,
    pub(crate) progress: Progress,
    in_a_row: [u32; 2],
}

impl Ring {
    pub(crate) fn new(poncho: Contender, peer: Contender, plan: Plan, prompts: Prompts) -> Self {
        Self {
            poncho,
            peer,
            plan,
            prompts,
            sheet: Sheet::default(),
            failures: Vec::new(),
            refused_by_both: 0,
            skipped: Vec::new(),
            progress: Progress::on_stderr(),
            in_a_row: [0; 2],
        }
    }

    pub(crate) fn sides(&self) -> [&Contender; 2] {
        [&self.poncho, &self.peer]
    }

    /// Does the work on both; in odd rounds the peer goes first.
    pub(crate) async fn both<T>(
        &mut self,
        (scenario, round): (Scenario, u32),
        step: &str,
        work: impl AsyncFn(&Contender) -> anyhow::Result<T>,
    ) -> Both<T> {
        let order = if round.is_multiple_of(2) { [Side::Poncho, Side::Peer] } else { [Side::Peer, Side::Poncho] };
        let mut both = Both { poncho: None, peer: None };
        let mut errors = Vec::new();
        self.progress.rename(&format!("measuring {}: {step}", scenario.name()));
        for side in order {
            self.progress.add(0);
            let [of_poncho, of_peer] = &mut self.in_a_row;
            let (contender, in_a_row, place) = match side {
                Side::Poncho => (&self.poncho, of_poncho, &mut both.poncho),
                Side::Peer => (&self.peer, of_peer, &mut both.peer),
            };
            if *in_a_row >= FAILURES {
                continue;
            }
            tokio::time::sleep(self.plan.settle).await;
            match work(contender).await {
                Ok(value) => (*place, *in_a_row) = (Some(value), 0),
                Err(error) => errors.push((side, error)),
            }
        }
        self.note(scenario, step, &errors);
        both
    }

    fn note(&mut self, scenario: Scenario, step: &str, errors: &[(Side, anyhow::Error)]) {
        let is_refusal =
            |error: &anyhow::Error| error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.is_client_error());
        if errors.len() == 2 && errors.iter().all(|(_, error)| is_refusal(error)) {
            self.refused_by_both += 1;
            return;
        }
        for (side, error) in errors {
            let [of_poncho, of_peer] = &mut self.in_a_row;
            let in_a_row = match side {
                Side::Poncho => of_poncho,
                Side::Peer => of_peer,
            };
            *in_a_row += 1;
            let mut message = format!("{error:#}");
            if *in_a_row == FAILURES {
                message.push_str("; it gets no more requests");
            }
            self.failures.push(Failure { side: *side, scenario, step: step.to_owned(), message });
        }
    }

    /// Whether both can be restarted; if not, what is lost by that is noted.
    pub(crate) fn can_restart(&mut self, what: &str) -> bool {
        let missing = match (self.poncho.can_restart(), self.peer.can_restart()) {
            (true, true) => return true,
            (false, _) => "--poncho-restart",
            (true, false) => "--peer-restart",
        };
        self.skipped.push(format!("{what}: needs {missing}"));
        false
    }

    /// Restarts both. A server that does not come back has failed and is not asked again.
    pub(crate) async fn restart(&mut self, scenario: Scenario) {
        for (side, place) in [(Side::Poncho, 0), (Side::Peer, 1)] {
            let contender = match side {
                Side::Poncho => &mut self.poncho,
                Side::Peer => &mut self.peer,
            };
            let Some(in_a_row) = self.in_a_row.get_mut(place).filter(|count| **count < FAILURES) else { continue };
            if let Err(error) = contender.restart().await {
                *in_a_row = FAILURES;
                let message = format!("{error:#}; it gets no more requests");
                self.failures.push(Failure { side, scenario, step: "restart".to_owned(), message });
            }
        }
    }

    /// Notes a pair; round 0 warms up and does not count.
    pub(crate) fn add(&mut self, round: u32, kind: Kind, name: &str, pair: Pair) {
        if round > 0 {
            self.sheet.add(kind, name, pair);
        }
    }
}
