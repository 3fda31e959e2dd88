//! A node as a router knows it: its state, what it is doing, and the rates that it measured.
//!
//! Nodes publish this with every heartbeat; the functions in `route` read it. Plain data. A value that a node made up
//! must never do more than attract or repel requests.

use serde::{Deserialize, Serialize};

/// Whether a node takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It takes requests.
    #[default]
    Up,
    /// It finishes what it has and takes nothing new. Its rows can still be pulled.
    Draining,
}

/// Tokens in a second where no node has measured a prefill.
const ASSUMED_PREFILL: f64 = 500.0;
/// Seconds of a decode step where no node has measured one.
const ASSUMED_STEP: f64 = 0.02;

/// How fast a node is, as it measured itself for one model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Prompt tokens computed in a second; 0 before the first measurement.
    pub prefill_tokens: f64,
    /// Seconds of a decode step with one stream; 0 before the first measurement.
    pub decode_step: f64,
    /// Seconds that each further stream adds to a decode step.
    pub decode_stream: f64,
    /// Bytes of state per token.
    pub bytes_per_token: f64,
    /// Bytes restored from memory in a second.
    pub ram_bytes: f64,
    /// Bytes restored from disk in a second.
    pub disk_bytes: f64,
    /// Bytes received from or sent to another node in a second; 0 if it does not pull rows.
    pub peer_bytes: f64,
    /// Bytes read from the shared tier in a second; 0 without one.
    pub shared_bytes: f64,
    /// Seconds until the first byte of another node or of the shared tier.
    pub remote_delay: f64,
}

impl Rates {
    /// Rates with every value made finite and positive enough to divide by.
    #[must_use]
    pub fn checked(self) -> Self {
        let positive = |value: f64, least: f64| if value.is_finite() { value.max(least) } else { least };
        Self {
            prefill_tokens: positive(self.prefill_tokens, 1e-3),
            decode_step: positive(self.decode_step, 0.0),
            decode_stream: positive(self.decode_stream, 0.0),
            bytes_per_token: positive(self.bytes_per_token, 0.0),
            ram_bytes: positive(self.ram_bytes, 1.0),
            disk_bytes: positive(self.disk_bytes, 1.0),
            peer_bytes: positive(self.peer_bytes, 0.0),
            shared_bytes: positive(self.shared_bytes, 0.0),
            remote_delay: positive(self.remote_delay, 0.0),
        }
    }
}

/// Gives nodes that have not measured themselves yet the mean of the others, so that a new one is neither shunned nor
/// flooded.
pub fn fill_unmeasured(rates: &mut [&mut Rates]) {
    let mean = |of: fn(&Rates) -> f64, assumed: f64| {
        let known: Vec<f64> =
            rates.iter().map(|rates| of(rates)).filter(|rate| rate.is_finite() && *rate > 0.0).collect();
        if known.is_empty() { assumed } else { known.iter().sum::<f64>() / known.len() as f64 }
    };
    let prefill = mean(|rates| rates.prefill_tokens, ASSUMED_PREFILL);
    let step = mean(|rates| rates.decode_step, ASSUMED_STEP);
    for rates in rates {
        if rates.prefill_tokens == 0.0 {
            rates.prefill_tokens = prefill;
        }
        if rates.decode_step == 0.0 {
            rates.decode_step = step;
        }
    }
}

/// What a node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Load {
    /// Requests that hold a sequence.
    pub running: u32,
    /// Sequences.
    pub places: u32,
    /// Requests in the queue.
    pub waiting: u32,
    /// Requests that the queue takes.
    pub queue: u32,
    /// Prompt tokens of running and waiting requests that are not computed yet.
    pub backlog_tokens: f64,
    /// Bytes that wait on its line to and from other nodes.
    pub line_bytes: f64,
    /// Mean seconds for which a request holds a sequence.
    pub mean_stay: f64,
}

impl Load {
    /// Whether the node would take another request.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.running < self.places || self.waiting < self.queue
    }
}

/// A node with one model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Whether it takes requests.
    pub state: State,
    /// How fast it is.
    pub rates: Rates,
    /// What it is doing.
    pub load: Load,
}

impl Member {
    /// Whether a new request may go there.
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        self.state == State::Up && self.load.has_room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(prefill_tokens: f64, decode_step: f64) -> Rates {
        let (ram_bytes, disk_bytes) = (1e9, 1e9);
        let (decode_stream, bytes_per_token, peer_bytes, shared_bytes, remote_delay) = (0.0, 0.0, 0.0, 0.0, 0.0);
        Rates {
            prefill_tokens,
            decode_step,
            decode_stream,
            bytes_per_token,
            ram_bytes,
            disk_bytes,
            peer_bytes,
            shared_bytes,
            remote_delay,
        }
    }

    #[test]
    fn a_new_node_counts_like_the_others() {
        let (mut one, mut two, mut new) = (rates(1000.0, 0.001), rates(3000.0, 0.003), rates(0.0, 0.0));
        fill_unmeasured(&mut [&mut one, &mut two, &mut new]);
        assert!((new.prefill_tokens - 2000.0).abs() < 1e-6 && (new.decode_step - 0.002).abs() < 1e-9, "{new:?}");
        assert_eq!((one, two), (rates(1000.0, 0.001), rates(3000.0, 0.003)));
        let mut alone = rates(0.0, 0.0);
        fill_unmeasured(&mut [&mut alone]);
        assert_eq!(alone, rates(ASSUMED_PREFILL, ASSUMED_STEP));
    }
}
