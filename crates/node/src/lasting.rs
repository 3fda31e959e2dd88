//! Models by their name, with calls and replies that outlive the process or the machine that computes them.
//!
//! Given out by `child` and `fleet`, which both are a [`Keeper`]: it knows where a model is now and what a loss means.

mod heard;
mod model;
mod poison;
mod surviving;

use std::sync::Arc;

use async_trait::async_trait;
use poncho_api::{AdapterId, EngineError, Generate, ModelReport};
use tokio::sync::OwnedMutexGuard;

pub(crate) use self::model::LastingModel;
pub(crate) use self::poison::Poison;
use crate::journey::Journey;
use crate::remote::{Note, RemoteModel, RemoteNode};

/// A model on a node that serves.
pub(crate) struct Up {
    pub(crate) node: RemoteNode,
    pub(crate) model: Arc<RemoteModel>,
    pub(crate) note: Option<Note>,
}

/// Where models are, as long as somebody wants them.
#[async_trait]
pub(crate) trait Keeper: Send + Sync + 'static {
    /// The model, once a node that has it serves, and that node. With several, the prompt and what the request went through
    /// say which one is best.
    async fn up_model(&self, model: &ModelReport, asked: Option<(&Generate, &mut Trial)>) -> Result<Up, EngineError>;

    /// A node refused a request. Returns whether another one may be tried.
    fn may_go_elsewhere(&self, trial: &mut Trial, error: &EngineError) -> bool;

    /// The model on each node that has it at this moment.
    fn models_now(&self, model: &ModelReport) -> Vec<Arc<RemoteModel>>;

    /// A call to this node was lost: nobody else calls it, also before its end is noticed.
    fn is_lost(&self, node: &RemoteNode);

    /// Before a new request: some wait until it is known which one ended the last process.
    async fn admit(&self, model: &ModelReport) -> Trial;

    /// A request lost this node, which had begun to compute it or not. Says whether it may be asked again.
    async fn judge(&self, trial: &mut Trial, lost: &RemoteNode, is_begun: bool) -> Result<Verdict, EngineError>;

    /// Requests that are refused.
    fn poison(&self) -> &Poison;

    /// Whether adapters can be attached while the model runs.
    fn check_adapters(&self, model: &ModelReport) -> Result<(), EngineError>;

    /// An adapter was attached, changed or detached.
    fn keep_adapter(&self, model: &str, change: AdapterChange);
}

/// What a request went through since it last made progress.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trial {
    /// Held by a request that is alone on trial; replies to one call share it.
    pub(crate) alone: Option<Arc<OwnedMutexGuard<()>>>,
    /// Nodes that it lost.
    pub(crate) losses: u32,
    /// Those of them that ended by themselves.
    pub(crate) crashes: u32,
    /// The nodes of a cluster that it was sent to.
    pub(crate) journey: Journey,
}

/// What becomes of a request that lost its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is asked again.
    Again,
    /// It is the cause.
    Blamed,
}

/// A change of an adapter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AdapterChange {
    Attached(AdapterId, std::path::PathBuf, f32),
    Scaled(AdapterId, f32),
    Detached(AdapterId),
}
