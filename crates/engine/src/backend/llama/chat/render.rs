//! Renders that may never end: each on a thread of its own, waited for a bounded time.
//!
//! `chat.rs` runs chat templates here. llama.cpp's template interpreter counts no steps and cannot be interrupted, and a
//! template comes with a model's file, so the author of the file writes the program. A render that takes too long is
//! given up: its caller gets an error and its thread goes on alone, with what it uses. A limited number of renders of a
//! model run at once, given-up ones included, and a template that was given up is not tried again while it still runs. No lock
//! is held while anything is rendered.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::ChatError;

/// What renders may take.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::llama) struct RenderLimits {
    /// How long a caller waits, for its turn and for the result.
    pub(in crate::backend::llama) time: Duration,
    /// Renders at once, those included that were given up and still run.
    pub(in crate::backend::llama) threads: usize,
    /// Templates that stay read for the next render.
    pub(in crate::backend::llama) kept: usize,
    /// The stack of a render; templates and schemas are walked by recursion.
    pub(in crate::backend::llama) stack: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        // The largest prompts take a fraction of a second.
        Self { time: Duration::from_secs(20), threads: 8, kept: 16, stack: 64 << 20 }
    }
}

/// Renders with tools of type `T`, each of which serves one render at a time.
pub(in crate::backend::llama) struct Renders<T> {
    shared: Arc<RenderPool<T>>,
}

struct RenderPool<T> {
    limits: RenderLimits,
    state: Mutex<RenderState<T>>,
    /// A render ended.
    ended: Condvar,
}

struct RenderState<T> {
    idle: HashMap<String, Vec<T>>,
    running: usize,
    /// Given-up renders that still run, by template.
    given_up: HashMap<String, usize>,
}

impl<T> RenderPool<T> {
    fn state(&self) -> MutexGuard<'_, RenderState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running render; notifies the others when it ends, however it ends.
struct Running<T> {
    shared: Arc<RenderPool<T>>,
    name: String,
    tool: Option<T>,
    /// Changed under the lock of the state only.
    fate: Arc<Mutex<Fate>>,
}

/// Who came first: the end of a render, or of its caller's patience.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Runs,
    Ended,
    GivenUp,
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.running = state.running.saturating_sub(1);
        let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        if *fate == Fate::GivenUp {
            if let Some(count) = state.given_up.get_mut(&self.name) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    state.given_up.remove(&self.name);
                }
            }
        } else {
            *fate = Fate::Ended;
            if let Some(tool) = self.tool.take() {
                if state.idle.values().map(Vec::len).sum::<usize>() >= self.shared.limits.kept {
                    state.idle.clear();
                }
                state.idle.entry(std::mem::take(&mut self.name)).or_default().push(tool);
            }
        }
        drop(fate);
        drop(state);
        self.shared.ended.notify_all();
    }
}

impl<T: Send + 'static> Renders<T> {
    pub(in crate::backend::llama) fn new(limits: RenderLimits) -> Self {
        let state = RenderState { idle: HashMap::new(), running: 0, given_up: HashMap::new() };
        Self { shared: Arc::new(RenderPool { limits, state: Mutex::new(state), ended: Condvar::new() }) }
    }

    /// Renders with the template of that name, which `build` reads if no read one is idle.
    pub(in crate::backend::llama) fn run<R: Send + 'static>(
        &self,
        name: &str,
        build: impl FnOnce() -> Result<T, ChatError> + Send + 'static,
        render: impl FnOnce(&T) -> Result<R, ChatError> + Send + 'static,
    ) -> Result<R, ChatError> {
        let limits = self.shared.limits;
        let until = Instant::now() + limits.time;
        let tool = self.begin(name, until)?;
        let fate = Arc::new(Mutex::new(Fate::Runs));
        let mut running =
            Running { shared: Arc::clone(&self.shared), name: name.to_owned(), tool, fate: Arc::clone(&fate) };
        let (send, receive) = sync_channel(1);
        let work = move || {
            let tool = match running.tool.take() {
                Some(tool) => Ok(tool),
                None => build(),
            };
            let rendered = tool.and_then(|tool| render(running.tool.insert(tool)));
            // Ends the render before its result is there, so that the next one finds the tool.
            drop(running);
            // A caller that stopped waiting does not want it.
            let _ = send.send(rendered);
        };
        let thread = std::thread::Builder::new().name("render".to_owned()).stack_size(limits.stack);
        thread.spawn(work).map_err(|_| ChatError::Busy { running: limits.threads })?;
        // Without a result the thread panicked.
        let nothing = || ChatError::Refused { reason: "the render ended without a result".to_owned() };
        match receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(rendered) => return rendered,
            Err(RecvTimeoutError::Disconnected) => return Err(nothing()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut state = self.shared.state();
        let mut fate = fate.lock().unwrap_or_else(PoisonError::into_inner);
        if *fate == Fate::Ended {
            drop((fate, state));
            return receive.recv().unwrap_or_else(|_| Err(nothing()));
        }
        *fate = Fate::GivenUp;
        *state.given_up.entry(name.to_owned()).or_default() += 1;
        drop((fate, state));
        tracing::warn!(limit = ?limits.time, "a chat template runs too long and is abandoned");
        Err(ChatError::TooSlow { waited: limits.time })
    }

    /// Waits for a turn; returns a tool that is idle.
    fn begin(&self, name: &str, until: Instant) -> Result<Option<T>, ChatError> {
        let limits = self.shared.limits;
        let mut state = self.shared.state();
        loop {
            if state.given_up.contains_key(name) {
                return Err(ChatError::TooSlow { waited: limits.time });
            }
            if state.running < limits.threads {
                state.running += 1;
                return Ok(state.idle.get_mut(name).and_then(Vec::pop));
            }
            let left = until.saturating_duration_since(Instant::now());
            // When all threads are taken by templates that were given up, waiting is of no use.
            if left.is_zero() || state.given_up.values().sum::<usize>() >= limits.threads {
                return Err(ChatError::Busy { running: state.running });
            }
            let waited = self.shared.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    fn renders(time: Duration, threads: usize) -> Renders<()> {
        Renders::new(RenderLimits { time, threads, kept: 2, stack: 1 << 20 })
    }

    /// Hardening 14.14: a template that loops forever held the model's lock.
    #[test]
    fn a_render_that_never_ends_is_given_up_and_others_go_on() {
        let renders = renders(Duration::from_millis(50), 2);
        let (release, wait) = channel::<()>();
        let slow = renders.run("slow", || Ok(()), move |()| Ok(wait.recv().is_ok()));
        assert_eq!(slow, Err(ChatError::TooSlow { waited: Duration::from_millis(50) }));
        let again = renders.run("slow", || Ok(()), |()| Ok(true));
        assert!(matches!(again, Err(ChatError::TooSlow { .. })), "it is not tried again while it runs");
        assert_eq!(renders.shared.state().running, 1, "only the one that never ends");
        drop(release);
        let mut state = renders.shared.state();
        while state.running > 0 {
            state = renders.shared.ended.wait(state).unwrap();
        }
        assert!(state.given_up.is_empty());
        assert!(state.idle.is_empty(), "what it used is not used again");
    }

    #[test]
    fn other_templates_are_rendered_beside_one_that_never_ends() {
        let renders = Arc::new(renders(Duration::from_secs(600), 2));
        let (begun, is_begun) = channel();
        let (release, wait) = channel::<()>();
        let slow = std::thread::spawn({
            let renders = Arc::clone(&renders);
            move || {
                renders.run(
                    "slow",
                    || Ok(()),
                    move |()| {
                        let _ = begun.send(());
                        Ok(wait.recv().is_err())
                    },
                )
            }
        });
        is_begun.recv().unwrap();
        assert_eq!(renders.run("quick", || Ok(()), |()| Ok(7)), Ok(7));
        drop(release);
        assert_eq!(slow.join().unwrap(), Ok(true));
    }

    #[test]
    fn threads_that_were_given_up_count_and_are_not_waited_for() {
        let renders = renders(Duration::from_millis(50), 1);
        let (release, wait) = channel::<()>();
        assert!(renders.run("slow", || Ok(()), move |()| Ok(wait.recv().is_ok())).is_err());
        assert_eq!(renders.run("quick", || Ok(()), |()| Ok(())), Err(ChatError::Busy { running: 1 }));
        drop(release);
    }

    #[test]
    fn a_template_is_read_once_and_errors_and_panics_free_their_thread() {
        let renders = renders(Duration::from_secs(600), 1);
        let built = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let built = Arc::clone(&built);
            let build = move || {
                built.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            renders.run("own", build, |()| Ok(())).unwrap();
        }
        assert_eq!(built.load(Ordering::Relaxed), 1);
        let bad = || Err(ChatError::BadTemplate { reason: String::new() });
        assert!(renders.run("bad", bad, |()| Ok(())).is_err());
        assert!(matches!(
            renders.run::<()>("panics", || Ok(()), |()| panic!("on purpose")),
            Err(ChatError::Refused { .. })
        ));
        assert_eq!(renders.run("own", || Ok(()), |()| Ok(1)), Ok(1));
    }
}
