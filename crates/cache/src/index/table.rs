//! The index: every row in memory, by key, by tokens and by age, with reservations and byte counts.
//!
//! One value under the store's mutex; every change of it is one short call without I/O, so a lookup never
//! waits for a disk. What must happen to files afterwards is returned to the caller (`Gone`). It must never
//! hold a row whose chain is broken: a row leaves together with all rows that build on it.

use std::collections::{BTreeSet, HashMap};

use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::index::reservation::Reservations;
use crate::index::rows::{FileSpot, LruKey, NamespaceId, Payload, Row, RowId, payload_bytes};
use crate::index::trie::{Match, TokenTrie};
use crate::kinds::{FingerprintMode, SaveReason, Tier};

/// A file that is no longer in the index and has to be removed; its key stays reserved until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) key: Key,
    pub(crate) tier: Tier,
    pub(crate) bytes: u64,
}

/// What a new row is, without its payload.
pub(crate) struct NewRow<'a> {
    pub(crate) key: Key,
    pub(crate) namespace: Namespace,
    pub(crate) tokens: &'a [u32],
    pub(crate) start: u32,
    pub(crate) parent: Option<RowId>,
    pub(crate) version: u8,
    pub(crate) reason: SaveReason,
    pub(crate) flags: u16,
    pub(crate) mode: FingerprintMode,
    pub(crate) context_size: u32,
    pub(crate) created: u64,
    pub(crate) last_used: u64,
    pub(crate) hits: u32,
    pub(crate) owners: &'a [OwnerId],
}

/// Why a row cannot be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InsertRefusal {
    /// A row with this key is there.
    Present(RowId),
    /// The row has no tokens, or the table is full.
    Impossible,
}

struct NamespaceEntry {
    namespace: Namespace,
    trie: TokenTrie<RowId>,
}

/// See the module.
pub(crate) struct Index {
    rows: Vec<Option<Row>>,
    free: Vec<RowId>,
    by_key: HashMap<Key, RowId>,
    namespaces: Vec<NamespaceEntry>,
    by_namespace: HashMap<Namespace, NamespaceId>,
    pub(super) lru: [BTreeSet<LruKey>; 3],
    used: [u64; 3],
    /// Bytes of queued and running writes, so that they find room when they are done.
    incoming: [u64; 3],
    quotas: [u64; 3],
    pub(crate) reservations: Reservations,
    pub(super) dirty: Vec<RowId>,
}

impl Index {
    pub(crate) fn new(quotas: [u64; 3]) -> Self {
        Self {
            rows: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            namespaces: Vec::new(),
            by_namespace: HashMap::new(),
            lru: Default::default(),
            used: [0; 3],
            incoming: [0; 3],
            quotas,
            reservations: Reservations::default(),
            dirty: Vec::new(),
        }
    }

    pub(crate) fn row(&self, id: RowId) -> Option<&Row> {
        self.rows.get(id.0 as usize).and_then(Option::as_ref)
    }

    pub(super) fn row_mut(&mut self, id: RowId) -> Option<&mut Row> {
        self.rows.get_mut(id.0 as usize).and_then(Option::as_mut)
    }

    /// The row of that key, unless it is on its way out.
    pub(crate) fn by_key(&self, key: &Key) -> Option<RowId> {
        self.by_key.get(key).copied()
    }

    /// All rows of the index.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (RowId, &Row)> {
        self.by_key.values().filter_map(|id| self.row(*id).map(|row| (*id, row)))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn namespace_of(&self, row: &Row) -> Option<Namespace> {
        self.namespaces.get(row.namespace.0 as usize).map(|entry| entry.namespace)
    }

    pub(crate) fn namespaces(&self) -> impl Iterator<Item = Namespace> {
        self.namespaces.iter().map(|entry| entry.namespace)
    }

    /// All tokens of a row, from the first.
    pub(crate) fn tokens_of(&self, id: RowId) -> Option<Vec<u32>> {
        let row = self.row(id)?;
        Some(self.namespaces.get(row.namespace.0 as usize)?.trie.tokens_of(row.node))
    }

    /// How the stored rows of a namespace meet these tokens.
    pub(crate) fn match_tokens(&self, namespace: &Namespace, tokens: &[u32]) -> Option<Match<RowId>> {
        self.trie(namespace).map(|trie| trie.lookup(tokens))
    }

    pub(super) fn trie(&self, namespace: &Namespace) -> Option<&TokenTrie<RowId>> {
        let id = self.by_namespace.get(namespace)?;
        self.namespaces.get(id.0 as usize).map(|entry| &entry.trie)
    }

    /// Enters a row that has no payload yet. The caller gives it one (`set_pending`, `set_ram`, `set_spot`)
    /// before it lets go of the lock, and has made sure that the parent holds the tokens before `start`.
    pub(crate) fn insert(&mut self, new: &NewRow<'_>) -> Result<RowId, InsertRefusal> {
        if let Some(id) = self.by_key.get(&new.key) {
            return Err(InsertRefusal::Present(*id));
        }
        let token_count = u32::try_from(new.tokens.len()).map_err(|_| InsertRefusal::Impossible)?;
        let id = match self.free.last() {
            Some(id) => *id,
            None => RowId(u32::try_from(self.rows.len()).map_err(|_| InsertRefusal::Impossible)?),
        };
        let namespace = self.namespace_id(new.namespace).ok_or(InsertRefusal::Impossible)?;
        let entry = self.namespaces.get_mut(namespace.0 as usize).ok_or(InsertRefusal::Impossible)?;
        let node = entry.trie.insert(new.tokens, id).map_err(|_| InsertRefusal::Impossible)?;
        let row = Row {
            key: new.key,
            namespace,
            node,
            start: new.start,
            token_count,
            parent: new.parent,
            children: Vec::new(),
            version: new.version,
            reason: new.reason,
            flags: new.flags,
            mode: new.mode,
            context_size: new.context_size,
            created: new.created,
            last_used: new.last_used,
            hits: new.hits,
            memory: None,
            in_ram: false,
            pending: None,
            spots: [None, None],
            pins: 0,
            doomed: false,
            dirty: false,
            owners: new.owners.to_vec(),
        };
        if self.free.pop().is_some() {
            if let Some(slot) = self.rows.get_mut(id.0 as usize) {
                *slot = Some(row);
            }
        } else {
            self.rows.push(Some(row));
        }
        self.by_key.insert(new.key, id);
        if let Some(parent) = new.parent.and_then(|parent| self.row_mut(parent)) {
            parent.children.push(id);
        }
        Ok(id)
    }

    /// A row that a second save completes is from now on described by that one, as its file will be.
    pub(crate) fn redescribe(&mut self, id: RowId, new: &NewRow<'_>) {
        let Some(row) = self.row_mut(id) else { return };
        (row.reason, row.mode, row.context_size, row.created) = (new.reason, new.mode, new.context_size, new.created);
        self.add_owners(id, new.owners);
    }

    /// Hangs a row on another one, from which it takes the tokens before `start`.
    pub(crate) fn rehang(&mut self, id: RowId, start: u32, parent: Option<RowId>) {
        let Some(row) = self.row_mut(id).filter(|row| !row.doomed) else { return };
        row.start = start;
        let old = std::mem::replace(&mut row.parent, parent);
        if let Some(old) = old.and_then(|old| self.row_mut(old)) {
            old.children.retain(|child| *child != id);
        }
        if let Some(parent) = parent.and_then(|parent| self.row_mut(parent)) {
            parent.children.push(id);
        }
    }

    fn namespace_id(&mut self, namespace: Namespace) -> Option<NamespaceId> {
        if let Some(id) = self.by_namespace.get(&namespace) {
            return Some(*id);
        }
        let id = NamespaceId(u32::try_from(self.namespaces.len()).ok()?);
        self.namespaces.push(NamespaceEntry { namespace, trie: TokenTrie::new() });
        self.by_namespace.insert(namespace, id);
        Some(id)
    }

    /// The payload waits in memory for a write of `bytes` to `tier`. The row is pinned until `end_pending`.
    pub(crate) fn set_pending(&mut self, id: RowId, tier: Tier, payload: Payload, bytes: u64) {
        self.put_memory(id, payload);
        if let Some(row) = self.row_mut(id) {
            row.pending = Some(tier);
            row.pins += 1;
        }
        add(&mut self.incoming, tier, bytes);
    }

    fn put_memory(&mut self, id: RowId, payload: Payload) {
        let Some(row) = self.row_mut(id) else { return };
        let before = row.bytes_in(Tier::Ram);
        row.memory = Some(payload);
        let after = row.bytes_in(Tier::Ram);
        subtract(&mut self.used, Tier::Ram, before);
        add(&mut self.used, Tier::Ram, after);
    }

    /// The write is over, well or not. A row that is in no tier then leaves, with all that build on it.
    pub(crate) fn end_pending(&mut self, id: RowId, bytes: u64) -> Vec<Gone> {
        let Some(row) = self.row_mut(id) else { return Vec::new() };
        if let Some(tier) = row.pending.take() {
            if !row.in_ram {
                row.memory = None;
            }
            subtract(&mut self.incoming, tier, bytes);
        }
        let stored = self.row(id).is_some_and(Row::is_stored);
        let gone = if stored { Vec::new() } else { self.remove_with_descendants(id) };
        self.unpin(id);
        gone
    }

    /// Counts the payload in memory as a row of the ram tier, if it has one.
    pub(crate) fn set_ram(&mut self, id: RowId, payload: Option<Payload>) {
        if let Some(payload) = payload {
            self.put_memory(id, payload);
        }
        let Some(row) = self.row_mut(id) else { return };
        let Some(bytes) = row.memory.as_ref().map(|payload| payload_bytes(payload)) else { return };
        if row.in_ram || row.doomed {
            return;
        }
        row.in_ram = true;
        let key = row.lru_key(id);
        self.enter(Tier::Ram, key, bytes);
    }

    /// No longer counts the payload in memory as a row of the ram tier.
    pub(crate) fn leave_ram(&mut self, id: RowId) {
        self.leave_tier(id, Tier::Ram);
    }

    /// The row is in a file of that tier now.
    pub(crate) fn set_spot(&mut self, id: RowId, tier: Tier, spot: FileSpot) {
        let Some(row) = self.row_mut(id).filter(|row| !row.doomed) else { return };
        let bytes = spot.file_length;
        let before = row.bytes_in(tier);
        let key = row.lru_key(id);
        let Some(slot) = row.spot_mut(tier) else { return };
        let replaced = slot.replace(spot).is_some();
        if replaced {
            subtract(&mut self.used, tier, before);
            add(&mut self.used, tier, bytes);
        } else {
            self.enter(tier, key, bytes);
        }
    }

    fn enter(&mut self, tier: Tier, key: LruKey, bytes: u64) {
        if let Some(lru) = self.lru.get_mut(tier.index()) {
            lru.insert(key);
        }
        add(&mut self.used, tier, bytes);
    }

    /// Holds a row against eviction.
    pub(crate) fn pin(&mut self, id: RowId) {
        if let Some(row) = self.row_mut(id) {
            row.pins += 1;
        }
    }

    /// Lets go of a row; frees its slot if it left the index meanwhile.
    pub(crate) fn unpin(&mut self, id: RowId) {
        let Some(row) = self.row_mut(id) else { return };
        row.pins = row.pins.saturating_sub(1);
        if row.pins == 0 && row.doomed {
            self.free_slot(id);
        }
    }

    fn free_slot(&mut self, id: RowId) {
        if let Some(slot) = self.rows.get_mut(id.0 as usize)
            && slot.take().is_some()
        {
            self.free.push(id);
        }
    }

    /// Takes a row and everything that builds on it out of the index, descendants first. The files are the
    /// caller's to remove; a file that somebody writes or removes already is left out.
    pub(crate) fn remove_with_descendants(&mut self, id: RowId) -> Vec<Gone> {
        let mut order = vec![id];
        let mut next = 0;
        while let Some(current) = order.get(next).copied() {
            next += 1;
            order.extend(self.row(current).map(|row| row.children.clone()).unwrap_or_default());
        }
        let mut gone = Vec::new();
        for id in order.into_iter().rev() {
            self.remove_one(id, &mut gone);
        }
        gone
    }

    /// A row's file in one tier cannot be used. The row leaves that tier and lives on in others; where there are
    /// none, it leaves with everything that builds on it. `None` if it had left before: the file may be another
    /// row's by now.
    pub(crate) fn lose(&mut self, id: RowId, key: &Key, tier: Tier) -> Option<Vec<Gone>> {
        if self.by_key(key) != Some(id) || !self.row(id).is_some_and(|row| row.resides_in(tier)) {
            return None;
        }
        let mut gone: Vec<Gone> = self.leave_tier(id, tier).into_iter().collect();
        if !self.row(id).is_some_and(Row::is_stored) {
            gone.extend(self.remove_with_descendants(id));
        }
        Some(gone)
    }

    fn remove_one(&mut self, id: RowId, gone: &mut Vec<Gone>) {
        for tier in Tier::ALL {
            gone.extend(self.leave_tier(id, tier));
        }
        let Some(row) = self.row_mut(id).filter(|row| !row.doomed) else { return };
        row.doomed = true;
        let (key, node, namespace, parent, pins) = (row.key, row.node, row.namespace, row.parent, row.pins);
        self.by_key.remove(&key);
        if let Some(entry) = self.namespaces.get_mut(namespace.0 as usize) {
            entry.trie.remove(node);
        }
        if let Some(parent) = parent.and_then(|parent| self.row_mut(parent)) {
            parent.children.retain(|child| *child != id);
        }
        if pins == 0 {
            self.free_slot(id);
        }
    }

    /// Takes a row out of one tier. The file, if it is one, is returned for removal.
    pub(super) fn leave_tier(&mut self, id: RowId, tier: Tier) -> Option<Gone> {
        let row = self.row_mut(id).filter(|row| !row.doomed && row.resides_in(tier))?;
        let gone = Gone { key: row.key, tier, bytes: row.bytes_in(tier) };
        let lru_key = row.lru_key(id);
        if tier == Tier::Ram {
            row.in_ram = false;
            if row.pending.is_none() {
                row.memory = None;
            }
        } else if let Some(slot) = row.spot_mut(tier) {
            *slot = None;
        }
        if let Some(lru) = self.lru.get_mut(tier.index()) {
            lru.remove(&lru_key);
        }
        subtract(&mut self.used, tier, gone.bytes);
        (tier != Tier::Ram && self.reservations.begin_removal(gone.key, tier)).then_some(gone)
    }

    pub(crate) fn used(&self, tier: Tier) -> u64 {
        self.used.get(tier.index()).copied().unwrap_or(0)
    }

    pub(crate) fn quota(&self, tier: Tier) -> u64 {
        self.quotas.get(tier.index()).copied().unwrap_or(0)
    }

    pub(super) fn incoming(&self, tier: Tier) -> u64 {
        self.incoming.get(tier.index()).copied().unwrap_or(0)
    }

    /// Rows in a tier.
    pub(crate) fn rows_in(&self, tier: Tier) -> usize {
        self.lru.get(tier.index()).map_or(0, BTreeSet::len)
    }

    /// Rows that at least one lease or write holds.
    pub(crate) fn pinned(&self) -> usize {
        self.rows.iter().flatten().filter(|row| row.pins > 0).count()
    }

    /// Approximate heap bytes of the index itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tries: usize = self.namespaces.iter().map(|entry| entry.trie.memory_bytes()).sum();
        let rows = self.rows.capacity() * size_of::<Option<Row>>()
            + self
                .rows
                .iter()
                .flatten()
                .map(|row| {
                    row.children.capacity() * size_of::<RowId>()
                        + row.owners.capacity() * size_of::<OwnerId>()
                        + row.spots.iter().flatten().map(|spot| spot.parts.len() * 32).sum::<usize>()
                })
                .sum::<usize>();
        let keys = self.by_key.capacity() * (size_of::<(Key, RowId)>() + 1);
        let lru: usize = self.lru.iter().map(|lru| lru.len() * size_of::<LruKey>() * 3 / 2).sum();
        tries + rows + keys + lru
    }
}

fn add(counts: &mut [u64; 3], tier: Tier, bytes: u64) {
    if let Some(count) = counts.get_mut(tier.index()) {
        *count = count.saturating_add(bytes);
    }
}

fn subtract(counts: &mut [u64; 3], tier: Tier, bytes: u64) {
    if let Some(count) = counts.get_mut(tier.index()) {
        *count = count.saturating_sub(bytes);
    }
}
