//! The data of the dashboard: the last snapshot, the rates since the one before, and errors.
//!
//! Pure: updated by the loop of `top.rs`, drawn by `dashboard.rs`.

use std::collections::{BTreeMap, VecDeque};

use poncho_terminal::printable_line;

use super::snapshot::Snapshot;

/// Snapshots in the curve.
const HISTORY: usize = 200;

/// Tokens per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) prefilled: f64,
    pub(crate) generated: f64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Host and port.
    pub(crate) place: String,
    pub(crate) latest: Option<Snapshot>,
    /// By model; empty before the second snapshot.
    pub(crate) rates: BTreeMap<String, Rate>,
    /// Tokens generated per second by all models, oldest first.
    pub(crate) curve: VecDeque<u64>,
    /// Why the last snapshot failed.
    pub(crate) trouble: Option<String>,
}

impl View {
    pub(crate) fn new(place: &str) -> Self {
        Self { place: printable_line(place), ..Self::default() }
    }

    /// Adds a snapshot, or the reason why there is none.
    pub(crate) fn update(&mut self, look: Result<Snapshot, String>) {
        let now = match look {
            Ok(now) => now,
            Err(trouble) => {
                self.trouble = Some(printable_line(&trouble));
                self.rates.clear();
                return;
            }
        };
        self.trouble = None;
        if let Some(before) = &self.latest {
            self.rates = rates(before, &now);
            let sum: f64 = self.rates.values().map(|rate| rate.generated).sum();
            self.curve.push_back(whole(sum));
            if self.curve.len() > HISTORY {
                self.curve.pop_front();
            }
        }
        self.latest = Some(now);
    }
}

/// What each model did between two snapshots. The counters of a reloaded model start at zero.
fn rates(before: &Snapshot, now: &Snapshot) -> BTreeMap<String, Rate> {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    let rate = |now: f64, before: f64| if seconds > 0.0 && now >= before { (now - before) / seconds } else { 0.0 };
    let known = |id: &str| before.models.iter().find(|model| model.id == id);
    let models = now.models.iter().filter_map(|model| {
        let earlier = known(&model.id)?;
        let prefilled = prefilling(now, &model.id).unwrap_or_else(|| rate(model.prefilled, earlier.prefilled));
        Some((model.id.clone(), Rate { prefilled, generated: rate(model.generated, earlier.generated) }))
    });
    models.collect()
}

/// The speed at which prompts are being computed, if the server reports it. A counter moves once per decode call, which may
/// take longer than the pause between two snapshots.
pub(crate) fn prefilling(now: &Snapshot, model: &str) -> Option<f64> {
    let requests = now.requests.iter().filter(|request| request.model == model && request.is_prefilling());
    requests.filter_map(|request| request.tokens_per_second).reduce(|sum, speed| sum + speed)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates are small and never negative")]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::running::top::snapshot::tests::example;

    #[test]
    fn rates_are_differences_between_snapshots() {
        let mut view = View::new("here");
        let first = example();
        let mut second = first.clone();
        second.at = first.at + Duration::from_secs(2);
        second.models[0].generated += 50.0;
        second.models[0].prefilled += 300.0;
        second.models[1].generated = 0.0;
        second.requests.clear();
        view.update(Ok(first));
        assert!(view.rates.is_empty() && view.curve.is_empty());
        view.update(Ok(second.clone()));
        assert_eq!(view.rates["a"], Rate { prefilled: 150.0, generated: 25.0 });
        assert_eq!(view.curve, [25]);
        second.models[0].generated = 1.0;
        second.requests.clone_from(&example().requests);
        second.at += Duration::from_secs(1);
        view.update(Ok(second));
        assert_eq!(view.rates["a"].generated, 0.0, "a counter that restarted is not a negative rate");
        assert_eq!(view.rates["a"].prefilled, 107.5, "the server knows it between two decode calls");
    }

    #[test]
    fn an_error_is_shown_until_the_server_is_back() {
        let mut view = View::new("here");
        view.update(Ok(example()));
        view.update(Err("refused\n\u{1b}".to_owned()));
        assert_eq!(view.trouble.as_deref(), Some("refused \u{241b}"));
        assert!(view.latest.is_some(), "the last snapshot stays");
        view.update(Ok(example()));
        assert_eq!(view.trouble, None);
    }

    #[test]
    fn the_curve_drops_its_oldest_part() {
        let mut view = View::new("here");
        for _ in 0..HISTORY + 10 {
            view.update(Ok(example()));
        }
        assert_eq!(view.curve.len(), HISTORY);
    }
}
