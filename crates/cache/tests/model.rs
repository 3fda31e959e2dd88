//! The cache against a naive model: a list of rows, each with all its tokens.
//!
//! Random steps run on both. Which rows an eviction took is read from the cache and held against the rules; all else
//! (what a lookup reaches, what a save comes to, ages, hits, counters, what a reopened folder holds) the model
//! says beforehand. Writers can be held at a gate, so that rows wait for the disk for as long as the steps want.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use poncho_cache::testing::MemoryFs;
use poncho_cache::{
    Cache, CacheConfig, Clock as _, CounterSnapshot, Cut, DropReason, Fs, Key, Needs, PartKind, PausedClock,
    RestorePlan, RowInfo, SaveBase, SaveOutcome, SaveRequest, StdFs, Tier,
};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::chains::Gate;
use crate::support::{at_end, check_plan, conversation, namespace, request};

const QUEUE: usize = 3;
const WRITERS: usize = 2;

/// A prompt: one of few beginnings, and a short tail of few tokens, so that prompts share prefixes and part.
#[derive(Clone)]
struct Prompt {
    namespace: u8,
    tokens: Vec<u32>,
}

/// On one line, so that a failing case can be read.
impl fmt::Debug for Prompt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, tokens } = self;
        formatter.write_str(&format!("{namespace}:{tokens:?}"))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Save {
        prompt: Prompt,
        extras: Extras,
        chained: bool,
    },
    /// The same row once more, with other parts.
    SaveAgain {
        which: Index,
        extras: Extras,
    },
    HoldBase(Prompt),
    SaveOnBase {
        which: Index,
        extras: Extras,
    },
    Lookup {
        prompt: Prompt,
        needs: Needs,
        hold: bool,
    },
    Resume {
        which: Index,
        cut: bool,
        hold: bool,
    },
    ReadLease(Index),
    EndLease(Index),
    EvictBytes(u64),
    Clear,
    ShutGate,
    OpenGate,
    Advance(u64),
    Reopen,
}

/// The parts of a save besides attention.
#[derive(Debug, Clone, Copy)]
struct Extras {
    partial: bool,
    logits: bool,
}

fn prompts() -> impl Strategy<Value = Prompt> {
    let namespace = prop_oneof![5 => Just(1), 1 => Just(2)];
    (namespace, 0_u32..3, 1_usize..24, prop::collection::vec(0_u32..2, 0..4)).prop_map(
        |(namespace, stem, cut, tail)| {
            let tokens = [conversation(stem, cut), tail].concat();
            Prompt { namespace, tokens }
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let extras = || (any::<bool>(), any::<bool>()).prop_map(|(partial, logits)| Extras { partial, logits });
    let needs =
        prop_oneof![3 => Just(Needs::ATTENTION), 1 => Just(Needs::ATTENTION_AND_PARTIAL), 1 => Just(Needs::PARTIAL)];
    prop_oneof![
        10 => (prompts(), extras(), prop::bool::weighted(0.8))
            .prop_map(|(prompt, extras, chained)| Step::Save { prompt, extras, chained }),
        4 => (any::<Index>(), extras()).prop_map(|(which, extras)| Step::SaveAgain { which, extras }),
        2 => prompts().prop_map(Step::HoldBase),
        3 => (any::<Index>(), extras()).prop_map(|(which, extras)| Step::SaveOnBase { which, extras }),
        8 => (prompts(), needs, any::<bool>()).prop_map(|(prompt, needs, hold)| Step::Lookup { prompt, needs, hold }),
        2 => (any::<Index>(), any::<bool>(), any::<bool>())
            .prop_map(|(which, cut, hold)| Step::Resume { which, cut, hold }),
        2 => any::<Index>().prop_map(Step::ReadLease),
        4 => any::<Index>().prop_map(Step::EndLease),
        3 => (0_u64..4000).prop_map(Step::EvictBytes),
        1 => Just(Step::Clear),
        1 => Just(Step::ShutGate),
        2 => Just(Step::OpenGate),
        3 => (1_u64..100).prop_map(Step::Advance),
        1 => Just(Step::Reopen),
    ]
}

/// What the cache keeps its rows in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// Files only.
    Disk,
    /// Memory only.
    Ram,
    /// Files, and copies in a small memory tier. Which rows are in memory is not modelled, so evictions are held
    /// against fewer rules.
    HotDisk,
}

impl Setting {
    fn tier(self) -> Tier {
        if self == Self::Ram { Tier::Ram } else { Tier::Disk }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ModelRow {
    namespace: u8,
    tokens: Vec<u32>,
    start: u32,
    parent: Option<Key>,
    parts: BTreeSet<PartKind>,
    hits: u32,
    last_used: u64,
    pending: bool,
}

/// Leading tokens that a row and a prompt have in common.
fn agreement(row: &ModelRow, prompt: &Prompt) -> usize {
    row.tokens.iter().zip(&prompt.tokens).take_while(|(one, two)| one == two).count()
}

impl ModelRow {
    /// Bytes of its payload in memory.
    fn payload(&self) -> u64 {
        let own = &self.tokens[self.start as usize..];
        let part = |kind: &PartKind| match kind {
            PartKind::Attention => own.len() * crate::support::BYTES_PER_TOKEN,
            _ => crate::support::BYTES_PER_TOKEN + 1,
        };
        self.parts.iter().map(part).sum::<usize>() as u64
    }

    /// The least and the most that the cache may set aside for it in a tier.
    fn size_bounds(&self, tier: Tier) -> (u64, u64) {
        let payload = self.payload();
        if tier == Tier::Ram { (payload, payload) } else { (payload + 72, payload + 72 + 1024) }
    }
}

struct Held {
    plan: RestorePlan,
    prompt: Prompt,
    needs: Needs,
}

struct World {
    setting: Setting,
    fs: Arc<dyn Fs>,
    folder: PathBuf,
    quota: u64,
    clock: Arc<PausedClock>,
    gate: Arc<Gate>,
    shut: bool,
    leases: Vec<Held>,
    bases: Vec<(SaveBase, Prompt)>,
    cache: Option<Cache>,
    rows: BTreeMap<Key, ModelRow>,
    /// Every row that was ever there.
    known: BTreeMap<Key, Prompt>,
    expected: CounterSnapshot,
}

impl Drop for World {
    fn drop(&mut self) {
        // A failed check must not leave writers at the gate, for which the cache then waits.
        self.gate.open();
    }
}

impl World {
    fn new(setting: Setting, fs: Arc<dyn Fs>, folder: &Path, quota: u64) -> Self {
        let mut world = Self {
            setting,
            fs,
            folder: folder.to_path_buf(),
            quota,
            clock: Arc::new(PausedClock::new(1_000_000)),
            gate: Arc::default(),
            shut: false,
            leases: Vec::new(),
            bases: Vec::new(),
            cache: None,
            rows: BTreeMap::new(),
            known: BTreeMap::new(),
            expected: CounterSnapshot::default(),
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let quota = self.quota;
        let base = match self.setting {
            Setting::Ram => CacheConfig::in_memory(quota),
            Setting::Disk => CacheConfig { ram_quota: 0, ..CacheConfig::on_disk(&self.folder, quota) },
            Setting::HotDisk => CacheConfig { ram_quota: quota / 3, ..CacheConfig::on_disk(&self.folder, quota) },
        };
        let config = CacheConfig {
            fs: Arc::clone(&self.fs),
            clock: self.clock.clone(),
            observer: Some(self.gate.clone()),
            queue: QUEUE,
            writers: WRITERS,
            ..base
        };
        self.cache = Some(Cache::open(config).unwrap());
        self.expected = CounterSnapshot::default();
    }

    fn cache(&self) -> &Cache {
        self.cache.as_ref().unwrap()
    }

    fn infos(&self) -> BTreeMap<Key, RowInfo> {
        self.cache().rows().into_iter().map(|row| (row.key, row)).collect()
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Save { prompt, extras, chained } => {
                let namespace = namespace(prompt.namespace);
                let base = chained.then(|| self.cache().base_for(&namespace, &prompt.tokens, None)).flatten();
                self.check_base(prompt, base.as_ref().filter(|_| *chained), *chained);
                self.save(prompt, *extras, base.as_ref());
            }
            Step::SaveAgain { which, extras } => {
                if !self.rows.is_empty() {
                    let row = self.rows.values().nth(which.index(self.rows.len())).unwrap();
                    let prompt = Prompt { namespace: row.namespace, tokens: row.tokens.clone() };
                    let above = &row.tokens[..row.start as usize];
                    let base = row.parent.and_then(|_| self.cache().base_for(&namespace(row.namespace), above, None));
                    self.save(&prompt, *extras, base.as_ref());
                }
            }
            Step::HoldBase(prompt) => {
                let base = self.cache().base_for(&namespace(prompt.namespace), &prompt.tokens, None);
                self.check_base(prompt, base.as_ref(), true);
                self.bases.extend(base.map(|base| (base, prompt.clone())));
            }
            Step::SaveOnBase { which, extras } => {
                if !self.bases.is_empty() {
                    let (base, prompt) = self.bases.swap_remove(which.index(self.bases.len()));
                    self.save(&prompt, *extras, Some(&base));
                }
            }
            Step::Lookup { prompt, needs, hold } => self.lookup(prompt, *needs, *hold),
            Step::Resume { which, cut, hold } => self.resume(*which, *cut, *hold),
            Step::ReadLease(which) => {
                if !self.leases.is_empty() {
                    read_all(&self.leases[which.index(self.leases.len())]);
                }
            }
            Step::EndLease(which) => {
                if !self.leases.is_empty() {
                    self.leases.swap_remove(which.index(self.leases.len()));
                }
            }
            Step::EvictBytes(bytes) => self.evict(*bytes, |cache, tier| cache.evict_bytes(*bytes, &[tier])),
            Step::Clear => self.evict(u64::MAX, |cache, _| cache.clear()),
            Step::ShutGate => {
                self.gate.shut();
                self.shut = true;
            }
            Step::OpenGate => self.let_writers_go(),
            Step::Advance(seconds) => self.clock.advance(Duration::from_secs(*seconds)),
            Step::Reopen => self.reopen(),
        }
        self.check();
    }

    fn let_writers_go(&mut self) {
        self.gate.open();
        self.shut = false;
        self.cache().flush();
        for row in self.rows.values_mut() {
            row.pending = false;
        }
    }

    fn reopen(&mut self) {
        self.let_writers_go();
        self.check();
        self.leases.clear();
        self.bases.clear();
        let before = self.infos();
        drop(self.cache.take());
        self.open();
        let tier = self.setting.tier();
        let stays = |info: &RowInfo| tier == Tier::Disk && info.tiers.contains(&tier);
        let expected: BTreeMap<Key, RowInfo> = before
            .into_iter()
            .filter(|(_, info)| stays(info))
            .map(|(key, info)| {
                let ram = if info.tiers.contains(&Tier::Ram) { self.rows[&key].payload() } else { 0 };
                (key, RowInfo { tiers: vec![tier], bytes: info.bytes - ram, ..info })
            })
            .collect();
        let found = self.infos();
        for (key, info) in &found {
            // Rows in memory that build on it are gone.
            let children = expected.values().filter(|row| row.meta.parent == Some(*key)).count();
            assert_eq!(*info, RowInfo { children, ..expected[key].clone() });
        }
        assert_eq!(found.len(), expected.len(), "every published row is there again");
        self.rows.retain(|key, _| expected.contains_key(key));
    }

    /// The rows that a lease, a base or a write holds.
    fn pinned(&self) -> BTreeSet<Key> {
        let leased = self.leases.iter().flat_map(|held| held.plan.rows()).map(poncho_cache::PinnedRow::key);
        let bases = self.bases.iter().map(|(base, _)| base.key());
        let pending = self.rows.iter().filter(|(_, row)| row.pending).map(|(key, _)| *key);
        leased.chain(bases).chain(pending).collect()
    }

    fn chain_of(&self, key: Option<Key>) -> Vec<Key> {
        std::iter::successors(key, |key| self.rows.get(key).and_then(|row| row.parent)).collect()
    }

    fn touch(&mut self, key: Option<Key>, hit: bool) {
        let now = self.clock.unix_seconds();
        for key in self.chain_of(key) {
            let row = self.rows.get_mut(&key).unwrap();
            row.last_used = row.last_used.max(now);
            row.hits += u32::from(hit);
        }
    }

    /// The longest agreement with any stored row, at any token.
    fn common(&self, prompt: &Prompt) -> usize {
        let rows = self.rows.values().filter(|row| row.namespace == prompt.namespace);
        rows.map(|row| agreement(row, prompt)).max().unwrap_or(0)
    }

    /// Where a new row may start: at the longest agreement, if a row that has it pays, or else at the end of the longest
    /// row before it that does. Of several rows with the longest agreement any may be asked.
    fn bases_that_pay(&self, prompt: &Prompt) -> BTreeSet<usize> {
        let common = self.common(prompt);
        let in_namespace = || self.rows.iter().filter(|(_, row)| row.namespace == prompt.namespace);
        let pays = |key: &Key, reach: usize| self.read_in_vain(*key, reach) <= 4 * reach;
        let at_once =
            in_namespace().filter(|(_, row)| agreement(row, prompt) == common).map(|(key, _)| pays(key, common));
        let ends = in_namespace().filter(|(_, row)| agreement(row, prompt) == row.tokens.len());
        let ends = ends.map(|(key, row)| (key, row.tokens.len())).filter(|(key, end)| pays(key, *end));
        let longest_end = ends.map(|(_, end)| end).max().unwrap_or(0);
        at_once.map(|pays| if pays { common } else { longest_end }).chain((common == 0).then_some(0)).collect()
    }

    /// Tokens of the rows that serve the first `reach` tokens of a row, beyond those.
    fn read_in_vain(&self, key: Key, reach: usize) -> usize {
        let (mut end, mut in_vain) = (reach, 0);
        for key in self.chain_of(Some(key)) {
            let row = &self.rows[&key];
            let (start, length) = (row.start as usize, row.tokens.len());
            if end > start {
                in_vain += length - end.min(length);
            }
            end = end.min(start);
        }
        in_vain
    }

    fn check_base(&self, prompt: &Prompt, base: Option<&SaveBase>, asked: bool) {
        if !asked || self.setting == Setting::HotDisk {
            return;
        }
        let start = base.map_or(0, |base| base.start() as usize);
        let allowed = self.bases_that_pay(prompt);
        assert!(allowed.contains(&start), "{start} of {allowed:?}: the base that pays and leaves the fewest tokens");
        if let Some(base) = base {
            let row = &self.rows[&base.key()];
            assert!(
                (row.start as usize) < start && start <= row.tokens.len(),
                "the base holds the token before its start"
            );
        }
    }

    fn save(&mut self, prompt: &Prompt, extras: Extras, base: Option<&SaveBase>) {
        let namespace = namespace(prompt.namespace);
        let mut request = request(namespace, &prompt.tokens, base);
        let has_own = (request.base.map_or(0, SaveBase::start) as usize) < prompt.tokens.len();
        let wanted = |kind: PartKind| match kind {
            PartKind::Attention => has_own,
            PartKind::Partial => extras.partial,
            _ => extras.logits || !has_own && !extras.partial,
        };
        let partial = at_end(&prompt.tokens, PartKind::Partial).into();
        request.parts.push(poncho_cache::PayloadPart { kind: PartKind::Partial, bytes: partial });
        request.parts.retain(|part| wanted(part.kind));
        let new = ModelRow {
            namespace: prompt.namespace,
            tokens: prompt.tokens.clone(),
            start: base.map_or(0, SaveBase::start),
            parent: base.map(SaveBase::key),
            parts: request.parts.iter().map(|part| part.kind).collect(),
            hits: 0,
            last_used: self.clock.unix_seconds(),
            pending: self.setting != Setting::Ram,
        };
        self.save_and_compare(&new, request, base);
    }

    fn save_and_compare(&mut self, new: &ModelRow, request: SaveRequest<'_>, base: Option<&SaveBase>) {
        let key = request.namespace.key(request.tokens);
        let mut pinned = self.pinned();
        pinned.extend(base.map(SaveBase::key));
        let before = self.infos();
        let there = self.rows.get(&key).cloned();
        let completes = |row: &ModelRow| {
            let (adds, durable) = (row.parts != new.parts, before[&key].tiers.contains(&self.setting.tier()));
            let same = (row.parent, row.start) == (new.parent, new.start);
            (adds || !durable) && row.parts.is_subset(&new.parts) && same && !pinned.contains(&key)
        };
        let duplicate = there.as_ref().is_some_and(|row| !completes(row));
        let waiting = self.rows.values().filter(|row| row.pending).count();
        let incoming = |bound: fn((u64, u64)) -> u64| -> u64 {
            let pending = self.rows.values().filter(|row| row.pending);
            pending.map(|row| bound(row.size_bounds(self.setting.tier()))).sum()
        };
        let (least, most) = new.size_bounds(self.setting.tier());
        let grown = there.as_ref().filter(|_| self.setting == Setting::Ram).map_or(0, ModelRow::payload);
        let used: u64 = before.values().map(|info| self.main_bytes(info)).sum();
        let excess = |incoming: u64, size: u64| (used + incoming + size).saturating_sub(self.quota + grown);
        let needed = (excess(incoming(|size| size.0), least), excess(incoming(|size| size.1), most));

        let saved = self.cache().save(request).unwrap();
        assert_eq!(saved.key, key);
        let gone = self.take_gone(&before, Some(&key));
        if there.is_some() {
            pinned.insert(key);
        }
        match saved.outcome {
            SaveOutcome::AlreadyPresent => {
                assert!(duplicate && gone.is_empty());
                self.expected.duplicate_dropped += 1;
                self.touch(Some(key), false);
                return;
            }
            SaveOutcome::Dropped(DropReason::NoRoom) => {
                assert!(gone.is_empty(), "nobody leaves for a save that finds no room anyway");
                let possible = self.simulate(&before, &pinned, None, u64::MAX);
                assert!(
                    self.setting == Setting::HotDisk || possible < needed.1,
                    "there was room: {possible} of {needed:?}"
                );
                self.expected.saves_dropped += 1;
                return;
            }
            SaveOutcome::Dropped(DropReason::QueueFull) => {
                assert!(self.shut && waiting >= QUEUE, "{waiting} were waiting");
                assert!(gone.is_empty(), "nor for one that nobody has time to write");
                self.expected.saves_dropped += 1;
                return;
            }
            // A row of HotDisk is not durable only if its file was evicted; the file of its base may be evicted too.
            SaveOutcome::Dropped(DropReason::ParentGone) if self.setting == Setting::HotDisk => {
                self.expected.saves_dropped += 1;
                return;
            }
            SaveOutcome::Queued => {
                assert!(self.setting != Setting::Ram && waiting < QUEUE + WRITERS);
                self.expected.saves_finish += 1;
            }
            SaveOutcome::Published => {
                assert_eq!(self.setting, Setting::Ram);
                self.expected.saves_finish += 1;
            }
            other => panic!("{other:?} is impossible without a fault"),
        }
        assert!(!duplicate, "a row that is there is not written again");
        self.check_eviction(&before, &gone, &pinned, needed);
        let hits = there.as_ref().map_or(0, |row| row.hits);
        self.rows.insert(key, ModelRow { hits, ..new.clone() });
        self.known.insert(key, Prompt { namespace: new.namespace, tokens: new.tokens.clone() });
        self.touch(Some(key), false);
        if !self.shut {
            self.let_writers_go();
        }
    }

    fn lookup(&mut self, prompt: &Prompt, needs: Needs, hold: bool) {
        let rows = self.rows.values().filter(|row| row.namespace == prompt.namespace);
        let reach = match needs.cut {
            Cut::AnyToken => self.common(prompt),
            Cut::SavedBoundary => rows
                .filter(|row| row.parts.contains(&PartKind::Partial) && prompt.tokens.starts_with(&row.tokens))
                .map(|row| row.tokens.len())
                .max()
                .unwrap_or(0),
        };
        let plan = self.cache().lookup(&namespace(prompt.namespace), &prompt.tokens, needs);
        let Some(plan) = plan else {
            assert_eq!(reach, 0, "a stored prefix was not found");
            self.expected.misses += 1;
            return;
        };
        assert_eq!(plan.reach() as usize, reach);
        let boundary = namespace(prompt.namespace).key(&prompt.tokens[..reach]);
        let ends_on_row = self.rows.get(&boundary);
        assert_eq!(plan.boundary().map(poncho_cache::PinnedRow::key), ends_on_row.map(|_| boundary));
        assert_eq!(plan.has_logits(), ends_on_row.is_some_and(|row| row.parts.contains(&PartKind::Logits)));
        if ends_on_row.is_some() && reach == prompt.tokens.len() {
            self.expected.hits_exact += 1;
        } else {
            self.expected.hits_longest_prefix += 1;
        }
        self.took(Held { plan, prompt: prompt.clone(), needs }, hold);
    }

    fn resume(&mut self, which: Index, cut: bool, hold: bool) {
        if self.known.is_empty() {
            return;
        }
        let (key, named) = self.known.iter().nth(which.index(self.known.len())).unwrap();
        let (key, mut prompt) = (*key, named.clone());
        if cut {
            prompt.tokens.pop();
        } else {
            prompt.tokens.push(77);
        }
        let namespace = namespace(prompt.namespace);
        let plan = self.cache().resume(&namespace, &prompt.tokens, &key, Needs::ATTENTION, Duration::ZERO);
        assert_eq!(plan.is_some(), !cut && self.rows.contains_key(&key));
        if let Some(plan) = plan {
            assert_eq!(plan.boundary().unwrap().key(), key);
            self.expected.hits_resume += 1;
            self.took(Held { plan, prompt, needs: Needs::ATTENTION }, hold);
        }
    }

    fn took(&mut self, held: Held, hold: bool) {
        self.touch(held.plan.rows().last().map(poncho_cache::PinnedRow::key), true);
        read_all(&held);
        if hold {
            self.leases.push(held);
        }
    }

    fn evict(&mut self, bytes: u64, evict: impl FnOnce(&Cache, Tier) -> u64) {
        let (pinned, before) = (self.pinned(), self.infos());
        let memory_before = self.cache().counters().tier_bytes[Tier::Ram.index()];
        let freed = evict(self.cache(), self.setting.tier());
        let gone = self.take_gone(&before, None);
        if self.setting != Setting::HotDisk {
            let expected: u64 = gone.iter().map(|key| before[key].bytes).sum();
            assert_eq!(freed, expected, "what was freed is what left");
        } else if bytes == u64::MAX {
            let memory = self.cache().counters().tier_bytes[Tier::Ram.index()];
            assert!(freed >= memory_before - memory);
        }
        self.check_eviction(&before, &gone, &pinned, (bytes, bytes));
    }

    /// Rows that were there before; the model forgets them.
    fn take_gone(&mut self, before: &BTreeMap<Key, RowInfo>, saved: Option<&Key>) -> Vec<Key> {
        let after = self.infos();
        let gone: Vec<Key> = before.keys().filter(|key| !after.contains_key(key)).copied().collect();
        assert!(after.keys().all(|key| before.contains_key(key) || Some(key) == saved), "rows come from saves only");
        self.rows.retain(|key, _| !gone.contains(key));
        if self.setting != Setting::HotDisk {
            self.expected.evictions += gone.len() as u64;
        }
        gone
    }

    /// Bytes of a row in the tier that saves go to.
    fn main_bytes(&self, info: &RowInfo) -> u64 {
        match self.setting {
            Setting::HotDisk if info.tiers.contains(&Tier::Ram) => info.bytes - self.rows[&info.key].payload(),
            _ => info.bytes,
        }
    }

    /// The rules: nothing that is held, children before parents, oldest first, and no more than was needed.
    fn check_eviction(
        &self,
        before: &BTreeMap<Key, RowInfo>,
        gone: &[Key],
        pinned: &BTreeSet<Key>,
        needed: (u64, u64),
    ) {
        assert!(gone.iter().all(|key| !pinned.contains(key)), "a held row left");
        if self.setting == Setting::HotDisk {
            return;
        }
        let freed = self.simulate(before, pinned, Some(gone), needed.1);
        let possible = self.simulate(before, pinned, None, u64::MAX);
        assert!(freed >= needed.0.min(possible), "{freed} of {needed:?} freed, {possible} possible");
    }

    /// Evicts naively: again and again the first of the rows that nothing builds on. With `gone`, it has to come
    /// out at these rows. Returns the bytes.
    fn simulate(
        &self,
        before: &BTreeMap<Key, RowInfo>,
        pinned: &BTreeSet<Key>,
        gone: Option<&[Key]>,
        needed: u64,
    ) -> u64 {
        let mut rows = before.clone();
        let mut freed = 0;
        let order = |info: &RowInfo| (info.meta.last_used, info.meta.hits, std::cmp::Reverse(info.meta.token_count));
        let left = |key: &Key| gone.is_none_or(|gone| gone.contains(key));
        let in_order: BTreeSet<_> = gone.iter().copied().flatten().map(|key| order(&before[key])).collect();
        let no_equals = gone.is_some_and(|gone| gone.len() == in_order.len());
        loop {
            let leaf = |info: &&RowInfo| !rows.values().any(|row| row.meta.parent == Some(info.key));
            let free = rows.values().filter(|info| !pinned.contains(&info.key)).filter(leaf);
            let Some(first) = free.clone().map(order).min() else { break };
            // Rows of equal age, hits and length leave in any order, but one that sets free an older row, which stayed
            // all the same, must be the last of them.
            let equals = free.filter(|info| order(info) == first && left(&info.key));
            let ends_it = |info: &RowInfo| {
                let mut leaving = info;
                loop {
                    let parent = leaving.meta.parent.filter(|parent| !pinned.contains(parent));
                    let Some(parent) = parent.map(|parent| &rows[&parent]) else { return false };
                    let others = rows.values().any(|row| row.meta.parent == Some(parent.key) && row.key != leaving.key);
                    if others || order(parent) >= first {
                        return false;
                    }
                    if !left(&parent.key) {
                        return true;
                    }
                    leaving = parent;
                }
            };
            let next = equals.min_by_key(|info| ends_it(info));
            let Some(next) = next.cloned() else { break };
            assert!(!no_equals || freed < needed, "more left than was needed: {freed} of {needed}");
            freed += next.bytes;
            rows.remove(&next.key);
        }
        let missed = gone.map_or(0, |gone| gone.iter().filter(|key| rows.contains_key(key)).count());
        assert_eq!(missed, 0, "an older row stayed, or a parent left before its child");
        freed
    }

    /// Checks the invariants that hold after every step.
    fn check(&mut self) {
        let infos = self.infos();
        assert!(infos.keys().eq(self.rows.keys()), "the rows are those of the model");
        for (key, info) in &infos {
            let row = &self.rows[key];
            assert_eq!((info.meta.start, info.meta.token_count as usize), (row.start, row.tokens.len()));
            assert_eq!((info.meta.parent, info.meta.namespace), (row.parent, namespace(row.namespace)));
            assert_eq!((info.meta.hits, info.meta.last_used, info.pending), (row.hits, row.last_used, row.pending));
            assert_eq!(info.parts.iter().copied().collect::<BTreeSet<_>>(), row.parts);
            assert!(row.parent.is_none_or(|parent| infos.contains_key(&parent)), "a parent left before its child");
            assert_eq!(info.children, infos.values().filter(|child| child.meta.parent == Some(*key)).count());
        }
        assert_eq!(self.cache().pinned_rows(), self.pinned().len());
        let counters = self.cache().counters();
        let bytes: u64 = infos.values().map(|info| info.bytes).sum();
        assert_eq!(counters.tier_bytes.iter().sum::<u64>(), bytes, "the tiers' bytes are those of their rows");
        for tier in Tier::ALL {
            assert!(counters.tier_bytes[tier.index()] <= self.cache().config().quota(tier), "{tier} is over its quota");
            let rows = infos.values().filter(|info| info.tiers.contains(&tier)).count();
            assert_eq!(counters.tier_rows[tier.index()], rows as u64);
        }
        let expected = &self.expected;
        let facts = |counters: &CounterSnapshot| {
            [
                counters.hits_exact,
                counters.hits_longest_prefix,
                counters.hits_resume,
                counters.misses,
                counters.saves_dropped,
                counters.duplicate_dropped,
            ]
        };
        assert_eq!(facts(&counters), facts(expected));
        assert_eq!((counters.save_failures, counters.corrupt_files, counters.orphans_dropped), (0, 0, 0));
        if self.setting != Setting::HotDisk {
            assert_eq!(counters.evictions, expected.evictions);
        }
        if !self.shut {
            assert_eq!(counters.saves_finish, expected.saves_finish);
        }
    }
}

/// Loads all that a lease offers, every byte checked.
fn read_all(held: &Held) {
    let Held { plan, prompt, needs } = held;
    if needs.attention {
        assert_eq!(check_plan(plan, &prompt.tokens).unwrap(), plan.reach() as usize);
    }
    if needs.partial {
        let boundary = plan.boundary().unwrap();
        let mut buffer = vec![0; usize::try_from(boundary.length(PartKind::Partial).unwrap()).unwrap()];
        boundary.read(PartKind::Partial, &mut buffer).unwrap();
        assert_eq!(buffer, at_end(&prompt.tokens[..plan.reach() as usize], PartKind::Partial));
    }
}

/// Runs the steps, lets everything end, reopens, and asks for every row that is there. Returns the rows.
fn play(mut world: World, steps: &[Step]) -> usize {
    for step in steps {
        world.run(step);
    }
    world.run(&Step::Reopen);
    let rows: Vec<ModelRow> = world.rows.values().cloned().collect();
    for ModelRow { namespace, tokens, .. } in rows {
        world.run(&Step::Lookup { prompt: Prompt { namespace, tokens }, needs: Needs::ATTENTION, hold: false });
    }
    world.rows.len()
}

/// `PROPTEST_CASES` above its default of 256 makes the run longer by the same factor.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig { cases: cases * default.cases.div_ceil(256), failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config(1_500))]

    #[test]
    fn files_in_memory_agree_with_the_model(quota in 3_500_u64..12_000, steps in prop::collection::vec(steps(), 1..60)) {
        let fs = MemoryFs::new();
        let rows = play(World::new(Setting::Disk, Arc::new(fs.clone()), Path::new("/cache"), quota), &steps);
        prop_assert_eq!(fs.paths().len(), rows, "one file a row, and nothing else");
    }

    #[test]
    fn memory_agrees_with_the_model(quota in 1_500_u64..6_000, steps in prop::collection::vec(steps(), 1..60)) {
        play(World::new(Setting::Ram, Arc::new(MemoryFs::new()), Path::new("/cache"), quota), &steps);
    }

    #[test]
    fn hot_copies_agree_with_the_model(quota in 3_500_u64..12_000, steps in prop::collection::vec(steps(), 1..60)) {
        let fs = MemoryFs::new();
        let rows = play(World::new(Setting::HotDisk, Arc::new(fs.clone()), Path::new("/cache"), quota), &steps);
        prop_assert_eq!(fs.paths().len(), rows, "one file a row, and nothing else");
    }
}

proptest! {
    #![proptest_config(config(16))]

    #[test]
    fn files_on_a_disk_agree_with_the_model(quota in 3_500_u64..12_000, steps in prop::collection::vec(steps(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let rows = play(World::new(Setting::Disk, Arc::new(StdFs), folder.path(), quota), &steps);
        let report = poncho_cache::inspect_folder(folder.path()).unwrap();
        prop_assert_eq!((report.rows.len(), report.findings.len(), report.verify(|_| {}).len()), (rows, 0, 0));
    }
}
