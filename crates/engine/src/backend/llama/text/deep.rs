//! Threads with large stacks, for C++ code that recurses with its input.
//!
//! Called by the files of this folder around tokenizing, rendering, parsing and compiling, so that no caller can forget
//! it: a server's blocking thread has 2 MiB and std::regex takes 320 bytes of stack for each character that it matches.
//! A thread lives for one piece of work, so the pages that it touched go back at once. At most `THREADS` of them exist at
//! the same time, beside those that parse replies; others wait. Work that runs on such a thread already stays there and must never wait for another one.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Address space of a stack; only pages that are touched cost memory.
pub(in crate::backend::llama) const STACK: usize = 128 << 20;
/// Threads at the same time, for the whole process.
const THREADS: usize = 8;

thread_local! {
    static IS_DEEP: Cell<bool> = const { Cell::new(false) };
}

static FREE: (Mutex<usize>, Condvar) = (Mutex::new(THREADS), Condvar::new());

/// No thread could be started.
#[derive(Debug)]
pub(in crate::backend::llama) struct NoThread(std::io::Error);

impl NoThread {
    /// The same for people.
    pub(in crate::backend::llama) fn reason(&self) -> String {
        format!("no thread could be started: {}", self.0)
    }
}

/// The right to run one such thread.
struct Permit;

impl Permit {
    fn lock() -> MutexGuard<'static, usize> {
        FREE.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait() -> Self {
        let mut free = FREE.1.wait_while(Self::lock(), |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free = free.saturating_sub(1);
        Self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *Self::lock() += 1;
        FREE.1.notify_one();
    }
}

/// Runs `work` where it may recurse deeply, and waits for it.
pub(in crate::backend::llama) fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NoThread> {
    if IS_DEEP.get() {
        return Ok(work());
    }
    let _permit = Permit::wait();
    on_deep_stack_at_once(work)
}

/// The same without waiting for other work: for short calls of threads that are few by themselves.
pub(in crate::backend::llama) fn on_deep_stack_at_once<T: Send>(
    work: impl FnOnce() -> T + Send,
) -> Result<T, NoThread> {
    if IS_DEEP.get() {
        return Ok(work());
    }
    // Log lines of the work belong to the request that asked for it.
    let span = tracing::Span::current();
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("poncho-deep".to_owned()).stack_size(STACK);
        let thread = builder.spawn_scoped(scope, move || {
            IS_DEEP.set(true);
            span.in_scope(work)
        });
        match thread.map_err(NoThread)?.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Uses about a kibibyte of stack for each step.
    fn recurse(steps: usize) -> usize {
        let block = std::hint::black_box([steps; 128]);
        if steps == 0 { 0 } else { 1 + recurse(steps - 1) + usize::from(block[0] == usize::MAX) }
    }

    #[test]
    fn work_may_use_most_of_a_large_stack() {
        assert_eq!(on_deep_stack(|| recurse(60_000)).unwrap(), 60_000);
    }

    #[test]
    fn work_inside_work_stays_on_its_thread_and_needs_no_second_permit() {
        let outer = || {
            let here = std::thread::current().id();
            on_deep_stack(move || std::thread::current().id() == here).unwrap()
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS * 2).map(|_| scope.spawn(|| on_deep_stack(outer).unwrap())).collect();
            assert!(all.into_iter().all(|thread| thread.join().unwrap()));
        });
    }

    #[test]
    fn there_are_never_more_threads_than_permits() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            now.fetch_sub(1, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS * 8 {
                scope.spawn(|| on_deep_stack(work).unwrap());
            }
        });
        assert!(most.load(Ordering::SeqCst) <= THREADS);
        assert_eq!(now.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_gives_the_permit_back() {
        for _ in 0..THREADS * 2 {
            let told = std::panic::catch_unwind(|| on_deep_stack(|| std::panic::panic_any("told")));
            assert_eq!(*told.unwrap_err().downcast::<&str>().unwrap(), "told");
        }
        assert_eq!(on_deep_stack(|| 7).unwrap(), 7);
    }
}
