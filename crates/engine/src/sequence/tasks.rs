//! All requests that have a sequence: those that run, those that wait for reads, and replies to compute again.
//!
//! Owned by the worker and handed to everything that moves requests on. Running requests keep the order of their admission,
//! because older ones go first. It must never hold two tasks with the same sequence.

use std::collections::VecDeque;

use slab::Slab;

use crate::backend::Token;
use crate::calls::tenant::Tenant;
use crate::sequence::pending_read::PendingRead;
use crate::sequence::task::Task;

/// A conversation with generated tokens at its end that are not computed on the grid yet.
#[derive(Debug)]
pub(crate) struct Reread {
    pub(crate) tokens: Vec<Token>,
    pub(crate) tenant: Option<Tenant>,
}

/// The name of a running task, valid until the task is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskId(usize);

/// See the module.
#[derive(Default)]
pub(crate) struct Tasks {
    running: Slab<Task>,
    /// In the order of admission.
    order: Vec<TaskId>,
    /// Requests that wait for stored rows, in the order of their admission.
    pub(crate) reading: Vec<PendingRead>,
    /// Replies of exact requests that are computed again on the grid when there is nothing else to do.
    pub(crate) rereads: VecDeque<Reread>,
}

impl Tasks {
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds the youngest task.
    pub(crate) fn push(&mut self, task: Task) -> TaskId {
        debug_assert!(self.iter().all(|(_, other)| other.seq() != task.seq()), "invariant: one task for a sequence");
        let id = TaskId(self.running.insert(task));
        self.order.push(id);
        id
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Task {
        self.order.retain(|other| *other != id);
        self.running.remove(id.0)
    }

    /// The task at a place in the order of admission, which must be below `len`.
    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    pub(crate) fn nth(&self, place: usize) -> TaskId {
        *self.order.get(place).expect("invariant: the place is one of a running task")
    }

    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    pub(crate) fn get(&self, id: TaskId) -> &Task {
        self.running.get(id.0).expect("invariant: the task is running")
    }

    #[expect(clippy::expect_used, reason = "a broken invariant must be loud; the supervisor contains it")]
    pub(crate) fn get_mut(&mut self, id: TaskId) -> &mut Task {
        self.running.get_mut(id.0).expect("invariant: the task is running")
    }

    /// The running tasks, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (TaskId, &Task)> {
        self.order.iter().map(|id| (*id, self.get(*id)))
    }

    /// The running tasks, in no order that matters.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.running.iter_mut().map(|(_, task)| task)
    }

    /// The first task that is over.
    pub(crate) fn first_ended(&self) -> Option<TaskId> {
        self.iter().find(|(_, task)| task.end.is_some()).map(|(id, _)| id)
    }
}
