//! The decode call that runs at the moment, and the right to abort it.
//!
//! The worker begins and ends calls, the watchdog looks at their age, the cancellation of a request may abort a call that
//! computes nothing else, and a request that arrives may abort a long one that was begun on this condition. All of it happens under one lock: an abort can only be meant for the call that runs, and never
//! reaches the next one. Every worker has a flag of its own, so that an abort of a stuck worker cannot stop its successor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::calls::request::RequestId;

/// The flag that llama.cpp polls during a call.
pub(crate) type AbortFlag = Arc<AtomicBool>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Running {
    call: Mutex<Call>,
}

#[derive(Debug, Default)]
struct Call {
    /// The flag of the worker that serves now.
    abort: AbortFlag,
    /// `None` while no call runs.
    since: Option<Instant>,
    /// The one request in the call. Cancelling it may abort the call, because nobody else is in it.
    alone: Option<RequestId>,
    /// Whether the watchdog aborted the call.
    is_overdue: bool,
    /// Up to this age a request that arrives aborts the call.
    yields: Option<Duration>,
    /// The last one that has arrived since the worker looked.
    newcomer: Option<Newcomer>,
}

/// What waits for the end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Newcomer {
    /// A request.
    Request(RequestId),
    /// Any other command.
    Command,
}

/// How a call looks to the watchdog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// No call runs, or it is within its bound, or it was aborted and may still end.
    Fine,
    /// It exceeded its bound and was aborted just now.
    Aborted(Duration),
    /// It runs for twice its bound, aborted or not.
    Stuck(Duration),
}

impl Running {
    /// A new worker begins: returns the flag for its contexts. The call of the worker before it counts no more.
    pub(crate) fn new_worker(&self) -> AbortFlag {
        let mut call = self.lock();
        *call = Call::default();
        Arc::clone(&call.abort)
    }

    /// The worker with this flag begins a call, for one request or for several. A call that yields is aborted by a request
    /// that arrives before it has this age, or that arrived since the worker looked.
    pub(crate) fn begin(&self, flag: &AbortFlag, alone: Option<RequestId>, yields: Option<Duration>) {
        let mut call = self.lock();
        if Arc::ptr_eq(&call.abort, flag) {
            call.since = Some(Instant::now());
            call.alone = alone;
            call.yields = yields;
            // The worker may have taken a request before its arrival was noted.
            if call.newcomer.is_some() && call.newcomer != alone.map(Newcomer::Request) && yields.is_some() {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The worker is about to look for what has arrived.
    pub(crate) fn look(&self) {
        self.lock().newcomer = None;
    }

    /// A request or another command has arrived, and the worker finds it when it looks.
    pub(crate) fn arrived(&self, newcomer: Newcomer) {
        let mut call = self.lock();
        if call.alone.map(Newcomer::Request) == Some(newcomer) {
            return;
        }
        call.newcomer = Some(newcomer);
        let is_young = |since: Instant, limit: Duration| since.elapsed() <= limit;
        if call.since.zip(call.yields).is_some_and(|(since, limit)| is_young(since, limit)) {
            call.abort.store(true, Ordering::Relaxed);
        }
    }

    /// Its call is over. True if the watchdog aborted it.
    pub(crate) fn end(&self, flag: &AbortFlag) -> bool {
        let mut call = self.lock();
        if !Arc::ptr_eq(&call.abort, flag) {
            return false;
        }
        flag.store(false, Ordering::Relaxed);
        call.since = None;
        call.alone = None;
        call.yields = None;
        std::mem::take(&mut call.is_overdue)
    }

    /// Aborts the call that runs if it computes this request and nothing else.
    pub(crate) fn cancel(&self, id: RequestId) {
        let call = self.lock();
        if call.alone == Some(id) {
            call.abort.store(true, Ordering::Relaxed);
        }
    }

    /// Compares the call that runs with its bound, and aborts it once it is past that.
    pub(crate) fn watch(&self, bound: Duration) -> Age {
        let mut call = self.lock();
        let Some(age) = call.since.map(|since| since.elapsed()) else { return Age::Fine };
        if age > bound * 2 {
            return Age::Stuck(age);
        }
        if age <= bound || call.is_overdue {
            return Age::Fine;
        }
        call.is_overdue = true;
        call.abort.store(true, Ordering::Relaxed);
        Age::Aborted(age)
    }

    fn lock(&self) -> MutexGuard<'_, Call> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_set(flag: &AbortFlag) -> bool {
        flag.load(Ordering::Relaxed)
    }

    /// Hardening 23: an abort that comes when the call is over must not stop the next one.
    #[test]
    fn an_abort_that_comes_too_late_never_reaches_the_next_call() {
        let running = Running::default();
        let flag = running.new_worker();
        running.begin(&flag, Some(RequestId(1)), None);
        running.cancel(RequestId(2));
        assert!(!is_set(&flag), "another request");
        running.cancel(RequestId(1));
        assert!(is_set(&flag));
        assert!(!running.end(&flag), "not the watchdog's doing");
        assert!(!is_set(&flag), "it went with its call");
        running.cancel(RequestId(1));
        assert!(!is_set(&flag), "no call runs");
        running.begin(&flag, None, None);
        running.cancel(RequestId(1));
        assert!(!is_set(&flag), "the call is for several requests");
    }

    #[test]
    fn a_call_yields_to_a_request_that_arrives_before_it_is_too_old() {
        let running = Running::default();
        let flag = running.new_worker();
        let long = Some(Duration::from_secs(3600));
        let aborted_by = |before: bool, yields, during: bool| {
            running.look();
            if before {
                running.arrived(Newcomer::Command);
            }
            running.begin(&flag, Some(RequestId(1)), yields);
            if during {
                running.arrived(Newcomer::Request(RequestId(3)));
            }
            let is_aborted = is_set(&flag);
            assert!(!running.end(&flag), "not the watchdog's doing");
            assert!(!is_set(&flag), "the next call is not aborted");
            is_aborted
        };
        assert!(aborted_by(false, long, true));
        assert!(aborted_by(true, long, false), "it came after the worker looked");
        assert!(!aborted_by(false, long, false));
        assert!(!aborted_by(true, None, true), "a call that does not yield");
        assert!(!aborted_by(false, Some(Duration::ZERO), true), "too much would be lost");
        // The note of an arrival may come after the worker has taken the request.
        running.look();
        running.arrived(Newcomer::Request(RequestId(1)));
        running.begin(&flag, Some(RequestId(1)), long);
        running.arrived(Newcomer::Request(RequestId(1)));
        assert!(!is_set(&flag), "no request gives way to itself");
        running.end(&flag);
    }

    #[test]
    fn a_call_past_its_bound_is_aborted_once_and_then_stuck() {
        let running = Running::default();
        let flag = running.new_worker();
        assert_eq!(running.watch(Duration::ZERO), Age::Fine, "no call");
        running.begin(&flag, None, None);
        let hour = Duration::from_secs(3600);
        assert_eq!(running.watch(hour), Age::Fine);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        running.lock().since = Some(long_ago);
        assert!(matches!(running.watch(Duration::from_secs(1)), Age::Stuck(_)));
        assert!(!is_set(&flag));
        // Past the bound by twenty seconds, and twenty seconds short of twice the bound.
        assert!(matches!(running.watch(Duration::from_secs(40)), Age::Aborted(_)));
        assert!(is_set(&flag));
        assert_eq!(running.watch(hour), Age::Fine, "told once");
        assert!(running.end(&flag), "the worker learns of it");
        assert!(!is_set(&flag));
        running.begin(&flag, None, None);
        assert!(!running.end(&flag), "the next call is not overdue");
    }

    #[test]
    fn a_worker_that_was_given_up_cannot_touch_its_successors_call() {
        let running = Running::default();
        let old = running.new_worker();
        running.begin(&old, Some(RequestId(1)), None);
        running.cancel(RequestId(1));
        let new = running.new_worker();
        assert!(!is_set(&new), "a fresh flag");
        running.begin(&new, Some(RequestId(2)), None);
        assert!(!running.end(&old));
        running.begin(&old, Some(RequestId(3)), None);
        running.cancel(RequestId(2));
        assert!(is_set(&new), "its call runs on");
    }
}
