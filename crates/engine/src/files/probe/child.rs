//! One child process: started, watched until its deadline, its last words kept.
//!
//! Called by the prober on the thread that loads the model. The child is killed when it takes too long, and ends by
//! itself when this process dies (its standard input closes). Its output is bounded and never trusted.

use std::collections::VecDeque;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::Prober;
use super::trial::Trial;

/// Bytes of the child's output that are kept, the last ones.
const KEPT: usize = 4096;
/// Lines of it that reach an error message.
const LINES: usize = 6;
/// How often the child is looked after.
const STEP: Duration = Duration::from_millis(5);
/// How long the rest of its output is waited for once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The code with which a child says that it refuses the model, for the reason on its standard output.
const REFUSED: i32 = 1;

/// Why a model did not pass its trial.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The child could not be started.
    #[error(
        "the process that tries unfamiliar models could not be started ({program}: {source}); repair that, or load the \
         model without trying it (--probe-models off)"
    )]
    NotStarted {
        /// The program.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The child refused the model, as this process would have.
    #[error("{reason}")]
    Refused {
        /// What it said, with what to try.
        reason: String,
    },
    /// The child died: this process would have.
    #[error(
        "llama.cpp ended the process that tried it ({how}), saying: {words}; the file is damaged or was made to do harm, \
         take the model from another source"
    )]
    Died {
        /// Its signal or exit code.
        how: String,
        /// The last lines that it wrote.
        words: String,
    },
    /// The child took too long.
    #[error(
        "the process that tried it was not done after {} s and was ended, its last lines: {words}; try again when the \
         machine is less busy, or load the model without trying it (--probe-models off)", waited.as_secs()
    )]
    TimedOut {
        /// How long it was waited for.
        waited: Duration,
        /// The last lines that it wrote.
        words: String,
    },
}

/// Ends the child on every way out.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the child to its end.
pub(super) fn run(prober: &Prober, trial: &Trial, deadline: Duration) -> Result<(), ProbeError> {
    let program = prober.program.display().to_string();
    let not_started = |source| ProbeError::NotStarted { program: program.clone(), source };
    let mut command = Command::new(&prober.program);
    command.arg0("poncho").args(&prober.args).arg("--settings").arg(trial.settings_text()).arg("--").args(&trial.files);
    // llama.cpp would start a debugger on itself to print its stack.
    command.env("GGML_NO_BACKTRACE", "1");
    // The standard input stays open and empty as long as this process lives.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Running(command.spawn().map_err(not_started)?);
    let said = child.0.stdout.take().map(tail);
    let logged = child.0.stderr.take().map(tail);
    let started = Instant::now();
    let ended = loop {
        match child.0.try_wait().map_err(not_started)? {
            Some(status) => break Some(status),
            None if started.elapsed() >= deadline => break None,
            None => std::thread::sleep(STEP),
        }
    };
    // Killed before its output is waited for.
    drop(child);
    let words = |output: Option<Receiver<String>>| {
        output.and_then(|output| output.recv_timeout(LAST_WORDS).ok()).unwrap_or_default()
    };
    let (said, logged) = (words(said), words(logged));
    match ended {
        Some(status) if status.success() => Ok(()),
        Some(status) if status.code() == Some(REFUSED) && !said.is_empty() => Err(ProbeError::Refused { reason: said }),
        Some(status) => Err(ProbeError::Died { how: how(status), words: or_nothing(logged) }),
        None => Err(ProbeError::TimedOut { waited: deadline, words: or_nothing(logged) }),
    }
}

fn or_nothing(words: String) -> String {
    if words.is_empty() { "nothing".to_owned() } else { words }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => "unknown end".to_owned(),
    }
}

/// Reads a pipe to its end on a thread of its own and sends its last lines as one printable line.
fn tail(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut kept: VecDeque<u8> = VecDeque::with_capacity(2 * KEPT);
        let mut buffer = [0; KEPT];
        while let Ok(count) = pipe.read(&mut buffer) {
            if count == 0 {
                break;
            }
            kept.extend(buffer.iter().take(count));
            kept.drain(..kept.len().saturating_sub(KEPT));
        }
        // The receiver may have given up.
        let _ = sender.send(last_lines(kept.make_contiguous()));
    });
    receiver
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<String> = text
        .lines()
        .rev()
        .map(|line| line.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect::<String>())
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .take(LINES)
        .collect();
    lines.reverse();
    lines.join("; ")
}
