//! Memory for the context in which a loaded model embeds.
//!
//! The engine makes that context when it is first needed, as large as the longest input needs it; before it does, the
//! server counts it here, and unloads models that nobody uses to make room. Once counted it stays so until the model is
//! unloaded, because the engine keeps the context.

use poncho_api::NodeModel;

use super::Manager;
use super::state::Room;
use crate::error::ApiError;

impl Manager {
    /// Waits until the budget has room for embedding inputs of up to `longest` tokens. The caller holds a lease.
    ///
    /// # Errors
    /// The models in use leave no room, or there is never enough.
    pub(crate) async fn reserve_embedding(&self, model: &dyn NodeModel, longest: usize) -> Result<(), ApiError> {
        let Some(budget) = self.shared.settings.budget else { return Ok(()) };
        let wanted = model.embedding_bytes(longest).await;
        let own = model.report().id.as_str();
        let mut change = self.shared.changes.subscribe();
        loop {
            change.borrow_and_update();
            let (room, needed) = {
                let mut state = self.shared.lock();
                state.follow(&*self.shared.node);
                // A model that the manager does not know is none of its business.
                let Some(entry) = state.entries.get(own) else { return Ok(()) };
                let needed = entry.bytes.saturating_add(wanted);
                (state.make_embedding_room(own, wanted, Some(budget)), needed)
            };
            let id = || own.to_owned();
            match room {
                Room::Taken => return Ok(()),
                Room::TooLarge => return Err(ApiError::EmbeddingTooLarge { model: id(), longest, needed, budget }),
                Room::Busy { used } => return Err(ApiError::NoMemory { model: id(), needed, used, budget }),
                Room::Soon(leaving) => {
                    for other in &leaving {
                        tracing::info!(model = %other.id, "unloaded to make room for embeddings of {}", own);
                    }
                    self.shared.spawn_unloads(leaving);
                    let _ = change.changed().await;
                }
            }
        }
    }
}
