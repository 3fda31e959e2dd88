//! What is known of each node that rows are pulled from: whether it is left alone, and how fast it is.
//!
//! Used by the tier. Plain state behind a lock that is held for moments. A node that failed is asked again after a pause,
//! by a request that has another way: computing. It must not grow with the number of nodes that ever lived.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use poncho_cache::RemoteRates;

use super::PullLimits;
use crate::objects::breaker::Breaker;
use crate::objects::meter::Meter;

/// Nodes that are remembered at most. One that is forgotten is simply unknown.
const MOST: usize = 1024;

#[derive(Debug)]
struct Edge {
    breaker: Breaker,
    meter: Meter,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Edges {
    limits: PullLimits,
    known: Mutex<HashMap<String, Edge>>,
}

impl Edges {
    pub(super) fn new(limits: PullLimits) -> Self {
        Self { limits, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Edge>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, address: &str, change: impl FnOnce(&mut Edge) -> T) -> T {
        let mut known = self.known();
        if known.len() >= MOST && !known.contains_key(address) {
            known.retain(|_, edge| !edge.breaker.is_closed());
            if known.len() >= MOST {
                known.clear();
            }
        }
        let PullLimits { first_pause, longest_pause, .. } = self.limits;
        let fresh = || Edge { breaker: Breaker::closed(first_pause, longest_pause), meter: Meter::default() };
        change(known.entry(address.to_owned()).or_insert_with(fresh))
    }

    /// Whether a node may be asked now.
    pub(super) fn may_ask(&self, address: &str) -> bool {
        self.retry_in(address).is_zero()
    }

    /// Time until a node that failed is asked again.
    pub(super) fn retry_in(&self, address: &str) -> Duration {
        let now = Instant::now();
        self.known().get(address).map_or(Duration::ZERO, |edge| edge.breaker.retry_in(now))
    }

    /// What was measured of a node. Nothing of one that is tried again: what it did before it failed says nothing.
    pub(super) fn rates(&self, address: &str) -> RemoteRates {
        let known = self.known();
        let meter = known.get(address).filter(|edge| edge.breaker.is_closed()).map(|edge| edge.meter);
        let meter = meter.unwrap_or_default();
        RemoteRates { bytes_per_second: meter.bytes_per_second(), round_trip: meter.round_trip() }
    }

    /// The best that any node in use did.
    pub(super) fn best(&self) -> RemoteRates {
        let known = self.known();
        let in_use = || known.values().filter(|edge| edge.breaker.is_closed()).map(|edge| edge.meter);
        RemoteRates {
            bytes_per_second: in_use().filter_map(|meter| meter.bytes_per_second()).max_by(f64::total_cmp),
            round_trip: in_use().filter_map(|meter| meter.round_trip()).min(),
        }
    }

    /// Seconds that some bytes of a node would take, to compare nodes.
    pub(super) fn expected(&self, address: &str) -> Duration {
        self.rates(address).round_trip.unwrap_or_default()
    }

    /// Why a node is left alone, if one is.
    pub(super) fn last_error(&self) -> Option<String> {
        let known = self.known();
        known.iter().find_map(|(address, edge)| edge.breaker.reason().map(|reason| format!("{address}: {reason}")))
    }

    /// A small request was answered.
    pub(super) fn answered(&self, address: &str, took: Duration) {
        self.with(address, |edge| {
            edge.breaker.worked();
            edge.meter.small(took);
        });
    }

    /// A row was pulled.
    pub(super) fn pulled(&self, address: &str, bytes: u64, took: Duration) {
        self.with(address, |edge| {
            edge.breaker.worked();
            edge.meter.transfer(bytes, took);
        });
    }

    /// A node failed, came too late or sent wrong bytes.
    pub(super) fn failed(&self, address: &str, reason: &str) {
        self.with(address, |edge| {
            if edge.breaker.is_closed() {
                tracing::warn!(node = address, reason, "pulling from a node failed; it is left alone for a while");
            }
            edge.breaker.failed_again(reason.to_owned(), Instant::now());
            edge.meter = Meter::default();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_failed_is_left_alone_for_longer_each_time_and_others_are_not() {
        let edges = Edges::new(PullLimits { first_pause: Duration::from_secs(60), ..PullLimits::default() });
        edges.answered("a:1", Duration::from_millis(2));
        edges.pulled("a:1", 10 << 20, Duration::from_secs(1));
        assert!(edges.rates("a:1").bytes_per_second.is_some() && edges.may_ask("a:1"));
        edges.failed("a:1", "reset");
        assert!(!edges.may_ask("a:1") && edges.may_ask("b:1"));
        assert!(edges.rates("a:1").bytes_per_second.is_none() && edges.best().round_trip.is_none());
        edges.answered("a:1", Duration::from_millis(2));
        assert!(edges.may_ask("a:1"));
    }

    #[test]
    fn nodes_that_come_and_go_take_no_more_than_their_places() {
        let edges = Edges::new(PullLimits::default());
        for number in 0..5 * MOST {
            edges.failed(&format!("a:{number}"), "reset");
        }
        assert!(edges.known().len() <= MOST);
    }
}
