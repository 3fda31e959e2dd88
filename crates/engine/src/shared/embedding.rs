//! A call for embeddings as its caller sees it, and the calls of a model that are open.
//!
//! Made by the model's handle; `embed.rs` computes the vectors and answers. Dropping the handle cancels the call: the
//! input that is being computed is aborted, the others are never computed. A worker that dies or hangs cannot leave a
//! caller without an answer, because the answers' channels lie here and not with the worker.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::calls::request::RequestId;
use crate::error::EngineError;
use crate::shared::Shared;

/// Where an answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, EngineError>>;

/// One vector for each input, in the order of the inputs.
pub(crate) type Vectors = Vec<Vec<f32>>;

/// The calls of a model that have no answer yet.
#[derive(Debug, Default)]
pub(crate) struct OpenEmbeddings {
    open: Mutex<HashMap<RequestId, Reply<Vectors>>>,
}

impl OpenEmbeddings {
    /// Opens a call, unless too many are open.
    pub(crate) fn open(&self, id: RequestId, reply: Reply<Vectors>, limit: usize) -> Result<(), EngineError> {
        let mut open = self.lock();
        if open.len() >= limit {
            return Err(EngineError::Overloaded { queued: open.len(), limit });
        }
        open.insert(id, reply);
        Ok(())
    }

    /// Whether somebody still waits for the answer.
    pub(crate) fn is_open(&self, id: RequestId) -> bool {
        self.lock().contains_key(&id)
    }

    /// Answers a call. Nothing happens if its caller is gone.
    pub(crate) fn answer(&self, id: RequestId, answer: Result<Vectors, EngineError>) {
        let reply = self.lock().remove(&id);
        if let Some(reply) = reply {
            let _ = reply.send(answer);
        }
    }

    /// Forgets a call that nobody waits for.
    fn cancel(&self, id: RequestId) {
        self.lock().remove(&id);
    }

    /// Takes all calls out; the caller answers them.
    pub(crate) fn close_all(&self) -> impl Iterator<Item = Reply<Vectors>> + use<> {
        std::mem::take(&mut *self.lock()).into_values()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Reply<Vectors>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call for embeddings that is under way. Dropping it cancels the call.
#[must_use = "dropping it cancels the call"]
pub struct Embedding {
    id: RequestId,
    shared: Arc<Shared>,
    answer: Option<oneshot::Receiver<Result<Vectors, EngineError>>>,
    normalises: bool,
}

impl fmt::Debug for Embedding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Embedding").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Embedding {
    pub(crate) fn new(
        id: RequestId,
        shared: &Arc<Shared>,
        answer: oneshot::Receiver<Result<Vectors, EngineError>>,
        normalises: bool,
    ) -> Self {
        Self { id, shared: Arc::clone(shared), answer: Some(answer), normalises }
    }

    /// The engine's name for the call.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Waits for the vectors, one for each input, without a runtime.
    ///
    /// # Errors
    /// The model cannot embed, or its worker ended.
    pub fn wait(mut self) -> Result<Vec<Vec<f32>>, EngineError> {
        let answer = self.answer.take().and_then(|answer| answer.blocking_recv().ok());
        self.finish(answer)
    }

    /// The vectors, one for each input.
    ///
    /// # Errors
    /// As [`Embedding::wait`].
    pub async fn ready(mut self) -> Result<Vec<Vec<f32>>, EngineError> {
        let answer = match &mut self.answer {
            Some(answer) => answer.await.ok(),
            None => None,
        };
        self.finish(answer)
    }

    fn finish(&self, answer: Option<Result<Vectors, EngineError>>) -> Result<Vectors, EngineError> {
        let mut vectors = answer.unwrap_or_else(|| {
            let model = self.shared.config.id.clone();
            Err(EngineError::WorkerDied { model, reason: "it ended before it answered".to_owned() })
        })?;
        if self.normalises {
            vectors.iter_mut().for_each(|vector| to_unit_length(vector));
        }
        Ok(vectors)
    }
}

impl Drop for Embedding {
    fn drop(&mut self) {
        self.shared.embeddings.cancel(self.id);
        self.shared.running.cancel(self.id);
    }
}

fn to_unit_length(vector: &mut [f32]) {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        #[expect(clippy::cast_possible_truncation, reason = "the quotient is at most 1")]
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}
