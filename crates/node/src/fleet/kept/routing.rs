//! Which node of a fleet a request goes to: by the advice of a cluster, or by conversation and load.
//!
//! Called for each request. Advice needs a call to a node, which renders the prompt; without it, or if that fails, the
//! request goes on by `choice.rs`.

use std::sync::Arc;

use poncho_api::{EngineError, Generate, Mode, ModelReport, NodeModel};
use poncho_cluster::bus::Chosen;
use poncho_cluster::route::Dispatch;

use super::super::choice::{Candidate, choose, conversation};
use super::{Having, Kept};
use crate::journey::Journey;
use crate::link::NodeAddress;
use crate::remote::{Note, RemoteModel};

/// Where a prompt would go.
#[derive(Debug, Clone)]
pub struct Routed {
    /// The model.
    pub model: String,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// The node that rendered it.
    pub rendered_by: NodeAddress,
    /// The node, and what the prompt costs on each.
    pub chosen: Chosen,
}

impl Kept {
    /// Without advice: a conversation prefers one node, and a busy one is passed over.
    pub(super) fn choose(&self, having: &[Having], talk: Option<u64>) -> Option<usize> {
        let load = |model: &RemoteModel| {
            let status = model.status();
            status.active + status.pending
        };
        let all = having.iter().map(|(number, _, model)| Candidate { number: *number, load: load(model) });
        let takes = |candidate: &Candidate| {
            let address = self.address(candidate.number);
            self.router.as_ref().zip(address).is_none_or(|(router, address)| router.takes_requests(&address))
        };
        let (taking, draining): (Vec<Candidate>, Vec<Candidate>) = all.partition(takes);
        // With one node there is nothing to choose.
        let candidates = if taking.is_empty() { draining } else { taking };
        let talk = talk.filter(|_| candidates.len() > 1);
        choose(&candidates, talk)
    }

    /// After a node refused a request, only advice finds another one.
    ///
    /// # Errors
    /// A node was full, and there is no advice.
    pub(super) fn check_full(&self, model: &ModelReport, journey: Option<&Journey>) -> Result<(), EngineError> {
        match (&self.router, journey) {
            (Some(router), Some(journey)) if journey.is_refused => {
                let seconds = router.lookout.retry_after(&model.id).after.as_secs();
                Err(EngineError::NodesFull { seconds })
            }
            _ => Ok(()),
        }
    }

    /// The node that a cluster advises for a prompt. `None` if it has no advice.
    pub(super) async fn route(
        &self,
        model: &ModelReport,
        having: &[Having],
        talk: u64,
        (generate, journey): (&Generate, &mut Journey),
    ) -> Result<Option<(usize, Note)>, EngineError> {
        let Some(router) = &self.router else { return Ok(None) };
        let among: Vec<NodeAddress> = having.iter().filter_map(|(number, ..)| self.address(*number)).collect();
        let renderer = router.last(talk).filter(|last| having.iter().any(|(number, ..)| number == last));
        let renderer = renderer.or_else(|| self.choose(having, Some(talk)));
        // What a session holds is on one node, and nobody announces it.
        if generate.request.session_id.is_some() || generate.request.mode == Mode::Continue {
            let last = renderer.filter(|number| router.last(talk) == Some(*number));
            if let Some(address) = last.and_then(|number| self.address(number)) {
                router.sent(journey, &address);
            }
            return Ok(last.map(|number| (number, Arc::new(()) as Note)));
        }
        let Some((_, _, rendering)) = having.iter().find(|(number, ..)| Some(*number) == renderer) else {
            return Ok(None);
        };
        // An error of the prompt is the same one that the reply would end with.
        let Ok(rendered) = rendering.render(generate.clone()).await else { return Ok(None) };
        let Some(placed) = router.place(model, (generate, journey), &rendered, &among)? else { return Ok(None) };
        router.lookout.ready(&placed.chosen).await;
        let at = placed.chosen.address.parse::<NodeAddress>().ok();
        let number = having.iter().map(|(number, ..)| *number).find(|number| self.address(*number) == at);
        Ok(number.map(|number| (number, Arc::new(placed) as Note)))
    }

    pub(in crate::fleet) async fn explain_route(
        this: &Arc<Self>,
        model: Option<&str>,
        generate: &Generate,
    ) -> Result<Routed, EngineError> {
        let handle = match model {
            Some(id) => Self::model(this, id),
            None => Self::models(this).into_iter().next(),
        };
        let unknown = || EngineError::UnknownModel { model: model.unwrap_or("any model").to_owned() };
        let handle = handle.ok_or_else(unknown)?;
        let report = handle.report();
        let router = this.router.as_ref().ok_or_else(|| EngineError::Unsupported { what: "routing".to_owned() })?;
        let having = this.having(report);
        let among: Vec<NodeAddress> = having.iter().filter_map(|(number, ..)| this.address(*number)).collect();
        let renderer = this.choose(&having, Some(conversation(generate))).ok_or_else(unknown)?;
        let (_, _, rendering) = having.iter().find(|(number, ..)| *number == renderer).ok_or_else(unknown)?;
        let rendered_by = this.address(renderer).ok_or_else(unknown)?;
        let rendered = rendering.render(generate.clone()).await?;
        let chosen = router.choose(report, generate, &rendered, &among, &Dispatch::new(), false);
        let chosen = chosen.map_err(|refusal| EngineError::NodesFull { seconds: refusal.after.as_secs() })?;
        Ok(Routed { model: report.id.clone(), tokens: rendered.tokens.len(), rendered_by, chosen })
    }
}
