//! The threads that compute for a context, and how many of them do.
//!
//! Owned by a context, which asks before every decode call. Without a pool of its own, llama.cpp would start and end threads
//! in every call. Its threads wait for each other after every step of a computation, and they spin while they wait. If
//! another program takes a CPU from one of them, all the others burn theirs until the scheduler gives it back, a hundred
//! times for each token. So a context computes with one thread less for each CPU that others use (`neighbours.rs`), unless
//! the number of threads was given. Exact contexts never do this: it changes the last bits.

mod neighbours;

use std::ptr::NonNull;

use llama_cpp_sys_4 as sys;

use self::neighbours::Neighbours;
use crate::backend::ContextOptions;

/// The threads of one context. Must be dropped after the context is freed.
pub(super) struct Threads {
    /// `None` if llama.cpp could not make one; it starts threads for every call then.
    pool: Option<NonNull<sys::ggml_threadpool>>,
    /// Threads that compute now.
    now: i32,
    /// Threads that compute if no other program does.
    most: i32,
    /// `None` if the number of threads is fixed.
    neighbours: Option<Neighbours>,
}

impl Threads {
    /// Starts the threads and attaches them to a context that was just made with these parameters.
    pub(super) fn new(
        context: NonNull<sys::llama_context>,
        options: &ContextOptions,
        params: &sys::llama_context_params,
    ) -> Self {
        let most = params.n_threads.max(params.n_threads_batch).max(1);
        // SAFETY: plain values, copied by the library before the call returns.
        let pool = unsafe {
            let mut wanted = sys::ggml_threadpool_params_default(most);
            wanted.poll = options.poll;
            NonNull::new(sys::ggml_threadpool_new(&raw mut wanted))
        };
        if let Some(pool) = pool {
            // SAFETY: context and pool are valid, and the pool is freed after the context. One pool serves both kinds of
            // calls, so none is ever put aside for the other.
            unsafe { sys::llama_attach_threadpool(context.as_ptr(), pool.as_ptr(), pool.as_ptr()) };
        }
        let is_free = options.threads.is_none() && options.threads_batch.is_none() && options.spare_busy_cpus;
        let neighbours = if is_free && most > 1 { Neighbours::new() } else { None };
        Self { pool, now: most, most, neighbours }
    }

    /// Threads that copy states: more than a few are not faster than the memory, or than the way to a device.
    pub(super) fn copying(&self, on_device: bool) -> usize {
        const MOST: i32 = 4;
        const MOST_ON_DEVICE: i32 = 8;
        usize::try_from(self.now.clamp(1, if on_device { MOST_ON_DEVICE } else { MOST })).unwrap_or(1)
    }

    /// Adapts the number of threads to what other programs leave.
    pub(super) fn before_decode(&mut self, context: NonNull<sys::llama_context>) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let threads = neighbours.threads(self.now, self.most);
        if threads != self.now {
            tracing::debug!(threads, most = self.most, "other programs use the CPUs more or less than before");
            self.now = threads;
            // SAFETY: the context is valid and no call is in flight; the pool has at least this number of threads.
            unsafe { sys::llama_set_n_threads(context.as_ptr(), threads, threads) };
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(pool) = self.pool {
            // SAFETY: freed once, after the context that it was attached to.
            unsafe { sys::ggml_threadpool_free(pool.as_ptr()) };
        }
    }
}
