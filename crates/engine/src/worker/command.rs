//! What reaches a worker: requests and the other commands of a model, as plain owned data.
//!
//! Made by the model's handle, taken by the worker between two ticks. The channels inside only carry the answer back.

use std::sync::Arc;
use std::time::Instant;

pub use poncho_api::{SessionInfo, Verified};

use crate::backend::{Adapter, Grammar};
use crate::calls::request::{Request, RequestId};
use crate::calls::stream::EventSender;
use crate::shared::adapters::{AdapterId, AdapterInfo};
use crate::shared::embedding::Reply;

/// See the module.
pub(crate) enum Command {
    /// A checked request.
    Submit {
        id: RequestId,
        request: Box<Request>,
        grammar: Option<Box<dyn Grammar>>,
        events: EventSender,
        /// When the caller handed it over: what it waits for the worker is part of its wait.
        submitted: Instant,
    },
    /// Forget a session.
    EndSession { name: String, reply: Reply<bool> },
    /// Embeddings of some inputs; answered through the model's open calls.
    Embed { id: RequestId, inputs: Vec<Vec<u32>> },
    /// How many draft tokens the model agrees with.
    Verify { prefix: Vec<u32>, draft: Vec<u32>, reply: Reply<Verified> },
    /// The model's own next tokens.
    Draft { prefix: Vec<u32>, count: usize, reply: Reply<Vec<u32>> },
    /// Attach an adapter.
    LoadAdapter { info: AdapterInfo, adapter: Arc<dyn Adapter>, reply: Reply<AdapterId> },
    /// Detach an adapter.
    UnloadAdapter { id: AdapterId, reply: Reply<()> },
    /// Change an adapter's strength.
    ScaleAdapter { id: AdapterId, scale: f32, reply: Reply<()> },
    /// Save every idle session and give its sequence back.
    Evict { reply: Reply<usize> },
    /// Stored rows were read: look at them.
    Wake,
    /// Save what there is and end.
    Shutdown { reply: Reply<()> },
}
