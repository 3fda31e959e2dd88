//! llama.cpp's log lines: errors kept for the call that caused them, everything passed on to `tracing`.
//!
//! llama.cpp logs through one callback for the whole process. Loading a model and creating a context log on the
//! calling thread, so a thread that wants the reason of a failure collects its own lines and two loads at the same
//! time never mix. The callback must never panic: it is called from C++.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

use llama_cpp_sys_4 as sys;

/// Lines kept for an error message; the first ones name the cause.
const MAX_LINES: usize = 8;
/// Bytes kept of one line.
const MAX_LINE: usize = 500;

thread_local! {
    static COLLECTOR: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
    static LAST_LEVEL: RefCell<sys::ggml_log_level> = const { RefCell::new(sys::GGML_LOG_LEVEL_INFO) };
}

/// Makes llama.cpp log here. Called once, when it starts.
pub(super) fn listen() {
    // SAFETY: the callback is a plain function that lives as long as the process and ignores its user data.
    unsafe { sys::llama_log_set(Some(on_line), std::ptr::null_mut()) };
}

/// What is said where the library said nothing.
pub(super) const NO_REASON: &str = "llama.cpp gave no reason";

/// Runs `call` and returns its value with the error lines that llama.cpp logged on this thread meanwhile.
pub(super) fn collect<T>(call: impl FnOnce() -> T) -> (T, String) {
    let before = COLLECTOR.with(|collector| collector.replace(Some(Vec::new())));
    let value = call();
    let lines = COLLECTOR.with(|collector| collector.replace(before)).unwrap_or_default();
    let reason = if lines.is_empty() { NO_REASON.to_owned() } else { lines.join("; ") };
    (value, reason)
}

unsafe extern "C" fn on_line(level: sys::ggml_log_level, text: *const c_char, _user: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that lives for the duration of the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let line = text.trim();
    // A continuation belongs to the line before it; progress dots are continuations and say nothing.
    let level = if level == sys::GGML_LOG_LEVEL_CONT {
        LAST_LEVEL.try_with(|last| *last.borrow()).unwrap_or(sys::GGML_LOG_LEVEL_DEBUG)
    } else {
        let _ = LAST_LEVEL.try_with(|last| last.replace(level));
        level
    };
    if line.is_empty() || line.chars().all(|c| c == '.') {
        return;
    }
    match level {
        sys::GGML_LOG_LEVEL_ERROR if is_interruption(line) => tracing::debug!(target: "llama", "{line}"),
        sys::GGML_LOG_LEVEL_ERROR => {
            // A thread that is ending no longer has a collector; the line still reaches the log.
            let _ = COLLECTOR.try_with(|collector| keep(collector, line));
            tracing::warn!(target: "llama", "{line}");
        }
        sys::GGML_LOG_LEVEL_WARN => tracing::debug!(target: "llama", level = "warn", "{line}"),
        _ => tracing::trace!(target: "llama", "{line}"),
    }
}

/// Whether a line says that a call was interrupted: only the engine does that, on purpose.
fn is_interruption(line: &str) -> bool {
    let ends = ["graph_compute_async failed with error 1", "compute status: 1", "failed to decode, ret = 2"];
    ends.into_iter().any(|end| line.ends_with(end))
}

fn keep(collector: &RefCell<Option<Vec<String>>>, line: &str) {
    if let Ok(mut lines) = collector.try_borrow_mut()
        && let Some(lines) = lines.as_mut()
        && lines.len() < MAX_LINES
    {
        lines.push(line.chars().take(MAX_LINE).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_error(text: &CStr) {
        // SAFETY: the string lives for the call.
        unsafe { on_line(sys::GGML_LOG_LEVEL_ERROR, text.as_ptr(), std::ptr::null_mut()) }
    }

    #[test]
    fn lines_of_two_threads_do_not_mix() {
        let barrier = std::sync::Barrier::new(2);
        let run = |own: &CStr| {
            collect(|| {
                barrier.wait();
                log_error(own);
                barrier.wait();
            })
            .1
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| run(c"from the other\n"));
            assert_eq!(run(c"from this\n"), "from this");
            assert_eq!(other.join().unwrap(), "from the other");
        });
    }

    #[test]
    fn a_call_that_was_interrupted_on_purpose_is_no_error() {
        let ((), reason) = collect(|| {
            log_error(c"graph_compute: ggml_backend_sched_graph_compute_async failed with error 1\n");
            log_error(c"process_ubatch: failed to compute graph, compute status: 1\n");
            log_error(c"llama_decode: failed to decode, ret = 2\n");
        });
        assert_eq!(reason, NO_REASON);
        let ((), reason) = collect(|| log_error(c"llama_decode: failed to decode, ret = -3\n"));
        assert!(reason.ends_with("ret = -3"), "{reason}");
    }

    #[test]
    fn a_flood_of_lines_is_cut() {
        let ((), reason) = collect(|| (0..1000).for_each(|_| log_error(c"again")));
        assert_eq!(reason.matches("again").count(), MAX_LINES);
    }
}
