//! The requests of a replay that are in flight.
//!
//! Used by `replay.rs`. Conversations run side by side; the requests of one conversation stay in their order.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use poncho_terminal::Progress;
use tokio::task::JoinSet;

use crate::replay::report::Step;

/// Requests in flight: a limited number at the same time, and only one of each conversation.
pub(crate) struct Flight {
    at_once: usize,
    running: JoinSet<(Option<String>, anyhow::Result<Step>)>,
    threads: BTreeMap<Option<String>, usize>,
    steps: Vec<Step>,
    progress: Progress,
}

impl Flight {
    pub(crate) fn new(at_once: u32, progress: Progress) -> Self {
        let at_once = usize::try_from(at_once).unwrap_or(usize::MAX);
        Self { at_once, running: JoinSet::new(), threads: BTreeMap::new(), steps: Vec::new(), progress }
    }

    /// Waits until another request of this conversation may be sent.
    pub(crate) async fn wait_for_place(&mut self, thread: Option<&str>) -> anyhow::Result<()> {
        let thread = thread.map(str::to_owned);
        while self.running.len() >= self.at_once || self.threads.get(&thread).is_some_and(|count| *count > 0) {
            self.wait_for_one().await?;
        }
        Ok(())
    }

    pub(crate) fn start(
        &mut self,
        thread: Option<String>,
        sending: impl Future<Output = anyhow::Result<Step>> + Send + 'static,
    ) {
        *self.threads.entry(thread.clone()).or_default() += 1;
        self.running.spawn(async move { (thread, sending.await) });
    }

    async fn wait_for_one(&mut self) -> anyhow::Result<()> {
        let Some(ended) = self.running.join_next().await else { bail!("no request is in flight") };
        let (thread, step) = ended.context("a request was interrupted")?;
        if let Some(count) = self.threads.get_mut(&thread) {
            *count = count.saturating_sub(1);
        }
        self.steps.push(step?);
        self.progress.add(1);
        Ok(())
    }

    /// Waits for all requests and returns the steps in the order of the trace.
    pub(crate) async fn land(mut self) -> anyhow::Result<Vec<Step>> {
        while !self.running.is_empty() {
            self.wait_for_one().await?;
        }
        self.steps.sort_by_key(|step| step.index);
        Ok(self.steps)
    }
}
