//! When the whole cluster is full: how long a client should wait before it tries again.
//!
//! Called when no node takes a request. The answer comes from the rates that the nodes measured and counts the requests
//! that were refused before this one, which will come back too. It must never promise a place that others will have taken.

use std::time::Duration;

use crate::member::{Member, State};
use crate::route::cost::wait_for_place;

/// The longest time that is promised; nodes that are this far behind know nothing about what comes after.
const LONGEST: f64 = 600.0;

/// Used while no node takes requests and none says when it will.
const UNKNOWN: f64 = 5.0;

/// No node takes the request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all nodes are full; try again in {} s, or add a node", after.as_secs())]
pub struct Refusal {
    /// Whole seconds, at least one.
    pub after: Duration,
}

/// When a place will probably be free, if `ahead` refused requests come back before this one.
pub fn retry_after<'a>(members: impl Iterator<Item = &'a Member>, ahead: u32) -> Refusal {
    let (mut soonest, mut departures) = (f64::INFINITY, 0.0);
    for member in members.filter(|member| member.state == State::Up) {
        let stay = if member.load.mean_stay.is_finite() { member.load.mean_stay } else { 0.0 };
        if member.load.has_room() {
            soonest = 0.0;
        } else if stay > 0.0 {
            // A place in the queue is free as soon as one request ends, wherever the queue is.
            let next = stay / f64::from(member.load.running.max(1));
            soonest = soonest.min(next.min(wait_for_place(member)));
            departures += f64::from(member.load.running) / stay;
        }
    }
    let behind = if departures > 0.0 { f64::from(ahead) / departures } else { 0.0 };
    let seconds = if soonest.is_finite() { soonest + behind } else { UNKNOWN };
    Refusal { after: Duration::from_secs_f64(seconds.clamp(1.0, LONGEST).ceil()) }
}
