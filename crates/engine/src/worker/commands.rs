//! The commands that are not requests: sessions, adapters, embeddings, speculation, eviction.
//!
//! Called by the worker's loop; each runs to its end between two ticks. Embeddings are only queued here.

use crate::backend::SeqId;
use crate::config::Checked as _;
use crate::schedule::admission::EndedSession;
use crate::sequence::slots::Slots;
use crate::sequence::start::stop_rereads;
use crate::sequence::tasks::Tasks;
use crate::shared::Shared;
use crate::shared::adapters::LoadedAdapter;
use crate::worker::command::Command;
use crate::worker::embed::Embeds;
use crate::worker::speculate::{draft, verify};

/// Executes one command. Requests and the shutdown are the loop's own.
pub(crate) fn execute(slots: &mut Slots, tasks: &mut Tasks, embeds: &mut Embeds, shared: &Shared, command: Command) {
    // A caller that did not wait for the answer is not an error.
    match command {
        Command::Submit { .. } | Command::Shutdown { .. } | Command::Wake => {}
        Command::EndSession { name, reply } => {
            let is_known = slots.end_session(&name) != EndedSession::Unknown;
            slots.publish_sessions(shared);
            let _ = reply.send(Ok(is_known));
        }
        Command::Embed { id, inputs } => {
            stop_rereads(slots, tasks, shared);
            embeds.push(id, inputs);
        }
        Command::Verify { prefix, draft, reply } => {
            let _ = reply.send(verify(slots, shared, tasks.len(), &prefix, &draft));
        }
        Command::Draft { prefix, count, reply } => {
            let _ = reply.send(draft(slots, shared, tasks.len(), &prefix, count));
        }
        Command::LoadAdapter { info, adapter, reply } => {
            let id = info.id;
            let adapters = slots.adapters().with(LoadedAdapter { info, adapter });
            let _ = reply.send(slots.set_adapters(adapters, shared).map(|()| id));
        }
        Command::UnloadAdapter { id, reply } => {
            let adapters = slots.adapters().without(id);
            let _ = reply.send(slots.set_adapters(adapters, shared));
        }
        Command::ScaleAdapter { id, scale, reply } => {
            let scaled = slots.adapters().with_scale(id, scale);
            let _ = reply.send(scaled.and_then(|adapters| slots.set_adapters(adapters, shared)));
        }
        Command::Evict { reply } => {
            let count = evict(slots, shared);
            slots.publish_sessions(shared);
            let _ = reply.send(Ok(count));
        }
    }
}

/// Saves all idle sessions and clears every sequence that no request runs on. Returns the number of sessions.
fn evict(slots: &mut Slots, shared: &Shared) -> usize {
    let idle: Vec<SeqId> = slots.idle_sessions().map(|(seq, _)| seq).collect();
    for seq in &idle {
        slots.release_session(*seq, shared.config.grid());
    }
    let free: Vec<SeqId> = slots.free().collect();
    for seq in free {
        slots.empty(seq);
    }
    idle.len()
}
