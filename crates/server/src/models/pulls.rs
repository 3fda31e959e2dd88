//! Downloads of models: one for each model however many clients ask for it, ended when the last of them has left.
//!
//! Used by `/api/pull`. The library does the work on a blocking thread; this shares its progress. A download that is
//! ended keeps what has arrived, so asking again goes on from there.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::watch;

use crate::library::{LibraryError, ModelLibrary, PullStep};

/// Where a download stands.
#[derive(Debug, Clone)]
pub(crate) enum PullState {
    Going(PullStep),
    Ended(Result<(), LibraryError>),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pulls {
    running: Mutex<HashMap<String, Weak<Pull>>>,
}

/// A client's part in a download.
pub(crate) struct Pull {
    state: watch::Receiver<PullState>,
    /// How far the bytes came, which the state forgets when it goes on.
    bytes: Arc<Mutex<Option<PullStep>>>,
    is_wanted: Arc<AtomicBool>,
}

impl Drop for Pull {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
    }
}

impl Pull {
    /// The progress, from where it stands now.
    pub(crate) fn watch(&self) -> watch::Receiver<PullState> {
        let mut state = self.state.clone();
        state.mark_changed();
        state
    }

    /// The last that was told of bytes; a fast download may be over before anybody saw it.
    pub(crate) fn bytes(&self) -> Option<PullStep> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Pulls {
    /// Begins to fetch a model, or joins those who wait for it. It goes on as long as somebody holds what this returns.
    pub(crate) fn join(&self, library: &Arc<dyn ModelLibrary>, name: &str) -> Arc<Pull> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|_, pull| pull.strong_count() > 0);
        let is_going = |pull: &Arc<Pull>| matches!(*pull.state.borrow(), PullState::Going(_));
        if let Some(pull) = running.get(name).and_then(Weak::upgrade).filter(is_going) {
            return pull;
        }
        let (tell, state) = watch::channel(PullState::Going(PullStep::Manifest));
        let is_wanted = Arc::new(AtomicBool::new(true));
        let bytes = Arc::new(Mutex::new(None));
        let pull = Arc::new(Pull { state, bytes: Arc::clone(&bytes), is_wanted: Arc::clone(&is_wanted) });
        running.insert(name.to_owned(), Arc::downgrade(&pull));
        let (library, name) = (Arc::clone(library), name.to_owned());
        tokio::task::spawn_blocking(move || {
            let mut step = |step: PullStep| {
                if matches!(step, PullStep::Bytes { .. }) {
                    *bytes.lock().unwrap_or_else(PoisonError::into_inner) = Some(step.clone());
                }
                // Nobody may be listening; then the flag says so.
                let _ = tell.send(PullState::Going(step));
                if is_wanted.load(Ordering::Relaxed) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let ended = library.pull(&name, &mut step);
            if let Err(error) = &ended {
                tracing::warn!(model = %name, %error, "not pulled");
            }
            let _ = tell.send(PullState::Ended(ended));
        });
        pull
    }
}
