//! An unfinished request as status answers show it: who sent it, since when, and how far it is.
//!
//! Made when the request is submitted, kept beside its stream, updated by the worker between two ticks. Reading it must
//! never wait for the worker.

use std::time::Instant;

use poncho_api::{OwnerId, RequestProgress, RequestReport, RequestStage};

use crate::calls::request::Request;

/// See the module.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    submitted: Instant,
    session: Option<String>,
    tenant: Option<OwnerId>,
    label: Option<u64>,
    pub(crate) progress: RequestProgress,
}

impl OpenRequest {
    /// A request that the worker has not seen yet.
    pub(crate) fn new(request: &Request, submitted: Instant) -> Self {
        Self {
            submitted,
            session: request.session_id.clone(),
            tenant: request.tenant.map(|tenant| tenant.id),
            label: request.label,
            progress: RequestProgress {
                stage: RequestStage::Queued,
                prompt_tokens: request.tokens.len(),
                cached_tokens: 0,
                processed_tokens: 0,
                generated_tokens: 0,
                tokens_per_second: None,
            },
        }
    }

    pub(crate) fn report(&self) -> RequestReport {
        RequestReport {
            tenant: self.tenant,
            session: self.session.clone(),
            label: self.label,
            age: self.submitted.elapsed(),
            progress: self.progress,
        }
    }
}
