//! The process that is killed: it saves, completes, compacts, looks up, reads and evicts until it dies.
//!
//! It reports on its standard error, a line at a time: `P key` when a row is published, `E keys` before anything
//! that may evict exactly those rows, `D keys` after it with those of them that are still there. Rows that it leases
//! during an eviction are not among the `E` keys: they must survive it. The parent (`kill.rs`) holds it to that.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use poncho_cache::{
    Cache, CacheConfig, Compaction, DropReason, FileTierConfig, Key, Needs, PartKind, PayloadPart, RestorePlan,
    RowInfo, SaveOutcome, SaveReason, SaveRequest, Tier,
};

use super::death::{DeadlyFs, Death, LARGE_BODY, Witness, scatter};
use crate::support::{at_end, attention, conversation, namespace, reach, request};

/// No row of these tests but the large ones is longer than this: tokens, state, ballast, records.
const LONGEST_ROW: u64 = 80 << 10;
/// Room for some twenty of the longest rows, so that saves have to evict.
const QUOTA: u64 = 20 * LONGEST_ROW;
/// No large row is longer than this.
const LONGEST_LARGE_ROW: u64 = LARGE_BODY as u64 + LONGEST_ROW;
/// Tokens of the longest row.
const MOST_TOKENS: usize = 240;
/// A child that is still alive after this number of steps is a bug in the test.
const STEPS: usize = 20_000;

/// The arguments of a child process.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    pub(crate) folder: PathBuf,
    pub(crate) tier: Tier,
    pub(crate) writers: usize,
    pub(crate) kill: usize,
}

impl Orders {
    const VARIABLES: [&'static str; 4] =
        ["PONCHO_KILL_FOLDER", "PONCHO_KILL_TIER", "PONCHO_KILL_WRITERS", "PONCHO_KILL_NUMBER"];

    pub(crate) fn to_env(&self) -> [(&'static str, String); 4] {
        let [folder, tier, writers, kill] = Self::VARIABLES;
        [
            (folder, self.folder.to_str().unwrap().to_owned()),
            (tier, self.tier.as_str().to_owned()),
            (writers, self.writers.to_string()),
            (kill, self.kill.to_string()),
        ]
    }

    /// The orders of this process, if it is a child.
    pub(crate) fn from_env() -> Option<Self> {
        let [folder, tier, writers, kill] = Self::VARIABLES.map(|name| std::env::var(name).ok());
        let tier = tier?;
        Some(Self {
            folder: folder?.into(),
            tier: Tier::ALL.into_iter().find(|other| other.as_str() == tier)?,
            writers: writers?.parse().unwrap(),
            kill: kill?.parse().unwrap(),
        })
    }

    fn has_large_rows(&self) -> bool {
        Death::of(self.kill, self.tier).wants_large_rows(self.tier)
    }

    /// Some large rows need room beside the others.
    pub(crate) fn quota(&self) -> u64 {
        if self.has_large_rows() { QUOTA + 3 * LONGEST_LARGE_ROW } else { QUOTA }
    }

    /// Takes out what has no room in the quota of the next kill: the large rows, and as many of the oldest as are still
    /// too many.
    pub(crate) fn shrink(&self, cache: &Cache) {
        let large = || cache.rows().into_iter().filter(|row| is_large(&row.key)).collect::<Vec<_>>();
        // What others build on goes after them; one may build on a row that is longer than itself.
        while !large().is_empty() {
            let removed = large().iter().filter(|row| cache.remove(&row.key)).count();
            assert!(removed > 0, "nobody holds {:?}", large());
        }
        let used = cache.counters().tier_bytes[self.tier.index()];
        cache.evict_bytes(used.saturating_sub(QUOTA), &[self.tier]);
    }

    /// The settings that parent and child share.
    pub(crate) fn config(&self) -> CacheConfig {
        let files = Some(FileTierConfig { folder: self.folder.clone(), quota: self.quota() });
        let (ram_file, disk) = if self.tier == Tier::Disk { (None, files) } else { (files, None) };
        CacheConfig { ram_quota: 0, ram_file, disk, writers: self.writers, queue: 8, ..CacheConfig::default() }
    }
}

/// One line to the parent, written whole before this returns, so that it outlives the process.
pub(crate) fn say(line: &str) {
    std::io::stderr().lock().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Whether the row of that name is a large one.
fn is_large(key: &Key) -> bool {
    key.as_bytes()[31] < 16
}

/// Bytes that follow from the key, up to 64 kB, so that writing a file takes a while; 4 MiB more for a large row.
pub(crate) fn ballast(key: &Key) -> Vec<u8> {
    let seed = u64::from_le_bytes(*key.as_bytes().first_chunk().unwrap());
    let length = usize::try_from(seed % (64 << 10)).unwrap() + if is_large(key) { LARGE_BODY } else { 0 };
    (0..length as u64 / 8 + 1).flat_map(|word| scatter(seed ^ word).to_le_bytes()).take(length).collect()
}

/// Works until it is killed.
pub(crate) fn work(orders: &Orders) {
    let death = Death::of(orders.kill, orders.tier);
    let config = CacheConfig {
        observer: Some(Arc::new(Witness { death, reached: AtomicUsize::new(0) })),
        fs: Arc::new(DeadlyFs { death, calls: AtomicUsize::new(0) }),
        ..orders.config()
    };
    let cache = Cache::open(config).unwrap();
    let large = orders.has_large_rows();
    let longest = if large { LONGEST_LARGE_ROW } else { LONGEST_ROW };
    let quota = orders.quota();
    let random = scatter(orders.kill as u64);
    let mut worker = Worker { cache, tier: orders.tier, large, longest, quota, random, evictions: 0 };
    for _ in 0..STEPS {
        worker.step();
    }
}

struct Worker {
    cache: Cache,
    tier: Tier,
    /// Whether every new row is large, or none.
    large: bool,
    longest: u64,
    quota: u64,
    random: u64,
    /// Evictions that were announced.
    evictions: u64,
}

impl Worker {
    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.random = scatter(self.random);
        usize::try_from(self.random % limit as u64).unwrap()
    }

    fn pick(&mut self) -> Option<RowInfo> {
        let mut rows = self.cache.rows();
        if rows.is_empty() {
            return None;
        }
        let position = self.below(rows.len());
        Some(rows.swap_remove(position))
    }

    fn step(&mut self) {
        match self.below(20) {
            0..8 => self.grow(),
            8..10 => self.compact(),
            10..13 => self.complete(),
            13..17 => self.read(),
            17 => self.cache.flush(),
            18 => {
                let bytes = self.below(10) as u64 * self.longest / 2;
                let tier = self.tier;
                self.evicting(|cache| cache.evict_bytes(bytes, &[tier]));
            }
            _ => {
                if self.below(4) == 0 {
                    self.evicting(Cache::clear);
                }
            }
        }
        assert_eq!(self.cache.counters().evictions, self.evictions, "rows were evicted without need");
    }

    /// Saves a row that starts a conversation, continues one, or branches off.
    fn grow(&mut self) {
        let known = self.pick().and_then(|row| self.cache.tokens_of(&row.key));
        let mut tokens = known.filter(|tokens| tokens.len() < MOST_TOKENS - 60).unwrap_or_default();
        if self.below(3) == 0 {
            let keep = self.below(tokens.len() + 1);
            tokens.truncate(keep);
        }
        let more = 1 + self.below(60);
        let topic = u32::try_from(self.below(1000)).unwrap();
        tokens.extend(conversation(topic, more));
        // The last token decides by way of the key; one of some dozens does.
        while is_large(&namespace(1).key(&tokens)) != self.large {
            *tokens.last_mut().unwrap() += 1;
        }
        let base = match self.below(10) {
            0 => None,
            _ => self.cache.base_for(&namespace(1), &tokens, None),
        };
        let mut new = self.request(&tokens, base.as_ref());
        if self.below(3) == 0 {
            new.parts.retain(|part| part.kind != PartKind::Logits);
        }
        self.save(new);
    }

    /// Saves a row again that lacks its logits, with them: its file is replaced.
    fn complete(&mut self) {
        let Some(row) = self.cache.rows().into_iter().find(|row| !row.parts.contains(&PartKind::Logits)) else {
            return;
        };
        let Some(tokens) = self.cache.tokens_of(&row.key) else { return };
        let base = self.cache.base_for(&namespace(1), &tokens[..row.meta.start as usize], None);
        let new = self.request(&tokens, base.as_ref());
        self.save(new);
    }

    /// A row takes over the tokens of some of the rows that it hangs on: its file is replaced.
    fn compact(&mut self) {
        let Some(row) = self.pick().filter(|row| row.meta.parent.is_some()) else { return };
        let Some(tokens) = self.cache.tokens_of(&row.key) else { return };
        let mut start = row.meta.start;
        let mut above = row.meta.parent.and_then(|parent| self.cache.row(&parent));
        while let Some(ancestor) = above.take() {
            start = start.min(ancestor.meta.start);
            if self.below(3) > 0 {
                above = ancestor.meta.parent.and_then(|parent| self.cache.row(&parent));
            }
        }
        let all = [
            PayloadPart { kind: PartKind::Attention, bytes: attention(&tokens, start as usize).into() },
            PayloadPart { kind: PartKind::Logits, bytes: at_end(&tokens, PartKind::Logits).into() },
            PayloadPart { kind: PartKind::Partial, bytes: ballast(&row.key).into() },
        ];
        let parts: Vec<PayloadPart> = all.into_iter().filter(|part| row.parts.contains(&part.kind)).collect();
        if !parts.iter().any(|part| part.kind == PartKind::Attention) {
            return;
        }
        let waiting = self.cache.queue_depth() as u64 + 1;
        let used = self.cache.counters().tier_bytes[self.tier.index()];
        let compact = |cache: &Cache| cache.compact(Compaction { key: row.key, start, parts, give_up: &[] });
        let outcome =
            if used + waiting * self.longest > self.quota { self.evicting(compact) } else { compact(&self.cache) };
        let fine = matches!(outcome, SaveOutcome::Queued | SaveOutcome::Dropped(_));
        assert!(fine, "{outcome:?}");
    }

    fn request<'a>(&mut self, tokens: &'a [u32], base: Option<&'a poncho_cache::SaveBase>) -> SaveRequest<'a> {
        let reason = if self.below(3) == 0 { SaveReason::Evict } else { SaveReason::Finish };
        let mut new = SaveRequest { reason, ..request(namespace(1), tokens, base) };
        let bytes = ballast(&namespace(1).key(tokens)).into();
        new.parts.push(PayloadPart { kind: PartKind::Partial, bytes });
        new
    }

    fn save(&mut self, new: SaveRequest<'_>) {
        // What waits may be counted twice here, never left out.
        let waiting = self.cache.queue_depth() as u64 + 1;
        let used = self.cache.counters().tier_bytes[self.tier.index()];
        let outcome = if used + waiting * self.longest > self.quota {
            self.evicting(|cache| cache.save(new).unwrap().outcome)
        } else {
            self.cache.save(new).unwrap().outcome
        };
        let fine = [
            SaveOutcome::Published,
            SaveOutcome::Queued,
            SaveOutcome::AlreadyPresent,
            SaveOutcome::Dropped(DropReason::QueueFull),
            SaveOutcome::Dropped(DropReason::NoRoom),
        ];
        assert!(fine.contains(&outcome), "{outcome:?}");
    }

    fn read(&mut self) {
        let Some(mut tokens) = self.pick().and_then(|row| self.cache.tokens_of(&row.key)) else { return };
        let keep = 1 + self.below(tokens.len());
        tokens.truncate(keep);
        let stored = self.cache.explain(&namespace(1), &tokens, poncho_cache::Cut::AnyToken).usable;
        assert_eq!(reach(&self.cache, namespace(1), &tokens), stored, "a row is there and does not read");
    }

    /// Does something that may evict. Some rows are leased meanwhile.
    fn evicting<T>(&mut self, act: impl FnOnce(&Cache) -> T) -> T {
        let rows = self.cache.rows();
        let mut leases: Vec<RestorePlan> = Vec::new();
        for row in &rows {
            if self.below(3) == 0
                && let Some(tokens) = self.cache.tokens_of(&row.key)
            {
                leases.extend(self.cache.resume(&namespace(1), &tokens, &row.key, Needs::ATTENTION, Duration::ZERO));
            }
        }
        let held: HashSet<Key> = leases.iter().flat_map(RestorePlan::rows).map(poncho_cache::PinnedRow::key).collect();
        let free: Vec<Key> = rows.iter().map(|row| row.key).filter(|key| !held.contains(key)).collect();
        say(&list('E', &free));
        let result = act(&self.cache);
        let is_stored = |key: &Key| self.cache.row(key).is_some_and(|row| row.tiers == [self.tier]);
        assert!(held.iter().all(|key| self.cache.contains(key)), "a leased row was evicted");
        let left: Vec<Key> = free.into_iter().filter(is_stored).collect();
        say(&list('D', &left));
        self.evictions = self.cache.counters().evictions;
        result
    }
}

fn list(letter: char, keys: &[Key]) -> String {
    let mut line = letter.to_string();
    for key in keys {
        line.push(' ');
        line.push_str(&key.to_hex());
    }
    line
}
