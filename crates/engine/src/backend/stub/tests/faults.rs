//! Faults happen when a test asks for them, and at no other time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::*;

/// Longer than any machine stalls; nothing waits for it unless it is broken.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn faults_happen_when_they_were_asked_for() {
    let backend = StubBackend::new(MemoryKind::Attention);
    let faults = backend.faults();
    let mut context = context_of(&backend, &options());
    faults.record_batches();
    faults.on_decode(2, DecodeFault::NoRoom);
    faults.on_decode(3, DecodeFault::Fatal(-3));
    faults.on_decode(4, DecodeFault::Aborted);
    read(context.as_mut(), 0, 0, &[1, 2]);
    assert_eq!(context.decode(&batch(0, 2, &[1; 4])), DecodeOutcome::NoRoom);
    assert_eq!(context.pos_max(0), Some(1));
    assert_eq!(context.decode(&batch(0, 2, &[1; 4])), DecodeOutcome::Fatal(-3));
    assert_eq!(context.pos_max(0), Some(3), "half of it stays, to be rolled back");
    assert_eq!(context.decode(&batch(0, 4, &[1; 4])), DecodeOutcome::Aborted);
    assert!(context.remove(0, 2..u32::MAX));
    read(context.as_mut(), 0, 2, &[5]);
    let counts = faults.counts();
    assert_eq!((counts.decodes, counts.rows, counts.tokens, counts.no_room), (5, 15, 3, 0));
    assert_eq!(faults.take_batches().iter().map(|batch| batch.rows.len()).collect::<Vec<_>>(), [2, 4, 4, 4, 1]);
    assert!(faults.take_batches().is_empty());
    faults.on_decode(1, DecodeFault::Panic);
    let panicked = thread::spawn(move || {
        context.decode(&batch(0, 3, &[1]));
    });
    assert!(panicked.join().is_err());
    assert_eq!(faults.counts().live_contexts, 0);
}

#[test]
fn calls_fail_as_often_as_they_were_asked_to() {
    let backend = StubBackend::new(MemoryKind::Hybrid);
    let faults = backend.faults();
    faults.fail_next(StubCall::LoadModel, 1);
    assert!(matches!(backend.load_model(&ModelOptions::new("x")), Err(LoadError::Refused { .. })));
    let model = backend.load_model(&ModelOptions::new("x")).unwrap();
    faults.fail_next(StubCall::NewContext, 1);
    assert!(matches!(model.new_context(&options(), Arc::default()), Err(ContextError::Refused { .. })));
    faults.fail_next(StubCall::LoadAdapter, 1);
    assert!(matches!(model.load_adapter("y".as_ref()), Err(AdapterError::Refused { .. })));
    let mut context = model.new_context(&options(), Arc::default()).unwrap();
    read(context.as_mut(), 0, 0, &[1, 2, 3]);
    let saved = row(context.as_mut(), 0, &[0, 3]);
    for call in [StubCall::Pack, StubCall::StateRead] {
        faults.fail_next(call, 2);
        for expected in [false, false, true] {
            let mut out = [0; 200];
            let done = match call {
                StubCall::Pack => context.pack_range(0, 0..3, &mut out),
                _ => context.state_read(0, StatePart::Partial, &mut out),
            };
            assert_eq!(done.is_ok(), expected);
        }
    }
    for call in [StubCall::RestoreBegin, StubCall::RestoreSegment, StubCall::RestoreFinish] {
        faults.fail_next(call, 1);
        assert!(matches!(restore(context.as_mut(), 1, 3, &saved), Err(StateError::Refused { .. })));
        assert_eq!(context.pos_max(1), None);
    }
    faults.fail_next(StubCall::StateWrite, 1);
    faults.clear();
    restore(context.as_mut(), 1, 3, &saved).unwrap();
    let counts = faults.counts();
    assert_eq!((counts.restores, counts.refused, counts.contexts, counts.live_contexts), (1, 0, 1, 1));
}

#[test]
fn a_held_decode_ends_by_release_or_abort() {
    for (fault, by_abort) in [(DecodeFault::Block, false), (DecodeFault::Block, true), (DecodeFault::Hang, true)] {
        let backend = StubBackend::new(MemoryKind::Attention);
        let faults = backend.faults();
        let abort = Arc::new(AtomicBool::new(false));
        let model = backend.load_model(&ModelOptions::new("a model")).unwrap();
        let mut context = model.new_context(&options(), Arc::clone(&abort)).unwrap();
        faults.on_decode(1, fault);
        faults.release();
        let worker = thread::spawn(move || {
            let outcome = context.decode(&batch(0, 0, &[1; 20]));
            (outcome, context.pos_max(0))
        });
        assert!(faults.wait_until_held(LONG));
        assert!(faults.wait_for_decodes(1, LONG));
        abort.store(by_abort, Ordering::Relaxed);
        if fault == DecodeFault::Hang || !by_abort {
            assert!(faults.wait_until_held(LONG), "deaf");
            faults.release();
        }
        // Two micro-batches of eight rows were done before the last one was held.
        let expected = if by_abort { (DecodeOutcome::Aborted, Some(15)) } else { (DecodeOutcome::Done, Some(19)) };
        assert_eq!(worker.join().unwrap(), expected);
    }
}

/// A test that released a decode and waited for the next one sometimes took the first one for it.
#[test]
fn a_released_decode_is_not_held_before_its_thread_has_run() {
    let faults = StubFaults::default();
    let held = faults.clone();
    let thread = thread::spawn(move || held.hold(None));
    assert!(faults.wait_until_held(LONG));
    faults.release();
    assert!(!faults.wait_until_held(Duration::ZERO));
    thread.join().unwrap();
    assert!(!faults.wait_until_held(Duration::ZERO));
}
