//! The mutex, condition variable and threads of this crate: the standard ones, or shuttle's under the
//! feature `shuttle`, so that the same code runs in production and under schedule exploration.
//!
//! Used by the store, the writer pool and the leases. A lock is never poisoned here: a thread that panics
//! while it holds one leaves data that each user of the lock keeps consistent at every step.

use std::time::{Duration, Instant};

#[cfg(feature = "shuttle")]
use shuttle::sync as inner;
#[cfg(not(feature = "shuttle"))]
use std::sync as inner;

pub(crate) use inner::MutexGuard;

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread;

/// A mutex with a `lock` that cannot fail.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(inner::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(inner::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(inner::PoisonError::into_inner)
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(inner::Condvar);

impl Condvar {
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(inner::PoisonError::into_inner)
    }

    /// Waits until `reached`, at most for `limit`. Returns whether it was reached.
    pub(crate) fn wait_until<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
        reached: impl Fn(&T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let started = Instant::now();
        while !reached(&guard) {
            let Some(left) = limit.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) else {
                return (guard, false);
            };
            guard = self.wait_for(guard, left);
        }
        (guard, true)
    }

    /// Waits until notified or until `limit` has passed; may wake early.
    fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        match self.0.wait_timeout(guard, limit) {
            Ok((guard, _)) => guard,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }
}
