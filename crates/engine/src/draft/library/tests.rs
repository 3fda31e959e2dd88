//! Rows are found, evicted and kept apart: the promises of the library, on a cache in memory.

use poncho_cache::{CacheConfig, FingerprintMode, PartKind, PayloadPart, QuantType, SaveReason, SaveRequest};

use super::*;

fn namespace(number: u8) -> Namespace {
    Namespace { fingerprint: [number; 32], quant: QuantType::F16, context_hash: [0; 32] }
}

fn owner(number: u8) -> OwnerId {
    OwnerId::from_bytes([number; 16])
}

fn scope(number: u8, owner: Option<OwnerId>) -> Scope {
    Scope { namespace: namespace(number), owner }
}

fn cache() -> Arc<Cache> {
    Arc::new(Cache::open(CacheConfig::in_memory(1 << 20)).unwrap())
}

fn save(cache: &Cache, namespace: Namespace, tokens: &[Token], owner: Option<OwnerId>) -> Key {
    let request = SaveRequest {
        namespace,
        mode: FingerprintMode::Safe,
        tokens,
        base: None,
        parts: vec![PayloadPart { kind: PartKind::Attention, bytes: vec![1; 100].into() }],
        reason: SaveReason::Finish,
        flags: 0,
        context_size: 0,
        text: String::new(),
        tier: None,
        owner,
    };
    cache.save(request).unwrap().key
}

/// A library that changes only when the test says so.
struct Bench {
    library: Library,
    keeper: Keeper,
    _woken: Receiver<()>,
}

fn bench(cache: &Arc<Cache>) -> Bench {
    let (wake, woken) = sync_channel(1);
    let shelves: Arc<Mutex<Shelves>> = Arc::default();
    let size: Arc<Size> = Arc::default();
    let keeper = Keeper {
        cache: Arc::clone(cache),
        shelves: Arc::clone(&shelves),
        size: Arc::clone(&size),
        point: 0,
        most_tokens: MOST_TOKENS,
        stopping: Arc::default(),
    };
    let cache = Arc::clone(cache);
    let library = Library { cache, shelves, wake: Some(wake), size, stopping: Arc::default(), thread: None };
    Bench { library, keeper, _woken: woken }
}

fn text(number: u32) -> Vec<Token> {
    (0..100).map(|position| number * 1000 + position).collect()
}

impl Bench {
    fn guess(&self, scope: &Scope, number: u32) -> Vec<Token> {
        self.library.draft(scope, &text(number)[..50], 2).map_or_else(Vec::new, |draft| draft.tokens)
    }
}

#[test]
fn rows_are_found_once_the_thread_has_seen_them_also_those_of_an_earlier_process() {
    let cache = cache();
    save(&cache, namespace(1), &text(1), None);
    let mut bench = bench(&cache);
    let own = scope(1, None);
    assert_eq!(bench.guess(&own, 1), [0; 0], "nothing is listed yet");
    bench.keeper.follow();
    assert_eq!(bench.guess(&own, 1), [1050, 1051]);
    save(&cache, namespace(1), &text(2), None);
    assert_eq!(bench.guess(&own, 2), [0; 0]);
    bench.keeper.follow();
    assert_eq!(bench.guess(&own, 2), [2050, 2051]);
    assert!(bench.library.size().0 >= 200 && bench.library.size().1 > 800);
}

#[test]
fn a_draft_never_outlives_an_eviction() {
    let cache = cache();
    let (key, _) = (save(&cache, namespace(1), &text(1), None), save(&cache, namespace(1), &text(2), None));
    let mut bench = bench(&cache);
    let own = scope(1, None);
    bench.library.want(own);
    bench.keeper.follow();
    assert_eq!(bench.guess(&own, 1), [1050, 1051]);
    assert!(cache.remove(&key));
    assert_eq!(bench.guess(&own, 1), [0; 0], "before the thread has seen it");
    assert_eq!(bench.guess(&own, 2), [0; 0], "nobody knows yet which row it was");
    bench.keeper.follow();
    assert_eq!(bench.guess(&own, 1), [0; 0]);
    assert_eq!(bench.guess(&own, 2), [2050, 2051]);
    cache.clear();
    assert_eq!(bench.guess(&own, 2), [0; 0]);
}

#[test]
fn nothing_crosses_owners_or_namespaces() {
    let cache = cache();
    save(&cache, namespace(1), &text(1), Some(owner(1)));
    save(&cache, namespace(1), &text(2), None);
    save(&cache, namespace(2), &text(3), Some(owner(1)));
    let mut bench = bench(&cache);
    let scopes = [scope(1, Some(owner(1))), scope(1, Some(owner(2))), scope(1, None), scope(2, Some(owner(1)))];
    scopes.iter().for_each(|scope| bench.library.want(*scope));
    bench.keeper.follow();
    let seen = scopes.map(|scope| [1, 2, 3].map(|number| !bench.guess(&scope, number).is_empty()));
    assert_eq!(seen, [[true, false, false], [false, false, false], [false, true, false], [false, false, true]]);
    // Who sends the same tokens has them too.
    cache.claim(&namespace(1), &text(1), owner(2));
    bench.keeper.follow();
    assert_eq!(bench.guess(&scopes[1], 1), [1050, 1051]);
    assert_eq!(bench.guess(&scopes[2], 1), [0; 0]);
    // A row that nobody owned stops being a source for others once somebody does.
    assert_eq!(bench.guess(&scopes[2], 2), [2050, 2051]);
    cache.claim(&namespace(1), &text(2), owner(2));
    bench.keeper.follow();
    assert_eq!((bench.guess(&scopes[1], 2), bench.guess(&scopes[2], 2)), (vec![2050, 2051], vec![]));
}

#[test]
fn a_thread_that_fell_behind_lists_all_rows_again() {
    let cache = cache();
    let key = save(&cache, namespace(1), &text(1), None);
    let mut bench = bench(&cache);
    let own = scope(1, None);
    bench.library.want(own);
    bench.keeper.follow();
    for _ in 0..5000 {
        cache.remove(&save(&cache, namespace(2), &text(9), None));
    }
    cache.remove(&key);
    save(&cache, namespace(1), &text(2), None);
    assert_eq!(cache.changes_since(bench.keeper.point).keys, None);
    bench.keeper.follow();
    assert_eq!((bench.guess(&own, 1), bench.guess(&own, 2)), (vec![], vec![2050, 2051]));
}

#[test]
fn rows_beyond_the_bound_take_no_memory_while_they_are_listed() {
    let cache = Arc::new(Cache::open(CacheConfig::in_memory(16 << 20)).unwrap());
    for number in 0..400 {
        save(&cache, namespace(1), &text(number), None);
    }
    let mut bench = bench(&cache);
    bench.keeper.most_tokens = 1000;
    let own = scope(1, None);
    bench.library.want(own);
    bench.keeper.enter_wanted();
    bench.keeper.list(&own);
    let len = bench.keeper.with(&own, |corpus| corpus.len());
    assert!(len < 2200, "{len} of 40,000 tokens");
    bench.keeper.follow();
    assert_eq!(bench.guess(&own, 399), [399_050, 399_051], "the newest stay");
}

#[test]
fn memory_is_bounded_and_owners_that_come_back_are_served_again() {
    let cache = cache();
    for number in 0..40 {
        save(&cache, namespace(1), &text(number), Some(owner(u8::try_from(number % 2).unwrap())));
    }
    let mut bench = bench(&cache);
    bench.keeper.most_tokens = 1000;
    let (one, two) = (scope(1, Some(owner(0))), scope(1, Some(owner(1))));
    bench.library.want(one);
    bench.library.want(two);
    bench.keeper.follow();
    assert!(bench.library.size().0 <= 1000, "{:?}", bench.library.size());
    assert_eq!(bench.guess(&two, 39), [39050, 39051], "the newest stay");
    for number in 0..=u8::try_from(MOST_CORPORA).unwrap() {
        bench.library.want(scope(3, Some(owner(number))));
        bench.keeper.follow();
    }
    assert!(lock(&bench.keeper.shelves).corpora.len() <= MOST_CORPORA);
    assert_eq!(bench.guess(&two, 39), [0; 0], "it made room");
    bench.keeper.follow();
    assert_eq!(bench.guess(&two, 39), [39050, 39051]);
}
