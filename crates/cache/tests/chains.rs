//! Rows as chains of segments: what is written once, what is shared, what may leave and what must not, and what
//! becomes of a chain when one of its rows is damaged, evicted, late or refused.

mod remote;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use poncho_cache::testing::MemoryFs;
use poncho_cache::{
    Cache, CacheConfig, Cut, DropReason, FileTierConfig, Gates, Key, Needs, PartKind, PausedClock, PayloadPart,
    SaveBase, SaveOutcome, SaveReason, SaveRequest, Stage, StageObserver, Tier, Unusable, Verdict, inspect_folder,
};

use crate::support::{
    BYTES_PER_TOKEN, at_end, attention, check_plan, conversation, namespace, on_disk, reach, request, save, save_to,
};

/// Stops every writer right after it has reserved its key, until it is opened. Starts open.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    shut: bool,
    waiting: usize,
}

impl Gate {
    pub(crate) fn shut(&self) {
        self.state.lock().unwrap().shut = true;
    }

    pub(crate) fn open(&self) {
        self.state.lock().unwrap().shut = false;
        self.changed.notify_all();
    }

    /// Waits until at least `writers` writers are at the gate.
    fn wait_for(&self, writers: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.waiting < writers).unwrap());
    }
}

impl StageObserver for Gate {
    fn reached(&self, stage: Stage, _key: &Key) {
        if stage != Stage::Reserved {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.waiting += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.shut).unwrap();
        state.waiting -= 1;
    }
}

/// Opens the gate when it is dropped, so that a failing test ends instead of waiting for its writers.
struct OpenAtEnd<'a>(&'a Gate);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

fn on_memory(fs: &MemoryFs, quota: u64) -> CacheConfig {
    CacheConfig { fs: Arc::new(fs.clone()), ..on_disk(Path::new("/cache"), quota) }
}

fn part(kind: PartKind, tokens: &[u32]) -> PayloadPart {
    PayloadPart { kind, bytes: at_end(tokens, kind).into() }
}

/// A save with all three parts, or with the last two where the base already holds every token.
fn boundary_request<'a>(tokens: &'a [u32], base: Option<&'a SaveBase>) -> SaveRequest<'a> {
    let mut request = request(namespace(1), tokens, base);
    request.parts.push(part(PartKind::Partial, tokens));
    if base.is_some_and(|base| base.start() as usize == tokens.len()) {
        request.parts.retain(|part| part.kind != PartKind::Attention);
    }
    request
}

fn longer(tokens: &[u32], number: u32, count: usize) -> Vec<u32> {
    [tokens, &conversation(number, count)].concat()
}

/// Flips the last byte of the row's file: the payload is damaged, its header is not.
fn damage(folder: &Path, key: &Key) {
    let path = poncho_cache::row_path(folder, key);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn thirty_turns_write_each_token_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
    let whole = conversation(1, 1500);
    for turn in 1..=30 {
        let saved = save(&cache, namespace(1), &whole[..turn * 50]);
        assert_eq!(saved.outcome, SaveOutcome::Queued, "turn {turn}");
    }
    cache.flush();
    assert_eq!(reach(&cache, namespace(1), &whole), 1500);
    let report = inspect_folder(folder.path()).unwrap();
    assert_eq!((report.rows.len(), report.verify(|_| {})), (30, vec![]));
    let attention_bytes: u64 = report
        .rows
        .iter()
        .flat_map(|row| &row.prefix.parts)
        .filter(|part| part.kind == PartKind::Attention)
        .map(|part| part.length)
        .sum();
    assert_eq!(attention_bytes, (1500 * BYTES_PER_TOKEN) as u64);
    let stored_tokens: usize = report.rows.iter().map(|row| row.prefix.tokens.len()).sum();
    assert_eq!(stored_tokens, 1500, "token ids are written once too");
    let counters = cache.counters();
    let file_bytes: u64 = report.rows.iter().map(|row| row.bytes).sum();
    assert_eq!((counters.saves_finish, counters.save_failures), (30, 0));
    assert_eq!(counters.save_bytes, file_bytes);
    assert_eq!(counters.tier_bytes, [0, 0, file_bytes]);
}

#[test]
fn two_conversations_share_their_system_prompt() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let system = conversation(1, 200);
    let (one, two) = (longer(&system, 2, 30), longer(&system, 3, 40));
    let parent = save(&cache, namespace(1), &system).key;
    let children = [&one, &two].map(|tokens| save(&cache, namespace(1), tokens).key);
    cache.flush();
    for (key, end) in children.iter().zip([230, 240]) {
        let row = cache.row(key).unwrap();
        assert_eq!((row.meta.parent, row.meta.start, row.meta.token_count), (Some(parent), 200, end));
    }
    assert_eq!(cache.row(&parent).unwrap().children, 2);
    assert_eq!((reach(&cache, namespace(1), &one), reach(&cache, namespace(1), &two)), (230, 240));
    let shared: u64 = cache.rows().iter().map(|row| row.bytes).sum();
    assert!(shared < (270 + 100) * BYTES_PER_TOKEN as u64, "the prompt is stored once: {shared} bytes");
}

#[test]
fn a_conversation_that_parts_inside_a_segment_builds_on_what_it_shares() {
    let fs = MemoryFs::new();
    let cache = Cache::open(on_memory(&fs, 1 << 30)).unwrap();
    let first = conversation(1, 100);
    let parent = save(&cache, namespace(1), &first).key;
    let second = longer(&first[..37], 2, 20);
    let child = save(&cache, namespace(1), &second).key;
    let third = longer(&second[..45], 3, 9);
    let grandchild = save(&cache, namespace(1), &third).key;
    // Parts from the second inside what the second took from the first: hangs on the first, which has those tokens.
    let fourth = longer(&second[..20], 4, 3);
    let other = save(&cache, namespace(1), &fourth).key;
    drop(cache);
    let cache = Cache::open(on_memory(&fs, 1 << 30)).unwrap();
    let chain = |key| cache.row(key).map(|row| (row.meta.parent, row.meta.start)).unwrap();
    assert_eq!(chain(&child), (Some(parent), 37), "starts inside its parent, which has 100 tokens");
    assert_eq!(chain(&grandchild), (Some(child), 45));
    assert_eq!(chain(&other), (Some(parent), 20));
    for tokens in [&first, &second, &third, &fourth] {
        assert_eq!(reach(&cache, namespace(1), tokens), tokens.len());
    }
}

#[test]
fn a_boundary_inside_a_longer_row_stores_no_token_again() {
    let fs = MemoryFs::new();
    let long = conversation(1, 100);
    let mut prompt = long[..60].to_vec();
    prompt.extend([5, 6, 7]);
    let key = {
        let cache = Cache::open(on_memory(&fs, 1 << 30)).unwrap();
        cache.save(boundary_request(&long, None)).unwrap();
        let base = cache.base_for(&namespace(1), &long[..60], None).unwrap();
        assert_eq!(base.start(), 60);
        let saved = cache.save(boundary_request(&long[..60], Some(&base))).unwrap();
        assert_eq!(saved.outcome, SaveOutcome::Queued);
        saved.key
    };
    let cache = Cache::open(on_memory(&fs, 1 << 30)).unwrap();
    let row = cache.row(&key).unwrap();
    assert_eq!((row.meta.start, row.meta.token_count, row.parts), (60, 60, vec![PartKind::Partial, PartKind::Logits]));
    let plan = cache.lookup(&namespace(1), &prompt, Needs::ATTENTION_AND_PARTIAL).unwrap();
    assert_eq!(check_plan(&plan, &prompt).unwrap(), 60);
    assert_eq!(plan.rows().len(), 2, "the tokens of the long row, then the boundary");
    let boundary = plan.boundary().unwrap();
    assert_eq!((boundary.key(), boundary.range(), plan.has_logits()), (key, 60..60, true));
    let mut partial = vec![0; usize::try_from(boundary.length(PartKind::Partial).unwrap()).unwrap()];
    boundary.read(PartKind::Partial, &mut partial).unwrap();
    assert_eq!(partial, at_end(&long[..60], PartKind::Partial));
    let recurrent = cache.lookup(&namespace(1), &prompt, Needs::PARTIAL).unwrap();
    assert_eq!((recurrent.reach(), recurrent.rows().len()), (60, 1), "a recurrent model loads the boundary alone");
}

#[test]
fn models_that_cannot_be_cut_resume_at_saved_boundaries_only() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let tokens = conversation(1, 120);
    let saved = |end: usize, partial: bool| {
        let base = cache.base_for(&namespace(1), &tokens[..end], None);
        let mut request = boundary_request(&tokens[..end], base.as_ref());
        request.parts.retain(|part| partial || part.kind != PartKind::Partial);
        cache.save(request).unwrap();
    };
    saved(40, true);
    saved(80, false);
    saved(120, true);
    cache.flush();
    let reach_of = |prompt: &[u32], needs| cache.lookup(&namespace(1), prompt, needs).map_or(0, |plan| plan.reach());
    for needs in [Needs::ATTENTION_AND_PARTIAL, Needs::PARTIAL] {
        assert_eq!(reach_of(&tokens, needs), 120);
        assert_eq!(reach_of(&tokens[..119], needs), 40, "row 80 has no partial state, row 120 goes too far");
        assert_eq!(reach_of(&tokens[..40], needs), 40);
        assert_eq!(reach_of(&tokens[..39], needs), 0);
    }
    assert_eq!(reach_of(&tokens[..119], Needs::ATTENTION), 119);
}

#[test]
fn the_base_is_the_row_that_leaves_the_fewest_tokens() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    assert!(cache.base_for(&namespace(1), &conversation(1, 10), None).is_none());
    let tokens = conversation(1, 100);
    let other = longer(&tokens[..70], 2, 50);
    let keys = [&tokens[..30], &tokens[..60], &other].map(|tokens| save(&cache, namespace(1), tokens).key);
    let base = |prompt: &[u32]| cache.base_for(&namespace(1), prompt, None).map(|base| (base.key(), base.start()));
    assert_eq!(base(&tokens), Some((keys[2], 70)), "inside the other conversation");
    assert_eq!(base(&tokens[..65]), Some((keys[2], 65)));
    assert_eq!(base(&tokens[..60]), Some((keys[1], 60)));
    assert_eq!(base(&longer(&tokens[..45], 3, 5)), Some((keys[1], 45)));
    assert_eq!(base(&longer(&tokens[..30], 3, 5)), Some((keys[0], 30)));
    assert_eq!(base(&conversation(9, 50)), None);
}

/// A row is read whole. It is not used as a base if most of that read would be wasted I/O: the new row then holds the
/// shared tokens itself.
#[test]
fn a_row_is_not_a_base_if_most_of_its_bytes_would_be_read_for_nothing() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let tokens = conversation(1, 200);
    let base = |prompt: &[u32]| cache.base_for(&namespace(1), prompt, None).map(|base| (base.key(), base.start()));
    let first = save(&cache, namespace(1), &tokens[..100]).key;
    assert_eq!(base(&longer(&tokens[..3], 2, 100)), None, "a template's opening");
    assert_eq!(base(&longer(&tokens[..19], 2, 100)), None, "81 for 19");
    assert_eq!(base(&longer(&tokens[..20], 2, 100)), Some((first, 20)), "80 for 20");
    assert_eq!(base(&tokens[..120]), Some((first, 100)));
    // What is cut on the way counts too: 80 tokens of the first row, and the rest of the other.
    let other = longer(&tokens[..20], 3, 500);
    let third = save(&cache, namespace(1), &other).key;
    assert_eq!(base(&longer(&other[..110], 4, 50)), None, "80 and 410 for 110");
    assert_eq!(base(&longer(&other[..120], 4, 50)), Some((third, 120)), "80 and 400 for 120");
    // Where the longest one does not pay, a shorter one may.
    let second = save(&cache, namespace(1), &tokens).key;
    save(&cache, namespace(1), &longer(&tokens, 5, 5000));
    assert_eq!(base(&longer(&longer(&tokens, 5, 300), 6, 50)), Some((second, 200)));
}

#[test]
fn children_leave_before_their_parents() {
    let clock = Arc::new(PausedClock::new(1_000));
    let cache = Cache::open(CacheConfig { clock: clock.clone(), ..on_memory(&MemoryFs::new(), 1 << 30) }).unwrap();
    let tokens = conversation(1, 90);
    let mut keys = Vec::new();
    for end in [30, 60, 90] {
        keys.push(save(&cache, namespace(1), &tokens[..end]).key);
        cache.flush();
        clock.advance(Duration::from_secs(10));
    }
    // As old and as often used as the last one, and shorter: by its own order it would leave after its parent.
    keys.push(save(&cache, namespace(1), &longer(&tokens[..70], 2, 5)).key);
    cache.flush();
    reach(&cache, namespace(1), &tokens[..60]);
    let present = || keys.iter().map(|key| cache.contains(key)).collect::<Vec<_>>();
    for left in [[true, true, true, false], [true, true, false, false], [true, false, false, false], [false; 4]] {
        let freed = cache.evict_bytes(1, &[Tier::Disk]);
        assert!(freed > 0);
        assert_eq!(present(), left);
    }
    assert_eq!((cache.evict_bytes(1, &[Tier::Disk]), cache.counters().evictions), (0, 4));
}

#[test]
fn a_parent_that_is_longer_than_its_child_leaves_with_the_same_call() {
    let fs = MemoryFs::new();
    let clock = Arc::new(PausedClock::new(1_000));
    let cache = Cache::open(CacheConfig { clock, ..on_memory(&fs, 1 << 30) }).unwrap();
    let long = conversation(1, 100);
    save(&cache, namespace(1), &long);
    save(&cache, namespace(1), &longer(&long[..50], 2, 4));
    save(&cache, namespace(1), &longer(&long[..20], 3, 4));
    cache.flush();
    let bytes: u64 = cache.rows().iter().map(|row| row.bytes).sum();
    assert_eq!(cache.clear(), bytes, "equal age and hits: the parent sorts before its shorter children");
    assert_eq!((cache.len(), fs.paths().len()), (0, 0));
}

#[test]
fn a_save_that_finds_no_room_costs_nobody_a_row() {
    let fs = MemoryFs::new();
    let cache = Cache::open(on_memory(&fs, 12_000)).unwrap();
    let (held, free, big) = (conversation(1, 120), conversation(2, 60), conversation(3, 200));
    for tokens in [&held, &free] {
        save(&cache, namespace(1), tokens);
        cache.flush();
    }
    let lease = cache.lookup(&namespace(1), &held, Needs::ATTENTION).unwrap();
    assert_eq!(save(&cache, namespace(1), &big).outcome, SaveOutcome::Dropped(DropReason::NoRoom));
    assert_eq!(reach(&cache, namespace(1), &free), 60, "evicting it would not have been enough");
    drop(lease);
    assert_eq!(save(&cache, namespace(1), &big).outcome, SaveOutcome::Queued);
    cache.flush();
    assert_eq!(save(&cache, namespace(1), &free).outcome, SaveOutcome::Queued, "no key stays blocked");
    cache.flush();
    assert_eq!(fs.paths().len(), cache.len());
    assert!(cache.counters().tier_bytes[2] <= 12_000);
}

#[test]
fn a_row_in_memory_is_never_the_parent_of_a_row_on_disk() {
    let config = CacheConfig { ram_quota: 1 << 20, keep_hot: false, ..on_memory(&MemoryFs::new(), 1 << 30) };
    let cache = Cache::open(config).unwrap();
    let tokens = conversation(1, 100);
    let key = save_to(&cache, namespace(1), &tokens[..50], Some(Tier::Ram)).key;
    assert!(cache.base_for(&namespace(1), &tokens, Some(Tier::Disk)).is_none());
    let base = cache.base_for(&namespace(1), &tokens, Some(Tier::Ram)).unwrap();
    assert_eq!((base.key(), base.start()), (key, 50));
    let forced = SaveRequest { tier: Some(Tier::Disk), ..request(namespace(1), &tokens, Some(&base)) };
    assert_eq!(cache.save(forced).unwrap().outcome, SaveOutcome::Dropped(DropReason::ParentGone));
    assert_eq!(reach(&cache, namespace(1), &tokens), 50);
    // The same tokens saved to the disk make the row durable, and then it may be built on.
    drop(base);
    let again = SaveRequest { tier: Some(Tier::Disk), ..request(namespace(1), &tokens[..50], None) };
    assert_eq!(cache.save(again).unwrap().outcome, SaveOutcome::Queued);
    assert_eq!(cache.base_for(&namespace(1), &tokens, Some(Tier::Disk)).map(|base| base.key()), Some(key));
    cache.flush();
    assert_eq!(cache.row(&key).unwrap().tiers, [Tier::Ram, Tier::Disk]);
}

#[test]
fn a_memory_file_may_build_on_the_disk_and_not_the_other_way_round() {
    let fs = MemoryFs::new();
    let config = || CacheConfig {
        ram_file: Some(FileTierConfig { folder: "/shm".into(), quota: 1 << 30 }),
        ..on_memory(&fs, 1 << 30)
    };
    let cache = Cache::open(config()).unwrap();
    let tokens = conversation(1, 90);
    let parent = save_to(&cache, namespace(1), &tokens[..30], Some(Tier::Disk)).key;
    let child = save_to(&cache, namespace(1), &tokens[..60], Some(Tier::RamFile)).key;
    cache.flush();
    assert_eq!(cache.row(&child).unwrap().meta.parent, Some(parent));
    let base = cache.base_for(&namespace(1), &tokens, Some(Tier::Disk)).unwrap();
    assert_eq!((base.key(), base.start()), (parent, 30), "the row on tmpfs may be gone after a reboot");
    drop(base);
    assert_eq!(cache.evict_bytes(u64::MAX, &[Tier::Disk]), 0, "the row on tmpfs still needs it");
    drop(cache);
    let cache = Cache::open(config()).unwrap();
    assert_eq!(reach(&cache, namespace(1), &tokens), 60);
    let rows = cache.rows();
    let freed = cache.evict_bytes(u64::MAX, &[Tier::RamFile]);
    assert_eq!(freed, rows.iter().find(|row| row.key == child).unwrap().bytes);
    assert_eq!(reach(&cache, namespace(1), &tokens), 30);
    assert!(cache.evict_bytes(u64::MAX, &[Tier::Disk]) > 0);
    assert!(cache.is_empty() && fs.paths().is_empty());
}

#[test]
fn a_damaged_row_takes_along_what_builds_on_it_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
    let tokens = conversation(1, 90);
    let sibling = longer(&tokens[..30], 2, 20);
    let keys = [&tokens[..30], &tokens[..60], &tokens, &sibling].map(|tokens| save(&cache, namespace(1), tokens).key);
    cache.flush();
    damage(folder.path(), &keys[1]);
    // The last byte belongs to the logits, which only the boundary itself needs.
    assert_eq!(reach(&cache, namespace(1), &tokens), 90);
    let plan = cache.lookup(&namespace(1), &tokens[..60], Needs::ATTENTION).unwrap();
    assert!(matches!(check_plan(&plan, &tokens[..60]), Err(Unusable::Damaged { key, .. }) if key == keys[1]));
    drop(plan);
    assert_eq!(keys.map(|key| cache.contains(&key)), [true, false, false, true]);
    assert_eq!((reach(&cache, namespace(1), &tokens), reach(&cache, namespace(1), &sibling)), (30, 50));
    let counters = cache.counters();
    assert_eq!((counters.corrupt_files, counters.orphans_dropped), (1, 1));
    let report = inspect_folder(folder.path()).unwrap();
    assert_eq!((report.rows.len(), report.findings.len()), (2, 1), "moved aside, and its child removed");
    assert_eq!(save(&cache, namespace(1), &tokens).outcome, SaveOutcome::Queued);
    cache.flush();
    assert_eq!((reach(&cache, namespace(1), &tokens), cache.pinned_rows()), (90, 0));
}

#[test]
fn a_reader_of_a_damaged_row_does_not_drop_the_row_that_replaced_it() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
    let tokens = conversation(1, 50);
    let key = save(&cache, namespace(1), &tokens).key;
    cache.flush();
    damage(folder.path(), &key);
    let [first, late] = [(), ()].map(|()| cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap());
    check_plan(&first, &tokens).unwrap_err();
    // The new file has another layout, so that the late reader cannot find its bytes there.
    let text = "a longer text than before".repeat(9);
    cache.save(SaveRequest { text, ..request(namespace(1), &tokens, None) }).unwrap();
    cache.flush();
    check_plan(&late, &tokens).unwrap_err();
    assert_eq!(reach(&cache, namespace(1), &tokens), 50);
    assert_eq!(cache.counters().corrupt_files, 1);
}

#[test]
fn a_save_whose_base_is_found_damaged_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(on_disk(folder.path(), 1 << 30)).unwrap();
    let tokens = conversation(1, 60);
    let key = save(&cache, namespace(1), &tokens[..40]).key;
    cache.flush();
    let base = cache.base_for(&namespace(1), &tokens, None).unwrap();
    damage(folder.path(), &key);
    assert_eq!(reach(&cache, namespace(1), &tokens), 0);
    let outcome = cache.save(request(namespace(1), &tokens, Some(&base))).unwrap().outcome;
    assert_eq!(outcome, SaveOutcome::Dropped(DropReason::ParentGone));
    drop(base);
    assert_eq!((cache.len(), cache.pinned_rows(), cache.counters().saves_dropped), (0, 0, 1));
    assert_eq!(save(&cache, namespace(1), &tokens).outcome, SaveOutcome::Queued);
    assert_eq!(reach(&cache, namespace(1), &tokens), 60);
}

#[test]
fn a_chain_of_a_thousand_rows_is_found_again() {
    let fs = MemoryFs::new();
    let tokens = conversation(1, 2000);
    {
        let cache = Cache::open(CacheConfig { queue: 1000, ..on_memory(&fs, 1 << 30) }).unwrap();
        for end in (2..=2000).step_by(2) {
            assert_eq!(save(&cache, namespace(1), &tokens[..end]).outcome, SaveOutcome::Queued);
        }
    }
    let cache = Cache::open(on_memory(&fs, 1 << 30)).unwrap();
    assert_eq!((cache.len(), cache.counters().orphans_dropped), (1000, 0));
    let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    assert_eq!((plan.rows().len(), check_plan(&plan, &tokens).unwrap()), (1000, 2000));
    assert_eq!((cache.clear(), cache.pinned_rows()), (0, 1000), "all of it is leased");
    drop(plan);
    assert!(cache.clear() > 0);
    assert!(cache.is_empty() && fs.paths().is_empty());
}

#[test]
fn a_second_save_counts_only_where_it_adds_a_part_and_takes_none() {
    let fs = MemoryFs::new();
    let cache = Cache::open(on_memory(&fs, 1 << 30)).unwrap();
    let tokens = conversation(1, 80);
    save(&cache, namespace(1), &tokens[..50]);
    cache.flush();
    let with = |kinds: &[PartKind], end: usize| {
        let base = cache.base_for(&namespace(1), &tokens[..end.min(50)], None).filter(|_| end > 50);
        let mut request = boundary_request(&tokens[..end], base.as_ref());
        request.parts.retain(|part| kinds.contains(&part.kind));
        let outcome = cache.save(request).unwrap().outcome;
        cache.flush();
        outcome
    };
    use PartKind::{Attention, Logits, Partial};
    assert_eq!(with(&[Attention], 80), SaveOutcome::Queued);
    assert_eq!(with(&[Attention], 80), SaveOutcome::AlreadyPresent, "nothing new");
    assert_eq!(with(&[Logits, Partial], 80), SaveOutcome::AlreadyPresent, "it would lose the attention part");
    let lease = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    assert_eq!(with(&[Attention, Logits], 80), SaveOutcome::AlreadyPresent, "somebody reads it");
    drop(lease);
    assert_eq!(with(&[Attention, Logits], 80), SaveOutcome::Queued);
    assert_eq!(with(&[Attention, Partial], 80), SaveOutcome::AlreadyPresent, "it would lose the logits");
    assert_eq!(with(&[Attention, Logits, Partial], 80), SaveOutcome::Queued);
    let [whole, child] = [50, 80].map(|end| cache.row(&namespace(1).key(&tokens[..end])).unwrap());
    assert_eq!(
        (child.meta.parent, child.meta.start, child.parts),
        (Some(whole.key), 50, vec![Attention, Partial, Logits])
    );
    let mut rooted = boundary_request(&tokens, None);
    rooted.flags = 1;
    assert_eq!(cache.save(rooted).unwrap().outcome, SaveOutcome::AlreadyPresent, "it hangs on another row");
    // A row that others build on is completed in place.
    assert_eq!(with(&[Attention, Logits, Partial], 50), SaveOutcome::Queued);
    assert_eq!(reach(&cache, namespace(1), &tokens), 80);
    let files = fs.paths();
    assert_eq!((files.len(), cache.counters().tier_bytes[2]), (2, cache.rows().iter().map(|row| row.bytes).sum()));
}

#[test]
fn completing_a_row_in_a_full_tier_does_not_evict_it() {
    let fs = MemoryFs::new();
    let clock = Arc::new(PausedClock::new(1_000));
    let quota = 7_500;
    let cache = Cache::open(CacheConfig { clock: clock.clone(), ..on_memory(&fs, quota) }).unwrap();
    let (old, young) = (conversation(1, 60), conversation(2, 60));
    let mut without = request(namespace(1), &old, None);
    without.parts.truncate(1);
    cache.save(without).unwrap();
    cache.flush();
    clock.advance(Duration::from_secs(60));
    save(&cache, namespace(1), &young);
    cache.flush();
    // The old row is the first to go; the room for its second version has to come from the other one.
    assert_eq!(cache.save(request(namespace(1), &old, None)).unwrap().outcome, SaveOutcome::Queued);
    cache.flush();
    let plan = cache.lookup(&namespace(1), &old, Needs::ATTENTION).unwrap();
    assert_eq!((check_plan(&plan, &old).unwrap(), plan.has_logits()), (60, true));
    assert_eq!(cache.counters().save_failures, 0);
    assert_eq!((fs.paths().len(), cache.counters().tier_bytes[2] <= quota), (cache.len(), true));
}

#[test]
fn a_hot_row_that_grows_never_overfills_the_memory_tier() {
    let bytes = |tokens: &[u32]| attention(tokens, 0).len() as u64;
    let tokens = conversation(1, 60);
    let ram_quota = bytes(&tokens) + 10;
    let cache = Cache::open(CacheConfig { ram_quota, ..on_memory(&MemoryFs::new(), 1 << 30) }).unwrap();
    let mut without = request(namespace(1), &tokens, None);
    without.parts.truncate(1);
    let key = cache.save(without).unwrap().key;
    cache.flush();
    assert_eq!(cache.row(&key).unwrap().tiers, [Tier::Ram, Tier::Disk]);
    assert_eq!(cache.save(request(namespace(1), &tokens, None)).unwrap().outcome, SaveOutcome::Queued);
    assert!(cache.counters().tier_bytes[0] <= ram_quota, "also while the write is queued");
    cache.flush();
    assert!(cache.counters().tier_bytes[0] <= ram_quota);
    let plan = cache.lookup(&namespace(1), &tokens, Needs::ATTENTION).unwrap();
    assert_eq!((check_plan(&plan, &tokens).unwrap(), plan.has_logits()), (60, true));
}

#[test]
fn a_full_queue_drops_the_save_and_nothing_of_it_remains() {
    let (fs, gate) = (MemoryFs::new(), Arc::new(Gate::default()));
    let config = CacheConfig { writers: 1, queue: 2, observer: Some(gate.clone()), ..on_memory(&fs, 1 << 30) };
    let cache = Cache::open(config).unwrap();
    let _end = OpenAtEnd(&gate);
    gate.shut();
    let rows: Vec<Vec<u32>> = (1..=4).map(|number| conversation(number, 40)).collect();
    assert_eq!(save(&cache, namespace(1), &rows[0]).outcome, SaveOutcome::Queued);
    gate.wait_for(1);
    assert_eq!(save(&cache, namespace(1), &rows[1]).outcome, SaveOutcome::Queued);
    assert_eq!(save(&cache, namespace(1), &rows[2]).outcome, SaveOutcome::Queued);
    let full = SaveOutcome::Dropped(DropReason::QueueFull);
    assert_eq!(save(&cache, namespace(1), &rows[3]).outcome, full);
    assert_eq!((reach(&cache, namespace(1), &rows[3]), cache.queue_depth()), (0, 3));
    assert_eq!(reach(&cache, namespace(1), &rows[2]), 40, "what waits is readable");
    gate.open();
    cache.flush();
    assert_eq!((cache.counters().saves_dropped, cache.counters().saves_finish), (1, 3));
    assert_eq!(save(&cache, namespace(1), &rows[3]).outcome, SaveOutcome::Queued);
    cache.flush();
    assert_eq!((cache.len(), fs.paths().len(), cache.pinned_rows()), (4, 4, 0));
}

#[test]
fn a_synchronous_save_waits_no_longer_than_its_bound_and_is_published_all_the_same() {
    let (fs, gate) = (MemoryFs::new(), Arc::new(Gate::default()));
    let gates = Gates { evict_save_timeout_ms: 5, ..Gates::default() };
    let config = || CacheConfig { gates, observer: Some(gate.clone()), ..on_memory(&fs, 1 << 30) };
    let tokens = conversation(1, 40);
    {
        let cache = Cache::open(config()).unwrap();
        let _end = OpenAtEnd(&gate);
        gate.shut();
        let evict = SaveRequest { reason: SaveReason::Evict, ..request(namespace(1), &tokens, None) };
        let started = Instant::now();
        let saved = cache.save(evict).unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "the usual bound is 30 seconds");
        assert_eq!(saved.outcome, SaveOutcome::Dropped(DropReason::TimedOut));
        assert_eq!(reach(&cache, namespace(1), &tokens), 40, "readable while it waits");
        assert!(cache.row(&saved.key).unwrap().pending);
        gate.open();
        cache.flush();
        assert_eq!(cache.row(&saved.key).unwrap().tiers, [Tier::Disk]);
    }
    assert_eq!(reach(&Cache::open(config()).unwrap(), namespace(1), &tokens), 40);
}

#[test]
fn a_save_for_later_never_waits_for_its_file() {
    let (fs, gate) = (MemoryFs::new(), Arc::new(Gate::default()));
    let gates = Gates { evict_save_timeout_ms: 3_600_000, ..Gates::default() };
    let config = CacheConfig { writers: 1, queue: 1, gates, observer: Some(gate.clone()), ..on_memory(&fs, 1 << 30) };
    let cache = Cache::open(config).unwrap();
    let _end = OpenAtEnd(&gate);
    gate.shut();
    let rows: Vec<Vec<u32>> = (1..=3).map(|number| conversation(number, 40)).collect();
    let later = |tokens: &[u32]| {
        let evict = SaveRequest { reason: SaveReason::Evict, ..request(namespace(1), tokens, None) };
        cache.save_later(evict).unwrap().outcome
    };
    assert_eq!(later(&rows[0]), SaveOutcome::Queued);
    gate.wait_for(1);
    assert_eq!(later(&rows[1]), SaveOutcome::Queued);
    assert_eq!(later(&rows[2]), SaveOutcome::Dropped(DropReason::QueueFull));
    gate.open();
    cache.flush();
    assert_eq!((cache.len(), cache.counters().saves_evict), (2, 2));
}

#[test]
fn hits_on_a_row_that_waits_for_the_disk_reach_its_file() {
    let (fs, gate) = (MemoryFs::new(), Arc::new(Gate::default()));
    let config = || CacheConfig { observer: Some(gate.clone()), ..on_memory(&fs, 1 << 30) };
    let tokens = conversation(1, 40);
    let key = {
        let cache = Cache::open(config()).unwrap();
        let _end = OpenAtEnd(&gate);
        gate.shut();
        let key = save(&cache, namespace(1), &tokens).key;
        gate.wait_for(1);
        reach(&cache, namespace(1), &tokens);
        let info = cache.row(&key).unwrap();
        assert_eq!((info.meta.hits, info.pending), (1, true));
        gate.open();
        key
    };
    assert_eq!(Cache::open(config()).unwrap().row(&key).unwrap().meta.hits, 1);
}

#[test]
fn an_explanation_names_each_case() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let tokens = conversation(1, 100);
    let nothing = cache.explain(&namespace(1), &tokens, Cut::AnyToken);
    assert_eq!((nothing.verdict, nothing.common, nothing.usable), (Verdict::NothingStored, 0, 0));
    assert_eq!((nothing.row, nothing.parting), (None, None));
    let keys = [40, 100].map(|end| save(&cache, namespace(1), &tokens[..end]).key);
    cache.flush();
    let explain = |prompt: &[u32], cut| cache.explain(&namespace(1), prompt, cut);

    let stored = explain(&tokens[..70], Cut::AnyToken);
    assert_eq!((stored.verdict, stored.common, stored.usable), (Verdict::Stored, 70, 70));
    let cut = explain(&tokens[..70], Cut::SavedBoundary);
    assert_eq!((cut.verdict, cut.common, cut.usable), (Verdict::Stored, 70, 40), "usable from the boundary only");
    assert_eq!(cut.row.map(|row| (row.key, row.tokens, row.tier)), Some((keys[1], 100, Some(Tier::Disk))));

    let ends = explain(&longer(&tokens, 2, 5), Cut::AnyToken);
    assert_eq!((ends.verdict, ends.common, ends.usable, ends.parting), (Verdict::Ends, 100, 100, None));

    let other = longer(&tokens[..55], 3, 30);
    let parts = explain(&other, Cut::AnyToken);
    assert_eq!((parts.verdict, parts.common, parts.tokens), (Verdict::Parts, 55, 85));
    let parting = parts.parting.unwrap();
    assert_eq!((parting.position, parting.window_start), (55, 47));
    assert_eq!((parting.stored, parting.asked), (tokens[47..63].to_vec(), other[47..63].to_vec()));

    let elsewhere = |namespace| cache.explain(&namespace, &tokens, Cut::AnyToken).verdict;
    let base = namespace(1);
    let verdict = |fingerprint, quant, context| Verdict::OtherNamespace { fingerprint, quant, context };
    assert_eq!(elsewhere(poncho_cache::Namespace { fingerprint: [7; 32], ..base }), verdict(true, false, false));
    let quant = poncho_cache::QuantType::F16;
    assert_eq!(elsewhere(poncho_cache::Namespace { quant, ..base }), verdict(false, true, false));
    assert_eq!(elsewhere(poncho_cache::Namespace { context_hash: [7; 32], ..base }), verdict(false, false, true));
    assert_eq!(explain(&conversation(8, 20), Cut::AnyToken).verdict, Verdict::NothingStored);
    let counters = cache.counters();
    assert_eq!((counters.probes, counters.misses), (0, 0), "explaining counts nothing");
}

/// Everyday use 7: a change at the beginning hid the stored prompt that a prompt came from.
#[test]
fn the_most_similar_prompt_is_found_whatever_changed_in_front_of_it() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let prompts: Vec<Vec<u32>> = (1..40).map(|number| conversation(number, 300)).collect();
    let keys: Vec<Key> = prompts.iter().map(|prompt| save(&cache, namespace(1), prompt).key).collect();
    // A beginning that many prompts have, saved as a row of its own too.
    let shared = conversation(50, 40);
    for number in 60..70 {
        save(&cache, namespace(1), &longer(&shared, number, 200));
    }
    save(&cache, namespace(1), &shared);
    cache.flush();
    let similar = |prompt: &[u32]| {
        let found = cache.explain(&namespace(1), prompt, Cut::AnyToken).similar;
        found.map(|similar| (similar.row.key, similar.alignment.prefix, similar.alignment.shared()))
    };
    let prompt = &prompts[16];
    let in_front = longer(&conversation(99, 12), 0, 0).into_iter().chain(prompt.iter().copied()).collect::<Vec<_>>();
    assert_eq!(similar(&in_front), Some((keys[16], 0, 300)), "put in front");
    let mut edited = prompt.clone();
    edited[3] = 1;
    assert_eq!(similar(&edited), Some((keys[16], 3, 299)), "one token changed");
    assert_eq!(similar(&prompt[100..]), Some((keys[16], 0, 200)), "the beginning dropped");
    // Many rows begin like this prompt, and another one is what it was made from.
    let moved = [&shared[..], &prompt[50..]].concat();
    assert_eq!(similar(&moved), Some((keys[16], 0, 250)), "under another beginning");
    assert_eq!(similar(&conversation(99, 300)), None, "nothing like it");
    assert_eq!(similar(prompt), None, "every token is stored");
    assert_eq!(similar(&longer(prompt, 98, 50)), Some((keys[16], 300, 300)), "grown");
}

/// A prompt that has run is stored to its end; its own row would explain every miss away.
#[test]
fn a_past_lookup_is_explained_without_the_rows_that_came_after_it() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let before = conversation(1, 300);
    let mut asked = before.clone();
    asked[50] = 1;
    let stored = save(&cache, namespace(1), &before).key;
    for later in [&asked[..290], &longer(&asked, 5, 20)] {
        save(&cache, namespace(1), later);
    }
    cache.flush();
    assert_eq!(cache.explain(&namespace(1), &asked, Cut::AnyToken).verdict, Verdict::Stored);
    let past = |found, at| {
        let found = cache.explain_past(None, &namespace(1), &asked, Cut::AnyToken, poncho_cache::Then { found, at });
        let similar = found.similar.map(|similar| (similar.row.key, similar.alignment.prefix));
        (found.common, found.usable, similar)
    };
    assert_eq!(past(50, u64::MAX), (50, 50, Some((stored, 50))));
    assert_eq!(past(0, 0), (0, 0, None), "no row was there then");
    // What was found to its end needs no other row.
    assert_eq!(past(asked.len() - 1, u64::MAX), (asked.len(), asked.len(), None));
}

/// Everyday use 7, Hardening 6: what is similar is found among the caller's own rows.
#[test]
fn a_similar_prompt_of_another_owner_is_not_found() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let prompt = conversation(1, 300);
    save(&cache, namespace(1), &prompt);
    let [one, two] = [1, 2].map(|byte| poncho_cache::OwnerId::from_bytes([byte; 16]));
    cache.claim(&namespace(1), &prompt, one);
    let asked = &prompt[10..];
    let own = cache.explain_for(one, &namespace(1), asked, Cut::AnyToken);
    assert_eq!(own.similar.map(|similar| similar.alignment.shared()), Some(290));
    let other = cache.explain_for(two, &namespace(1), asked, Cut::AnyToken);
    assert_eq!((other.similar, other.row, other.verdict), (None, None, Verdict::NothingStored));
}

/// Everyday use 7: a few common words in this context hid the prompt that is stored for other settings.
#[test]
fn a_few_common_words_do_not_hide_a_prompt_that_is_stored_for_other_settings() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let prompt = conversation(1, 300);
    save(&cache, namespace(1), &prompt);
    save(&cache, namespace(2), &longer(&prompt[..20], 7, 100));
    let found = cache.explain(&namespace(2), &prompt, Cut::AnyToken);
    assert!(matches!(found.verdict, Verdict::OtherNamespace { .. }), "{found:?}");
    assert_eq!((found.common, found.elsewhere, found.similar), (20, Some(300), None));
}

/// With two models of one vocabulary, every new prompt was said to be stored for the other one.
#[test]
fn a_few_common_words_and_later_rows_for_other_settings_explain_nothing() {
    let cache = Cache::open(on_memory(&MemoryFs::new(), 1 << 30)).unwrap();
    let prompt = conversation(1, 300);
    save(&cache, namespace(1), &longer(&prompt[..8], 7, 300));
    cache.flush();
    let found = cache.explain(&namespace(2), &prompt, Cut::AnyToken);
    assert_eq!((found.verdict, found.elsewhere), (Verdict::NothingStored, None));
    save(&cache, namespace(1), &prompt);
    cache.flush();
    let past = |found, at| {
        let then = poncho_cache::Then { found, at };
        cache.explain_past(None, &namespace(2), &prompt, Cut::AnyToken, then).elsewhere
    };
    assert_eq!(past(0, u64::MAX), Some(300));
    assert_eq!(past(0, 0), None, "it was stored later");
    assert_eq!(past(280, u64::MAX), None, "most of it was found here");
}
