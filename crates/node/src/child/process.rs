//! The process itself: starting it, watching it, loading its models again, and ending it.
//!
//! One task for each child node. It is the only one that changes the state that others wait for.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use poncho_api::{EngineError, LoadEvent, Node as _, NodeModel as _};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::sync::{Mutex, watch};

use super::crash::{self, CrashedModel, LastLines};
use super::supervised::{State, Supervised, Wanted, lock};
use crate::link::Place;
use crate::remote::RemoteNode;

/// The pause before a process that ended soon after its start is started again, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause before a process that cannot be started is tried again.
const LONGEST_FAILING_PAUSE: Duration = Duration::from_secs(30);
/// A process that ran for longer was well.
const RAN_WELL: Duration = Duration::from_secs(2);
/// Starts that fail one after the other before callers get an error; the process is tried again all the same.
const FAILED_STARTS: u32 = 3;
/// How long a process may live on after its connection is closed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Keeps the process running until it is stopped.
pub(super) async fn supervise(supervised: Arc<Supervised>) {
    let mut pause = FIRST_PAUSE;
    let mut failed_starts = 0;
    loop {
        let began = Instant::now();
        let lines = Arc::new(Mutex::new(LastLines::default()));
        let (mut child, _stdin, node) = match start(&supervised, &lines).await {
            Ok(started) => started,
            Err(reason) => {
                supervised.process_id.send_replace(None);
                failed_starts += 1;
                // A first start that fails is an error of the one who wanted it.
                if supervised.models_are_new() {
                    supervised.state.send_replace(State::Ended(reason.clone()));
                }
                if is_ended(&supervised) {
                    return;
                }
                tracing::error!(reason, "the engine's process did not start; it is tried again");
                if failed_starts >= FAILED_STARTS {
                    supervised.state.send_replace(State::Failing(reason));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_FAILING_PAUSE);
                continue;
            }
        };
        failed_starts = 0;
        let mut loading = None;
        let is_whole = load_again(&supervised, &node, &mut loading).await;
        if is_ended(&supervised) {
            return;
        }
        // One that ended meanwhile is noticed below, and the next one loads the models.
        if is_whole {
            supervised.state.send_replace(State::Up(node.clone()));
        }
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                // It lives and no longer speaks. One that is being stopped gets its time from `stop`.
                () = node.closed() => break end_of(&supervised, &mut child).await,
                () = supervised.overdue.notified() => break killed(&mut child).await,
                id = due(&supervised), if is_whole => try_again(&supervised, &node, &id, &mut loading).await,
            }
        };
        supervised.process_id.send_replace(None);
        let models = crashed_models(&supervised);
        if is_ended(&supervised) {
            return;
        }
        supervised.state.send_replace(State::Starting);
        let ran_for = began.elapsed();
        if let Ok(status) = status {
            // SIGHUP, SIGINT, SIGKILL, SIGTERM: a person, a service manager, or the kernel for want of memory.
            let is_killed = status.signal().is_some_and(|signal| [1, 2, 9, 15].contains(&signal));
            if !is_killed {
                node.note_crash();
            }
            let ended_by = crash::ended_by(status);
            let mut lines = lines.lock().await;
            match crash::record(&supervised.launch.crashes, status, ran_for, models, &mut lines) {
                Ok(path) => tracing::error!(
                    ended_by, report = %path.display(),
                    "the engine's process ended; it is started again and replies continue"
                ),
                Err(error) => tracing::error!(ended_by, %error, "the engine's process ended; it is started again"),
            }
            if !is_killed {
                let suspects = loading.map_or_else(|| node.suspects(), |model| vec![model]);
                for model in supervised.aside.crashed(&suspects, tokio::time::Instant::now()) {
                    tracing::error!(model, "the model ended the engine's process again and again, and is set aside");
                }
            }
        }
        // A process that ran for a while is started again at once: somebody is waiting for a reply.
        if ran_for > RAN_WELL {
            pause = FIRST_PAUSE;
        } else {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Waits until a model has rested long enough.
async fn due(supervised: &Supervised) -> String {
    match supervised.aside.next() {
        Some((model, until)) => {
            tokio::time::sleep_until(until).await;
            model
        }
        // The process has to end before another one rests.
        None => std::future::pending().await,
    }
}

/// Loads a model that has rested.
async fn try_again(supervised: &Arc<Supervised>, node: &RemoteNode, id: &str, loading: &mut Option<String>) {
    let wanted = lock(&supervised.wanted).get(id).cloned();
    let Some(wanted) = wanted else { return supervised.aside.forget(id) };
    tracing::info!(model = id, "a model that was set aside is loaded again");
    if load_one(supervised, node, id, wanted, loading).await {
        supervised.aside.is_back(id);
    }
}

/// The end of a process that closed its connection, by force if it does not come by itself.
async fn end_of(supervised: &Supervised, child: &mut Child) -> io::Result<ExitStatus> {
    if is_ended(supervised) {
        return tokio::select! {
            status = child.wait() => status,
            () = supervised.overdue.notified() => killed(child).await,
        };
    }
    if let Ok(status) = tokio::time::timeout(LAST_WORDS, child.wait()).await {
        return status;
    }
    killed(child).await
}

async fn killed(child: &mut Child) -> io::Result<ExitStatus> {
    child.start_kill()?;
    child.wait().await
}

/// Ends the process. Says whether it ended by itself.
pub(super) async fn stop(supervised: &Supervised, limit: Duration) -> bool {
    let before = supervised.state.send_replace(State::Ended("the server is shutting down".to_owned()));
    let State::Up(node) = before else { return true };
    let ended = async {
        if node.stop().await.is_err() {
            return;
        }
        // Its connection closes before its states are saved, so only its end counts: it gives up when this process ends.
        let _ = supervised.process_id.subscribe().wait_for(Option::is_none).await;
    };
    // One that hangs does not even answer that it is going to end.
    let is_in_time = tokio::time::timeout(limit, ended).await.is_ok();
    if !is_in_time {
        supervised.overdue.notify_one();
        let mut process = supervised.process_id.subscribe();
        let _ = tokio::time::timeout(LAST_WORDS, process.wait_for(Option::is_none)).await;
    }
    is_in_time
}

fn is_ended(supervised: &Supervised) -> bool {
    matches!(&*supervised.state.borrow(), State::Ended(_))
}

impl Supervised {
    /// Whether nothing was ever loaded: a first start that fails is an error at once.
    fn models_are_new(&self) -> bool {
        lock(&self.wanted).is_empty()
    }
}

/// A child, and the pipe that keeps it: waiting for a child closes a pipe that it still owns.
type Started = (Child, Option<ChildStdin>, RemoteNode);

async fn start(supervised: &Supervised, lines: &Arc<Mutex<LastLines>>) -> Result<Started, String> {
    let launch = &supervised.launch;
    let folder = tempfile::Builder::new().prefix("poncho-node-").tempdir();
    let folder = folder.map_err(|error| format!("no folder for its socket: {error}"))?;
    let socket = folder.path().join("socket");
    let place = Place::Socket(socket.clone());
    let mut child = Command::new(&launch.program)
        .args(&launch.arguments)
        .envs(launch.variables.iter().map(|(name, value)| (name, value)))
        .env(launch.socket_variable, &socket)
        // The service manager hears from this process only.
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", launch.program.display()))?;
    supervised.process_id.send_replace(child.id());
    let stdin = child.stdin.take();
    let (serves, is_serving) = watch::channel(false);
    let log =
        child.stderr.take().map(|stderr| tokio::spawn(pass_on(stderr, Arc::clone(lines), is_serving, launch.note)));
    let connected = tokio::select! {
        connected = RemoteNode::connect(&place, launch.start_within) => connected.map_err(|error| error.to_string()),
        status = child.wait() => Err(match status {
            Ok(status) => format!("it ended with {} before it served", crash::ended_by(status)),
            Err(error) => error.to_string(),
        }),
    };
    // Nothing is sent otherwise: what the process said is the reason then, and is not shown as its log.
    if connected.is_ok() {
        let _ = serves.send(true);
    }
    let connected = match (connected, log) {
        (Err(reason), Some(log)) => {
            drop(serves);
            // A process that ended has said why.
            let said = tokio::time::timeout(LAST_WORDS, log).await.ok().and_then(Result::ok).unwrap_or_default();
            let said = said.trim();
            Err(if said.is_empty() { reason } else { said.strip_prefix("error: ").unwrap_or(said).to_owned() })
        }
        (connected, _) => connected,
    };
    // The connection stays when the name is gone.
    connected.map(|node| (child, stdin, node))
}

/// Shows the log of a process that serves, and keeps its last lines. Returns what one wrote that never served.
async fn pass_on(
    stderr: ChildStderr,
    lines: Arc<Mutex<LastLines>>,
    mut is_serving: watch::Receiver<bool>,
    note: Option<fn(&str)>,
) -> String {
    let mut reader = BufReader::new(stderr).split(b'\n');
    let mut unshown = String::new();
    loop {
        let line = tokio::select! {
            line = reader.next_segment() => line,
            Ok(()) = is_serving.changed() => {
                show(&std::mem::take(&mut unshown), note);
                continue;
            }
        };
        let Ok(Some(line)) = line else { return unshown };
        let line = String::from_utf8_lossy(&line);
        lines.lock().await.push(&line);
        if *is_serving.borrow() {
            show(&format!("{line}\n"), note);
        } else {
            unshown.push_str(&line);
            unshown.push('\n');
        }
    }
}

fn show(text: &str, note: Option<fn(&str)>) {
    // The log of the child belongs where it would write it itself. Nobody may read it any longer.
    let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
    if let Some(note) = note {
        text.lines().for_each(note);
    }
}

/// Loads the models that the last process had, without those that rest. Says whether the process lived to the end of it.
async fn load_again(supervised: &Arc<Supervised>, node: &RemoteNode, loading: &mut Option<String>) -> bool {
    let wanted: Vec<(String, Wanted)> = lock(&supervised.wanted).clone().into_iter().collect();
    for (id, wanted) in wanted {
        if supervised.aside.rest(&id, tokio::time::Instant::now()).is_some() {
            continue;
        }
        if !load_one(supervised, node, &id, wanted, loading).await {
            return false;
        }
    }
    true
}

/// Loads one of them. Says whether the process lived to the end of it; `loading` names the model if not.
async fn load_one(
    supervised: &Arc<Supervised>,
    node: &RemoteNode,
    id: &str,
    wanted: Wanted,
    loading: &mut Option<String>,
) -> bool {
    let Wanted { mut model, adapters } = wanted;
    // It was tried in a process of its own when it was loaded first.
    model.config.prober = None;
    let mut events = node.load(model);
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event);
    }
    if matches!(last, Some(LoadEvent::Failed(EngineError::NodeLost { .. }))) {
        *loading = Some(id.to_owned());
        return false;
    }
    if last != Some(LoadEvent::Loaded) {
        tracing::error!(model = id, ?last, "the model was not loaded again");
        supervised.forget_model(id);
        return true;
    }
    let Some(loaded) = node.remote_model(id) else { return true };
    let mut again = Vec::new();
    for (known, path, scale) in adapters {
        match loaded.load_adapter(&path, scale).await {
            Ok(attached) if attached == known => again.push((known, path, scale)),
            Ok(attached) => {
                tracing::warn!(model = id, adapter = attached.0, "an adapter has another number after the restart");
                again.push((attached, path, scale));
            }
            Err(error) => tracing::error!(model = id, %error, "an adapter was not loaded again"),
        }
    }
    if let Some(wanted) = lock(&supervised.wanted).get_mut(id) {
        wanted.adapters = again;
    }
    true
}

/// What the models were doing, as far as that is known.
fn crashed_models(supervised: &Supervised) -> Vec<CrashedModel> {
    let models = supervised.models.read().unwrap_or_else(PoisonError::into_inner);
    let crashed = models.values().map(|model| {
        let status = model.status();
        let (phase, active, pending) = (status.phase.as_str(), status.active, status.pending);
        CrashedModel { id: model.report().id.clone(), phase, active, pending }
    });
    crashed.collect()
}
