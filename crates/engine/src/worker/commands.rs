//! The commands that are no requests: sessions, adapters, speculation, eviction.
//!
//! Part of the worker; each runs to its end between two ticks (embeddings are taken over here and run in `embed.rs`). Verifying and drafting borrow a free sequence and give it
//! back empty, so that no request and no session notices.

use std::sync::Arc;

use crate::adapters::{AdapterSet, LoadedAdapter};
use crate::backend::{Batch, BatchRow, DecodeOutcome, SeqId};
use crate::error::EngineError;
use crate::reply::sampler::argmax;
use crate::schedule::admission::EndedSession;
use crate::state::restore::{Wanted, find_plan};
use crate::worker::Worker;
use crate::worker::command::{Command, SessionInfo, Verified};

impl Worker {
    pub(crate) fn handle_extra(&mut self, command: Command) {
        // A caller that did not wait for the answer is no error.
        match command {
            Command::Submit { .. } | Command::Shutdown { .. } | Command::Wake => {}
            Command::EndSession { name, reply } => {
                let known = self.admission.end_session(&name) != EndedSession::Unknown;
                let _ = reply.send(Ok(known));
            }
            Command::Sessions { reply } => {
                let _ = reply.send(Ok(self.sessions()));
            }
            Command::Embed { id, inputs } => self.start_embedding(id, inputs),
            Command::Verify { prefix, draft, reply } => {
                let _ = reply.send(self.verify(&prefix, &draft));
            }
            Command::Draft { prefix, count, reply } => {
                let _ = reply.send(self.draft(&prefix, count));
            }
            Command::LoadAdapter { info, adapter, reply } => {
                let id = info.id;
                let adapters = self.adapters.with(LoadedAdapter { info, adapter });
                let _ = reply.send(self.set_adapters(adapters).map(|()| id));
            }
            Command::UnloadAdapter { id, reply } => {
                let adapters = self.adapters.without(id);
                let _ = reply.send(self.set_adapters(adapters));
            }
            Command::ScaleAdapter { id, scale, reply } => {
                let changed = self.adapters.with_scale(id, scale).and_then(|adapters| self.set_adapters(adapters));
                let _ = reply.send(changed);
            }
            Command::Adapters { reply } => {
                let _ = reply.send(Ok(self.adapters.infos()));
            }
            Command::Evict { reply } => {
                let idle: Vec<SeqId> = self.admission.idle_sessions().map(|(seq, _, _)| seq).collect();
                for seq in &idle {
                    self.release_session(*seq);
                }
                let leftovers: Vec<SeqId> = self.admission.free().collect();
                for seq in leftovers {
                    self.empty(seq);
                }
                let _ = reply.send(Ok(idle.len()));
            }
        }
    }

    fn sessions(&self) -> Vec<SessionInfo> {
        self.admission
            .idle_sessions()
            .filter_map(|(seq, name, _)| {
                let live = self.live.get(seq)?;
                let key = live.namespace?.key(live.committed());
                Some(SessionInfo { name: name.to_owned(), tokens: live.n_past, key })
            })
            .collect()
    }

    /// Requests that are admitted from now on get these adapters; those in flight keep theirs.
    fn set_adapters(&mut self, adapters: Vec<LoadedAdapter>) -> Result<(), EngineError> {
        self.adapters = Arc::new(AdapterSet::new(adapters, &self.shared.file, self.hashes)?);
        self.shared.set_adapters(Arc::clone(&self.adapters));
        Ok(())
    }

    /// A sequence that nobody needs, emptied.
    fn borrow_sequence(&mut self) -> Result<SeqId, EngineError> {
        if self.admission.free().next().is_none()
            && let Some((seq, _)) = self.admission.lru_idle_session()
        {
            self.release_session(seq);
        }
        let oldest = self.live.oldest(self.admission.free());
        let empty = self.admission.free().find(|seq| self.live.get(*seq).is_none_or(|live| live.namespace.is_none()));
        let busy = EngineError::Overloaded { queued: self.tasks.len(), limit: self.tasks.len() };
        let seq = empty.or(oldest).ok_or(busy)?;
        self.empty(seq);
        Ok(seq)
    }

    /// How many draft tokens the model would have drawn itself after the prefix, and its own next token then.
    fn verify(&mut self, prefix: &[u32], draft: &[u32]) -> Result<Verified, EngineError> {
        let seq = self.borrow_sequence()?;
        let result = self.verify_on(seq, prefix, draft);
        self.empty(seq);
        result
    }

    fn verify_on(&mut self, seq: SeqId, prefix: &[u32], draft: &[u32]) -> Result<Verified, EngineError> {
        self.check_fit(prefix.len() + draft.len())?;
        let mut own = vec![self.read_prefix(seq, prefix)?];
        for (place, token) in draft.iter().enumerate() {
            // Row by row, as generating does: a wider batch takes other kernels and may round otherwise.
            if own.last() != Some(token) {
                break;
            }
            own.push(self.read_rows(seq, prefix.len() + place, &[*token])?);
        }
        let accepted = own.len() - 1;
        let next = own.last().copied().unwrap_or(0);
        Ok(Verified { accepted, next })
    }

    /// The model's own next tokens, drawn greedily.
    fn draft(&mut self, prefix: &[u32], count: usize) -> Result<Vec<u32>, EngineError> {
        let seq = self.borrow_sequence()?;
        let result = self.draft_on(seq, prefix, count);
        self.empty(seq);
        result
    }

    fn draft_on(&mut self, seq: SeqId, prefix: &[u32], count: usize) -> Result<Vec<u32>, EngineError> {
        self.check_fit(prefix.len() + count)?;
        let mut drafted = Vec::with_capacity(count);
        let mut next = self.read_prefix(seq, prefix)?;
        while drafted.len() < count {
            drafted.push(next);
            if self.shared.model.is_eog(next) || drafted.len() == count {
                break;
            }
            next = self.read_rows(seq, prefix.len() + drafted.len() - 1, &[next])?;
        }
        Ok(drafted)
    }

    fn check_fit(&self, tokens: usize) -> Result<(), EngineError> {
        let limit = self.shared.limits.context;
        if tokens > limit { Err(EngineError::PromptTooLong { tokens, limit }) } else { Ok(()) }
    }

    /// Brings a prefix into a sequence, from the cache as far as it goes, and returns the most likely next token.
    fn read_prefix(&mut self, seq: SeqId, prefix: &[u32]) -> Result<u32, EngineError> {
        let set = Arc::clone(&self.adapters);
        self.attach_set(&set)?;
        let namespace = self.adapters.namespace;
        let wanted = Wanted { namespace: &namespace, prompt: prefix, grid: None };
        let plan = find_plan(&self.shared.cache, self.context.info().memory, &wanted, None);
        let restored = self.restorer().restore(seq, &wanted, plan);
        if let Some(logits) = restored.logits {
            return argmax(&logits).map_err(|_| EngineError::Decode { code: -1 });
        }
        self.read_rows(seq, restored.n_past, prefix.get(restored.n_past..).unwrap_or(&[]))
    }

    fn attach_set(&mut self, set: &Arc<AdapterSet>) -> Result<(), EngineError> {
        if !Arc::ptr_eq(set, &self.attached) {
            self.context.set_adapters(&set.uses()).map_err(|error| EngineError::Backend {
                call: "attaching adapters".to_owned(),
                reason: error.to_string(),
            })?;
            self.attached = Arc::clone(set);
        }
        Ok(())
    }

    /// Reads tokens from `position` on and returns the most likely next one.
    fn read_rows(&mut self, seq: SeqId, position: usize, tokens: &[u32]) -> Result<u32, EngineError> {
        let n_batch = self.context.info().n_batch as usize;
        let mut next = 0;
        let mut done = 0;
        for chunk in tokens.chunks(n_batch.max(1)) {
            let rows = chunk.iter().enumerate().map(|(place, token)| BatchRow {
                token: *token,
                pos: u32::try_from(position + done + place).unwrap_or(u32::MAX),
                seq,
                want_logits: done + place + 1 == tokens.len(),
            });
            let batch = Batch { rows: rows.collect() };
            self.shared.running.begin(&self.abort, None);
            let outcome = self.context.decode(&batch);
            self.shared.running.end(&self.abort);
            match outcome {
                DecodeOutcome::Done => {}
                DecodeOutcome::NoRoom => {
                    return Err(EngineError::NoRoom { needed: batch.rows.len(), free: 0 });
                }
                DecodeOutcome::Aborted | DecodeOutcome::Invalid => return Err(EngineError::Decode { code: -1 }),
                DecodeOutcome::Fatal(code) => return Err(EngineError::Decode { code }),
            }
            done += chunk.len();
            if done == tokens.len() {
                let logits = self.context.logits(chunk.len() - 1);
                next = logits.and_then(|logits| argmax(logits).ok()).ok_or(EngineError::Decode { code: -1 })?;
            }
        }
        Ok(next)
    }
}
