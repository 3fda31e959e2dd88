//! What a model is doing, readable by anybody without asking its worker.
//!
//! The worker writes, routers and metrics read; all of it is relaxed atomics. It must never be used to decide anything
//! that has to be right at this very moment.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use poncho_api::{DraftObstacle, DraftStatus};
pub use poncho_api::{LastHit, Phase, StatusReport};
use poncho_cache::HitKind;

use super::speeds::SpeedBoard;

const OBSTACLES: [DraftObstacle; 4] =
    [DraftObstacle::Setting, DraftObstacle::Memory, DraftObstacle::Device, DraftObstacle::Exact];

/// See the module.
#[derive(Debug)]
pub(crate) struct Status {
    phase: AtomicU8,
    pub(crate) pending: AtomicUsize,
    pub(crate) depth: AtomicUsize,
    pub(crate) active: AtomicUsize,
    pub(crate) sessions: AtomicUsize,
    hit_kind: AtomicU8,
    hit_cached: AtomicU64,
    hit_prompt: AtomicU64,
    pub(crate) ticks: AtomicU64,
    pub(crate) prefilled: AtomicU64,
    pub(crate) generated: AtomicU64,
    pub(crate) decode_nanos: AtomicU64,
    pub(crate) overhead_nanos: AtomicU64,
    pub(crate) starts: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) speeds: SpeedBoard,
    pub(crate) drafted: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) steps: AtomicU64,
    saved_micros: AtomicI64,
    draft_obstacle: AtomicU8,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            phase: AtomicU8::new(0),
            pending: AtomicUsize::new(0),
            depth: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            hit_kind: AtomicU8::new(u8::MAX),
            hit_cached: AtomicU64::new(0),
            hit_prompt: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            prefilled: AtomicU64::new(0),
            generated: AtomicU64::new(0),
            decode_nanos: AtomicU64::new(0),
            overhead_nanos: AtomicU64::new(0),
            starts: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            speeds: SpeedBoard::default(),
            drafted: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            saved_micros: AtomicI64::new(0),
            draft_obstacle: AtomicU8::new(u8::MAX),
        }
    }
}

impl Status {
    pub(crate) fn set_phase(&self, phase: Phase) {
        let position = Phase::ALL.iter().position(|candidate| *candidate == phase).unwrap_or(0);
        self.phase.store(u8::try_from(position).unwrap_or(0), Ordering::Relaxed);
    }

    /// What the model does.
    #[must_use]
    pub(crate) fn phase(&self) -> Phase {
        Phase::ALL.get(usize::from(self.phase.load(Ordering::Relaxed))).copied().unwrap_or(Phase::Starting)
    }

    pub(crate) fn set_last_hit(&self, hit: LastHit) {
        let position = HitKind::ALL.iter().position(|candidate| *candidate == hit.kind).unwrap_or(0);
        self.hit_cached.store(hit.cached_tokens, Ordering::Relaxed);
        self.hit_prompt.store(hit.prompt, Ordering::Relaxed);
        self.hit_kind.store(u8::try_from(position).unwrap_or(u8::MAX), Ordering::Relaxed);
    }

    /// The last cache decision.
    #[must_use]
    pub(crate) fn last_hit(&self) -> Option<LastHit> {
        let kind = *HitKind::ALL.get(usize::from(self.hit_kind.load(Ordering::Relaxed)))?;
        let (cached_tokens, prompt) =
            (self.hit_cached.load(Ordering::Relaxed), self.hit_prompt.load(Ordering::Relaxed));
        Some(LastHit { kind, cached_tokens, prompt })
    }

    /// Drafts made a reply that much shorter.
    pub(crate) fn add_saved(&self, micros: i64) {
        self.saved_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Notes why there are no drafts; `None` where they are on.
    pub(crate) fn set_draft_obstacle(&self, obstacle: Option<DraftObstacle>) {
        let place = OBSTACLES.iter().position(|candidate| Some(*candidate) == obstacle);
        let place = place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX);
        self.draft_obstacle.store(place, Ordering::Relaxed);
    }

    /// A copy of all facts; `index` is the size of the index of stored drafts, in tokens and bytes.
    #[must_use]
    pub(crate) fn report(&self, index: (usize, usize)) -> StatusReport {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let load_size = |value: &AtomicUsize| value.load(Ordering::Relaxed);
        StatusReport {
            phase: self.phase(),
            pending: load_size(&self.pending),
            queue_depth: load_size(&self.depth),
            active: load_size(&self.active),
            sessions: load_size(&self.sessions),
            last_hit: self.last_hit(),
            ticks: load(&self.ticks),
            prefilled_tokens: load(&self.prefilled),
            generated_tokens: load(&self.generated),
            decode_nanos: load(&self.decode_nanos),
            overhead_nanos: load(&self.overhead_nanos),
            starts: load(&self.starts),
            ended: load(&self.ended),
            speeds: self.speeds.report(),
            drafts: DraftStatus {
                drafted: load(&self.drafted),
                accepted: load(&self.accepted),
                steps: load(&self.steps),
                saved_micros: self.saved_micros.load(Ordering::Relaxed),
                index_tokens: index.0 as u64,
                index_bytes: index.1 as u64,
                off: OBSTACLES.get(usize::from(self.draft_obstacle.load(Ordering::Relaxed))).copied(),
            },
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
