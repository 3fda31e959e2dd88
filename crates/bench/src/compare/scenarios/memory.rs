//! Scenario 7: resident memory idle, with a prompt, and under load; bytes on disk and bytes written for a conversation.
//!
//! Needs to know the processes. A server without a cache folder has no bytes on disk, and its column stays empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::compare::args::Scenario;
use crate::compare::contender::Contender;
use crate::compare::round::Ring;
use crate::compare::sheet::{Kind, Pair, Unit};
use crate::measure::call::Call;
use crate::measure::machine::resident_bytes;

const SCENARIO: Scenario = Scenario::Memory;
const KIND: Kind = Kind { scenario: SCENARIO, unit: Unit::Mebibytes, target: None };
const STREAMS: usize = 8;
/// Often enough to see the largest size of a run that takes seconds.
const LOOK: Duration = Duration::from_millis(20);

pub(super) async fn run(ring: &mut Ring) -> anyhow::Result<()> {
    let unknown = ring.sides().map(|server| server.pid().is_none());
    for (_, flag) in unknown.into_iter().zip(["--poncho-pid", "--peer-pid"]).filter(|(unknown, _)| *unknown) {
        ring.skipped.push(format!("memory: resident size needs {flag}"));
    }
    // Other scenarios grow the servers; only a fresh one is idle.
    if ring.can_restart("memory: idle size of fresh servers") {
        ring.restart(SCENARIO).await;
    }
    let size = |server: &Contender| server.pid().and_then(resident_bytes);
    note(ring, "resident, idle", "idle", async |server| Ok(size(server))).await;
    let call = Call::new(&ring.prompts.text("memory", ring.plan.long), "Go on.", 16)?;
    let before = ring.both((SCENARIO, 1), "disk before", async |server| disk(server).await).await;
    note(ring, "resident, one conversation", "one conversation", async |server| {
        call.send(&server.client, &server.model).await?;
        Ok(size(server))
    })
    .await;
    let after = ring.both((SCENARIO, 1), "disk after", async |server| disk(server).await).await;
    for (name, figure) in
        [("on disk, one conversation", (|disk: &Disk| disk.stored) as fn(&Disk) -> _), ("written", |disk| disk.written)]
    {
        let grown = |after: &Option<Disk>, before: &Option<Disk>| {
            Some(mebibytes(figure(after.as_ref()?)?.saturating_sub(figure(before.as_ref()?)?)))
        };
        let pair = Pair { poncho: grown(&after.poncho, &before.poncho), peer: grown(&after.peer, &before.peer) };
        ring.add(1, KIND, name, pair);
    }
    let reply = ring.plan.replies.iter().copied().max().unwrap_or(1);
    let streams =
        (0..STREAMS).map(|stream| Call::new(&ring.prompts.text(&format!("load-{stream}"), 64), "Go on.", reply));
    let streams = streams.collect::<anyhow::Result<Vec<_>>>()?;
    note(ring, "resident, most under load", "load", async |server| {
        let Some(pid) = server.pid() else { return Ok(None) };
        let watch = Watch::start(pid);
        server.send_all(&streams).await?;
        Ok(watch.most())
    })
    .await;
    Ok(())
}

async fn note(ring: &mut Ring, name: &str, step: &str, work: impl AsyncFn(&Contender) -> anyhow::Result<Option<u64>>) {
    let both = ring.both((SCENARIO, 1), step, work).await;
    ring.add(1, KIND, name, both.pair(|bytes| bytes.map(mebibytes)));
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// What a server keeps on disk.
#[derive(Debug, Clone, Copy)]
struct Disk {
    stored: Option<u64>,
    written: Option<u64>,
}

async fn disk(server: &Contender) -> anyhow::Result<Disk> {
    // Asked first: it waits until everything is written.
    let written = server.written_bytes().await?;
    Ok(Disk { stored: server.stored_bytes(), written })
}

/// Looks at the size of a process until it is dropped.
struct Watch {
    most: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn start(pid: u32) -> Self {
        let watch = Self { most: Arc::default(), stop: Arc::default() };
        let (most, stop) = (Arc::clone(&watch.most), Arc::clone(&watch.stop));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                most.fetch_max(resident_bytes(pid).unwrap_or(0), Ordering::Relaxed);
                tokio::time::sleep(LOOK).await;
            }
        });
        watch
    }

    fn most(&self) -> Option<u64> {
        Some(self.most.load(Ordering::Relaxed)).filter(|most| *most > 0)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
