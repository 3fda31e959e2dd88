//! Memory for the context in which a loaded model embeds.
//!
//! The engine makes that context when it is first needed, as large as the longest input needs it; before it does, the
//! server counts it here, and unloads models that nobody uses to make room. Once counted it stays so until the model is
//! unloaded, because the engine keeps the context.

use poncho_engine::{EmbeddingCost, Model};

use super::Manager;
use super::state::Room;
use crate::dialects::shared::blocking;
use crate::http::error::ApiError;

impl Manager {
    /// Waits until the budget has room for embedding inputs of up to `longest` tokens. The caller holds a lease.
    ///
    /// # Errors
    /// The models in use leave no room, or there is never enough.
    pub(crate) async fn reserve_embedding(&self, model: &Model, longest: usize) -> Result<(), ApiError> {
        let Some(budget) = self.shared.settings.budget else { return Ok(()) };
        let cost = self.embedding_cost(model).await?;
        let wanted = cost.bytes(model.embedding_rows(longest));
        let mut change = self.shared.changes.subscribe();
        loop {
            change.borrow_and_update();
            let (room, needed) = {
                let mut state = self.shared.lock();
                state.follow(&self.shared.engine);
                // A model that the manager does not know is none of its business.
                let Some(entry) = state.entries.get(model.id()) else { return Ok(()) };
                let needed = entry.bytes.saturating_add(wanted);
                (state.make_embedding_room(model.id(), wanted, Some(budget)), needed)
            };
            let id = || model.id().to_owned();
            match room {
                Room::Taken => return Ok(()),
                Room::TooLarge => return Err(ApiError::EmbeddingTooLarge { model: id(), longest, needed, budget }),
                Room::Busy { used } => return Err(ApiError::NoMemory { model: id(), needed, used, budget }),
                Room::Soon(leaving) => {
                    for other in &leaving {
                        tracing::info!(model = %other.id, "unloaded to make room for embeddings of {}", model.id());
                    }
                    self.shared.spawn_unloads(leaving);
                    let _ = change.changed().await;
                }
            }
        }
    }

    /// What embedding costs; reads the head of the model's file the first time.
    async fn embedding_cost(&self, model: &Model) -> Result<EmbeddingCost, ApiError> {
        let known = self.shared.lock().entries.get(model.id()).and_then(|entry| entry.embedding_cost);
        if let Some(cost) = known {
            return Ok(cost);
        }
        let asked = model.clone();
        let cost = blocking("looked at a model", move || Ok(EmbeddingCost::of(asked.config()))).await?;
        if let Some(entry) = self.shared.lock().entries.get_mut(model.id()) {
            entry.embedding_cost = Some(cost);
        }
        Ok(cost)
    }
}
