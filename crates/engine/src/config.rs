//! What the engine reads out of a model's configuration, checked once when the model is loaded.
//!
//! The configuration itself is the api's data. Called by the handle that loads and by the worker.

use poncho_cache::Policy;

pub use poncho_api::{Exactness, FingerprintSource, ModelConfig, PrefillChunk, RestoreRule};

use crate::backend::{FlashAttention, KvLayout};
use crate::error::EngineError;
use crate::schedule::batch::Budget;
use crate::schedule::grid::Grid;

/// The checked parts of a configuration.
pub(crate) trait Checked {
    /// The checked save gates.
    fn policy(&self) -> Result<Policy, EngineError>;

    /// Settles what exact replies need.
    fn settle_exactness(&mut self);

    /// The grid of exact replies, if they are on.
    fn grid(&self) -> Option<Grid>;

    /// The checked row budget of a tick.
    ///
    /// `fetches`: rows may come from other machines while a prompt is computed, and are taken over at the end of a tick,
    /// not before.
    fn budget(&self, n_batch: u32, n_seq: u32, fetches: bool) -> Result<Budget, EngineError>;
}

impl Checked for ModelConfig {
    fn policy(&self) -> Result<Policy, EngineError> {
        Policy::new(self.gates)
            .map_err(|error| EngineError::Config { setting: "gates".to_owned(), reason: error.to_string() })
    }

    fn settle_exactness(&mut self) {
        if self.exactness == Exactness::Off {
            return;
        }
        self.context.kv = KvLayout::Split;
        // Sums have one part for each thread.
        self.context.spare_busy_cpus = false;
        if self.context.flash_attention == FlashAttention::Auto {
            self.context.flash_attention = FlashAttention::Off;
        }
    }

    fn grid(&self) -> Option<Grid> {
        (self.exactness != Exactness::Off).then_some(Grid(self.exact_grid))
    }

    fn budget(&self, n_batch: u32, n_seq: u32, fetches: bool) -> Result<Budget, EngineError> {
        let n_batch = n_batch as usize;
        let chunk = match self.prefill_chunk {
            PrefillChunk::Default => Some(Budget::default_chunk(n_batch)),
            PrefillChunk::Tokens(tokens) => Some(tokens),
            PrefillChunk::Unlimited => None,
        };
        let budget = Budget::new(n_batch, chunk, n_seq as usize, self.grid().map(|grid| grid.0))?;
        // With one sequence nobody else waits for the end of a tick; a fetched row does.
        let is_paced = self.prefill_chunk == PrefillChunk::Default && (n_seq > 1 || fetches);
        Ok(if is_paced { budget.paced() } else { budget })
    }
}
