//! What a node announces of its models: load, and rates in the units of the cost model.
//!
//! Asked once a second and for each question of a router. Rates come from the engine's own measurements. Speeds of computing
//! are 0 before the first one: routers take the mean of other nodes. It must never block.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use poncho_api::{CacheReport, Node, NodeModel, Phase, RequestReport, Speeds, StatusReport};
use poncho_cluster::hints::ModelBeat;
use poncho_cluster::member::{Load, Rates};
use tokio::time::Instant;

use super::{PeerSpeed, identity};

/// Bytes in a second before a restore was measured.
const ASSUMED_RAM: f64 = 5e9;
const ASSUMED_DISK: f64 = 1e9;
/// Seconds until another machine answers, before it was measured.
const ASSUMED_DELAY: f64 = 0.02;
/// Seconds that a request holds a sequence, before one ended.
const ASSUMED_STAY: f64 = 1.0;
/// Seconds after which a request counts half as much in the mean time that one stays.
const HALF_LIFE: f64 = 60.0;

/// See the module.
pub(super) struct Meter {
    node: Arc<dyn Node>,
    peers: Option<PeerSpeed>,
    stays: Mutex<HashMap<String, Stay>>,
}

impl Meter {
    pub(super) fn new(node: Arc<dyn Node>, peers: Option<PeerSpeed>) -> Self {
        Self { node, peers, stays: Mutex::default() }
    }

    /// The models that can take requests now.
    pub(super) fn models(&self) -> Vec<ModelBeat> {
        let (cache, now) = (self.node.cache(), Instant::now());
        let peer_bytes = self.peers.as_ref().map_or(0.0, |peers| peers());
        let mut stays = self.stays.lock().unwrap_or_else(PoisonError::into_inner);
        let models = self.node.models();
        let usable = models.iter().filter(|model| {
            // One that is being loaded again takes requests later.
            !matches!(model.status().phase, Phase::Starting | Phase::Stopped) && !model.is_file_changed()
        });
        let beats = usable.map(|model| {
            let (report, status) = (model.report(), model.status());
            let stay = stays.entry(report.id.clone()).or_default();
            stay.look(&status, now);
            ModelBeat {
                name: report.id.clone(),
                namespace: identity(report),
                can_cut: report.info.memory.can_cut(),
                rates: rates(&status.speeds, &cache, peer_bytes),
                load: load(model.as_ref(), &status, stay.mean()),
            }
        });
        beats.collect()
    }
}

fn rates(speeds: &Speeds, cache: &CacheReport, peer_bytes: f64) -> Rates {
    let shared = cache.shared.as_ref().filter(|shared| shared.on);
    let delay = shared.and_then(|shared| shared.round_trip).map(|time| time.as_secs_f64());
    Rates {
        prefill_tokens: speeds.prefill.unwrap_or(0.0),
        decode_step: speeds.decode_step.unwrap_or(0.0),
        decode_stream: speeds.decode_stream.unwrap_or(0.0),
        bytes_per_token: speeds.bytes_per_token.unwrap_or(0) as f64,
        ram_bytes: speeds.ram.unwrap_or(ASSUMED_RAM),
        disk_bytes: speeds.disk.unwrap_or(ASSUMED_DISK),
        peer_bytes,
        shared_bytes: shared.and_then(|shared| shared.megabyte).map_or(0.0, |time| 1e6 / time.as_secs_f64().max(1e-9)),
        remote_delay: delay.unwrap_or(ASSUMED_DELAY),
    }
}

fn load(model: &dyn NodeModel, status: &StatusReport, mean_stay: f64) -> Load {
    let limits = model.report().limits;
    let left = |request: &RequestReport| {
        request.progress.prompt_tokens.saturating_sub(request.progress.processed_tokens) as f64
    };
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Load {
        running: count(status.active),
        places: count(limits.sequences),
        waiting: count(status.queue_depth.saturating_sub(status.active)),
        queue: count(limits.queue),
        backlog_tokens: model.requests().iter().map(left).sum(),
        line_bytes: 0.0,
        mean_stay,
    }
}

/// How long a request holds a sequence, by Little's law: the time that all of them held one, divided by those that ended.
#[derive(Debug, Clone, Copy, Default)]
struct Stay {
    last: Option<(Instant, u64)>,
    held: f64,
    ended: f64,
}

impl Stay {
    fn look(&mut self, status: &StatusReport, now: Instant) {
        let (before, ended) = self.last.replace((now, status.ended)).unwrap_or((now, status.ended));
        let seconds = now.duration_since(before).as_secs_f64();
        let keep = (-seconds / HALF_LIFE * std::f64::consts::LN_2).exp();
        self.held = self.held * keep + status.active as f64 * seconds;
        // A worker that was started again counts from zero.
        self.ended = self.ended * keep + status.ended.saturating_sub(ended) as f64;
    }

    /// Assumed before the first request ended.
    fn mean(&self) -> f64 {
        if self.ended >= 0.5 { self.held / self.ended } else { ASSUMED_STAY }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use poncho_api::SharedTierReport;

    use super::*;

    fn status(active: usize, ended: u64) -> StatusReport {
        StatusReport { phase: Phase::Generating, queue_depth: active, active, starts: 1, ended, ..Default::default() }
    }

    #[test]
    fn the_mean_stay_is_the_time_that_sequences_were_held_for_each_request() {
        let (start, mut stay) = (Instant::now(), Stay::default());
        for second in 0..30_u64 {
            // Two sequences are always held, and one request ends each second: two seconds for each.
            stay.look(&status(2, second), start + Duration::from_secs(second));
        }
        assert!((stay.mean() - 2.0).abs() < 0.1, "{}", stay.mean());
        assert_eq!(Stay::default().mean().to_bits(), ASSUMED_STAY.to_bits());
    }

    #[test]
    fn a_shared_tier_that_is_off_is_not_announced() {
        let tier =
            SharedTierReport { on: true, megabyte: Some(Duration::from_secs(1000)), ..SharedTierReport::default() };
        let report = |on| CacheReport { shared: Some(SharedTierReport { on, ..tier.clone() }), ..Default::default() };
        let speeds = Speeds { prefill: Some(800.0), ..Speeds::default() };
        let on = rates(&speeds, &report(true), 7.0);
        assert_eq!((on.shared_bytes, on.prefill_tokens, on.peer_bytes), (1000.0, 800.0, 7.0));
        assert_eq!(rates(&speeds, &report(false), 0.0).shared_bytes.to_bits(), 0.0_f64.to_bits());
    }
}
