//! The request that a task answers: its id and its trace, for log lines and spans that are made deep inside.
//!
//! Set by the outermost layer around the handler and read where replies are started; what outlives the handler takes a
//! copy along. It must never decide anything: a request is answered alike without one.

use std::future::Future;
use std::sync::Arc;

use crate::telemetry::traces::Trace;

tokio::task_local! {
    static CURRENT: Arc<Scope>;
}

/// See the module.
pub(crate) struct Scope {
    /// The `x-request-id` of the response: the client's own id, if it sent a usable one.
    pub(crate) id: String,
    /// `None` while nobody collects traces, or the caller does not want one.
    pub(crate) trace: Option<Trace>,
}

impl Scope {
    /// Answers a request.
    pub(crate) async fn around<T>(self: Arc<Self>, answer: impl Future<Output = T>) -> T {
        CURRENT.scope(self, answer).await
    }

    /// The request of this task.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }
}
