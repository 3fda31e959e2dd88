//! Two machines write one key with different bits at once: a reader sees one of them, never a mixture.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use object_store::ObjectStore;
use object_store::memory::InMemory;
use poncho_cache::{Chain, RemoteTier};
use poncho_shared::{Settings, SharedTier};

use crate::fixture::plain_store::PlainStore;
use crate::fixture::{ANNA, chain, find, key, offer, patience, ready, settings, small_segments};

const ROWS: usize = 4;

fn rounds() -> u32 {
    std::env::var("PONCHO_RACES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000)
}

/// Which writers the rows of a chain are from.
fn writers(seen: &Chain, conversation: u32) -> BTreeSet<u8> {
    let mut writers = BTreeSet::new();
    for writer in [1, 2] {
        let whole = chain(ANNA, conversation, &[500; ROWS], writer);
        writers.extend(seen.rows.iter().zip(&whole.rows).filter(|(one, other)| one == other).map(|_| writer));
    }
    writers
}

fn race(store: &Arc<dyn ObjectStore>) -> (u32, [u32; 2]) {
    let settings = Settings { sizes: small_segments(), ..settings("memory:///") };
    let open = || ready(SharedTier::with_store(&settings, Arc::clone(store)).unwrap());
    let machines = [open(), open()];
    let reader = open();
    let (mut reads, mut won) = (0, [0, 0]);
    for conversation in 0..rounds() {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let done = &done;
            let uploads: Vec<_> = [1_u8, 2]
                .into_iter()
                .zip(&machines)
                .map(|(writer, machine)| {
                    scope.spawn(move || {
                        machine.offer(offer(chain(ANNA, conversation, &[500; ROWS], writer)));
                        assert!(machine.flush(Instant::now() + Duration::from_secs(60)));
                    })
                })
                .collect();
            let reader = &reader;
            let reading = scope.spawn(move || {
                let (mut reads, mut last) = (0, None);
                while last.is_none() || !done.load(Ordering::SeqCst) {
                    let Some(row) = find(reader, ANNA, &[key(conversation, ROWS - 1)]) else { continue };
                    let seen = reader.fetch(&row, &patience()).expect("a manifest names segments that are there");
                    let from = writers(&seen, conversation);
                    assert_eq!(from.len(), 1, "rows of {from:?} in one chain of conversation {conversation}");
                    assert_eq!(seen.rows.len(), ROWS);
                    (reads, last) = (reads + 1, from.first().copied());
                }
                (reads, last)
            });
            for upload in uploads {
                upload.join().expect("uploaded");
            }
            done.store(true, Ordering::SeqCst);
            let (read, last) = reading.join().expect("read");
            reads += read;
            won[usize::from(last.expect("a writer") == 2)] += 1;
        });
    }
    (reads, won)
}

#[test]
fn two_writers_of_one_key_with_different_bits_are_never_mixed() {
    let (reads, won) = race(&(Arc::new(InMemory::new()) as Arc<dyn ObjectStore>));
    assert!(reads >= rounds(), "{reads} reads, {won:?} rounds won");
}

#[test]
fn two_writers_are_never_mixed_in_a_store_without_conditional_writes() {
    let (reads, won) = race(&(Arc::new(PlainStore::default()) as Arc<dyn ObjectStore>));
    assert!(reads >= rounds(), "{reads} reads, {won:?} rounds won");
}
