//! Medians, quartiles and percentiles of a few measurements.
//!
//! Pure; used by every report. Values that are not finite are left out, and no value at all yields `None`, never a zero
//! that would look like a measurement.

use std::time::Duration;

use serde::Serialize;

/// The middle half of some measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// First quartile.
    pub(crate) low: f64,
    pub(crate) median: f64,
    /// Third quartile.
    pub(crate) high: f64,
    /// How many measurements there are.
    pub(crate) count: usize,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let at = |share| quantile_of_sorted(&sorted, share);
        Some(Self { low: at(0.25)?, median: at(0.5)?, high: at(0.75)?, count: sorted.len() })
    }
}

/// A duration in milliseconds.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The value below which this share of the values lies, interpolated between neighbours.
pub(crate) fn quantile(values: &[f64], share: f64) -> Option<f64> {
    quantile_of_sorted(&sorted(values), share)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length is a place in it")]
fn quantile_of_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)?) as f64;
    let below = *sorted.get(place.floor() as usize)?;
    let above = *sorted.get(place.ceil() as usize)?;
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quartiles_lie_between_neighbours() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { low: 1.75, median: 2.5, high: 3.25, count: 4 });
        assert_eq!(Spread::of(&[7.0]), Some(Spread { low: 7.0, median: 7.0, high: 7.0, count: 1 }));
    }

    #[test]
    fn nothing_measured_is_no_number() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[f64::NAN, f64::INFINITY]), None);
        assert_eq!(quantile(&[], 0.99), None);
    }

    #[test]
    fn the_outermost_shares_are_the_outermost_values() {
        let values = [5.0, 9.0, 1.0];
        assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0)), (Some(1.0), Some(9.0)));
        assert_eq!(quantile(&values, 7.0), Some(9.0), "a share above one is all of it");
    }

    proptest! {
        #[test]
        fn a_spread_is_in_order_and_within_its_values(values in prop::collection::vec(-1e9_f64..1e9, 1..40)) {
            let spread = Spread::of(&values).unwrap();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(least <= spread.low && spread.low <= spread.median);
            prop_assert!(spread.median <= spread.high && spread.high <= most);
        }
    }
}
