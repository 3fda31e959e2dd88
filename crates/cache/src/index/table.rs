//! The index itself: rows by key, by tokens and by tier, with reservations.
//!
//! One value under the store's mutex; every change of it is one short call without I/O, so a lookup never waits for a
//! disk. What must happen to files afterwards is returned to the caller (`DroppedFile`). It must never hold a row with a
//! broken chain: a row leaves together with all rows that build on it.

use std::collections::HashMap;

use super::journal::Journal;
use super::ledger::TierLedger;
use super::reservation::Reservations;
use super::rows::{FileSpot, NamespaceId, Payload, Row, RowId, payload_bytes};
use super::slots::RowSlots;
use super::trie::{Match, TokenTrie};
use super::user_pins::UserPins;
use crate::format::RowMeta;
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::OwnerId;
use crate::kinds::Tier;

/// A file that is no longer in the index and has to be removed; its key stays reserved until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DroppedFile {
    pub(crate) key: Key,
    pub(crate) tier: Tier,
    pub(crate) bytes: u64,
}

/// A row has no tokens, or the tables are full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoPlace;

struct NamespaceEntry {
    namespace: Namespace,
    trie: TokenTrie<RowId>,
}

/// See the module.
pub(crate) struct Index {
    rows: RowSlots,
    by_key: HashMap<Key, RowId>,
    namespaces: Vec<NamespaceEntry>,
    by_namespace: HashMap<Namespace, NamespaceId>,
    ledgers: [TierLedger; 3],
    pub(crate) reservations: Reservations,
    /// Rows that appeared, got an owner or left, for readers that keep a copy in step.
    pub(crate) journal: Journal,
    /// What people pinned.
    pub(crate) user_pins: UserPins,
    /// Rows with hits or a last use that their files do not have yet.
    dirty: Vec<RowId>,
    /// The latest use of any row since the index was made: the clock may be set back.
    pub(super) latest_use: u64,
}

impl Index {
    pub(crate) fn new(quotas: [u64; 3]) -> Self {
        Self {
            rows: RowSlots::default(),
            by_key: HashMap::new(),
            namespaces: Vec::new(),
            by_namespace: HashMap::new(),
            ledgers: quotas.map(TierLedger::new),
            reservations: Reservations::default(),
            journal: Journal::default(),
            user_pins: UserPins::default(),
            dirty: Vec::new(),
            latest_use: 0,
        }
    }

    /// A row that is in the index or pinned.
    pub(crate) fn row(&self, id: RowId) -> &Row {
        self.rows.get(id)
    }

    pub(super) fn row_mut(&mut self, id: RowId) -> &mut Row {
        self.rows.get_mut(id)
    }

    /// The row of an id that may be out of date. `None` if it has left the index.
    pub(crate) fn live(&self, id: RowId) -> Option<&Row> {
        self.rows.find(id).filter(|row| !row.doomed)
    }

    /// The row of that key, unless it is on its way out.
    pub(crate) fn by_key(&self, key: &Key) -> Option<RowId> {
        self.by_key.get(key).copied()
    }

    /// All rows of the index.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.by_key.values().map(|id| self.row(*id))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn namespaces(&self) -> impl Iterator<Item = Namespace> {
        self.namespaces.iter().map(|entry| entry.namespace)
    }

    #[expect(clippy::expect_used, reason = "namespaces are never removed")]
    fn entry(&self, row: &Row) -> &NamespaceEntry {
        self.namespaces.get(row.namespace.0 as usize).expect("invariant: a row's namespace is in the table")
    }

    /// All tokens of a row, from the first.
    pub(crate) fn tokens_of(&self, id: RowId) -> Vec<u32> {
        let row = self.row(id);
        self.entry(row).trie.tokens_of(row.node)
    }

    /// How the stored rows of a namespace meet these tokens.
    pub(crate) fn match_tokens(&self, namespace: &Namespace, tokens: &[u32]) -> Option<Match<RowId>> {
        self.trie(namespace).map(|trie| trie.lookup(tokens))
    }

    pub(super) fn trie(&self, namespace: &Namespace) -> Option<&TokenTrie<RowId>> {
        let id = self.by_namespace.get(namespace)?;
        self.namespaces.get(id.0 as usize).map(|entry| &entry.trie)
    }

    pub(super) fn ledger(&self, tier: Tier) -> &TierLedger {
        let [ram, ram_file, disk] = &self.ledgers;
        match tier {
            Tier::Ram => ram,
            Tier::RamFile => ram_file,
            Tier::Disk => disk,
        }
    }

    pub(super) fn ledger_mut(&mut self, tier: Tier) -> &mut TierLedger {
        let [ram, ram_file, disk] = &mut self.ledgers;
        match tier {
            Tier::Ram => ram,
            Tier::RamFile => ram_file,
            Tier::Disk => disk,
        }
    }

    /// Enters a row that has no payload yet and is not in the index. The caller gives it a payload (`set_pending`,
    /// `set_ram`, `set_spot`) before it lets go of the lock, and has made sure that the parent holds the tokens before
    /// `meta.start`.
    pub(crate) fn insert(
        &mut self,
        key: Key,
        meta: RowMeta,
        tokens: &[u32],
        owners: &[OwnerId],
        parent: Option<RowId>,
    ) -> Result<RowId, NoPlace> {
        assert!(self.by_key(&key).is_none(), "invariant: a row is entered once");
        assert_eq!(meta.token_count as usize, tokens.len(), "invariant: a row counts its tokens");
        assert_eq!(meta.parent, parent.map(|parent| self.row(parent).key), "invariant: a row names its parent");
        let id = self.rows.next_id().ok_or(NoPlace)?;
        let namespace = self.namespace_id(meta.namespace).ok_or(NoPlace)?;
        let entry = self.namespaces.get_mut(namespace.0 as usize).ok_or(NoPlace)?;
        let node = entry.trie.insert(tokens, id).map_err(|_| NoPlace)?;
        self.rows.add(Row {
            key,
            meta,
            owners: owners.to_vec(),
            namespace,
            node,
            parent,
            children: Vec::new(),
            memory: None,
            in_ram: false,
            pending: None,
            spots: [None, None],
            pins: 0,
            doomed: false,
            dirty: false,
        });
        self.by_key.insert(key, id);
        self.journal.note(key);
        if let Some(parent) = parent {
            self.row_mut(parent).children.push(id);
        }
        Ok(id)
    }

    /// A row that a second save completes is from now on described by that one, as its file will be.
    pub(crate) fn redescribe(&mut self, id: RowId, new: &RowMeta, owners: &[OwnerId]) {
        let meta = &mut self.row_mut(id).meta;
        (meta.reason, meta.mode) = (new.reason, new.mode);
        (meta.context_size, meta.created) = (new.context_size, new.created);
        self.add_owners(id, owners);
    }

    /// Builds a row on another one, which holds the tokens before `start`. Nothing happens to a row that has left.
    pub(crate) fn rebase(&mut self, id: RowId, start: u32, parent: Option<RowId>) {
        let parent_key = parent.map(|parent| self.row(parent).key);
        let row = self.row_mut(id);
        if row.doomed {
            return;
        }
        (row.meta.start, row.meta.parent) = (start, parent_key);
        let old = std::mem::replace(&mut row.parent, parent);
        if let Some(old) = old {
            self.row_mut(old).children.retain(|child| *child != id);
        }
        if let Some(parent) = parent {
            self.row_mut(parent).children.push(id);
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
        let row = self.row_mut(id);
        row.pending = Some(tier);
        row.pins += 1;
        self.ledger_mut(tier).expect_write(bytes);
    }

    fn put_memory(&mut self, id: RowId, payload: Payload) {
        let row = self.row_mut(id);
        let before = row.bytes_in(Tier::Ram);
        row.memory = Some(payload);
        let after = row.bytes_in(Tier::Ram);
        self.ledger_mut(Tier::Ram).resize(before, after);
    }

    /// The write is over, well or not. A row that is in no tier then leaves, with all that build on it.
    #[expect(clippy::expect_used, reason = "bytes set aside for a write would never be given back")]
    pub(crate) fn end_pending(&mut self, id: RowId, bytes: u64) -> Vec<DroppedFile> {
        let row = self.row_mut(id);
        let tier = row.pending.take().expect("invariant: a write that ends was pending");
        if !row.in_ram {
            row.memory = None;
        }
        let (is_stored, key) = (row.is_stored(), row.key);
        self.ledger_mut(tier).end_write(bytes);
        if is_stored {
            // It is read from another tier from now on.
            self.journal.note(key);
        }
        let dropped = if is_stored { Vec::new() } else { self.remove_with_descendants(id) };
        self.unpin(id);
        dropped
    }

    /// Holds a payload in memory as a row of the ram tier.
    pub(crate) fn set_ram(&mut self, id: RowId, payload: Payload) {
        let bytes = payload_bytes(&payload);
        self.put_memory(id, payload);
        let row = self.row_mut(id);
        if row.in_ram || row.doomed {
            return;
        }
        row.in_ram = true;
        let key = row.lru_key(id);
        self.ledger_mut(Tier::Ram).enter(key, bytes);
    }

    /// No longer counts the payload in memory as a row of the ram tier.
    pub(crate) fn leave_ram(&mut self, id: RowId) {
        self.leave_tier(id, Tier::Ram);
    }

    /// The row is in a file of that tier now. Nothing happens to a row that has left.
    #[expect(clippy::expect_used, reason = "memory has no files")]
    pub(crate) fn set_spot(&mut self, id: RowId, tier: Tier, spot: FileSpot) {
        let row = self.row_mut(id);
        if row.doomed {
            return;
        }
        let bytes = spot.file_length;
        let before = row.bytes_in(tier);
        let key = row.lru_key(id);
        let slot = row.spot_mut(tier).expect("invariant: a file is in a file tier");
        if slot.replace(spot).is_some() {
            self.ledger_mut(tier).resize(before, bytes);
        } else {
            self.ledger_mut(tier).enter(key, bytes);
        }
    }

    /// Holds a row against eviction.
    pub(crate) fn pin(&mut self, id: RowId) {
        self.row_mut(id).pins += 1;
    }

    /// Lets go of a row; frees its slot if it left the index meanwhile.
    pub(crate) fn unpin(&mut self, id: RowId) {
        let row = self.row_mut(id);
        row.pins -= 1;
        if row.pins == 0 && row.doomed {
            self.rows.remove(id);
        }
    }

    /// Takes a row and everything that builds on it out of the index, descendants first. The files are the
    /// caller's to remove; a file that is being written or removed already is left out.
    pub(crate) fn remove_with_descendants(&mut self, id: RowId) -> Vec<DroppedFile> {
        let mut order = vec![id];
        let mut next = 0;
        while let Some(current) = order.get(next).copied() {
            next += 1;
            order.extend_from_slice(&self.row(current).children);
        }
        let mut dropped = Vec::new();
        for id in order.into_iter().rev() {
            self.remove_one(id, &mut dropped);
        }
        dropped
    }

    /// A row's file in one tier cannot be used. The row leaves that tier and lives on in others; where there are
    /// none, it leaves with everything that builds on it. `None` if it had left before: the file may be another
    /// row's by now.
    pub(crate) fn lose(&mut self, id: RowId, key: &Key, tier: Tier) -> Option<Vec<DroppedFile>> {
        if self.by_key(key) != Some(id) || !self.row(id).resides_in(tier) {
            return None;
        }
        Some(self.drop_copy(id, tier))
    }

    /// Takes a row out of a tier, and out of the index if it is in no other one.
    pub(super) fn drop_copy(&mut self, id: RowId, tier: Tier) -> Vec<DroppedFile> {
        let mut dropped: Vec<DroppedFile> = self.leave_tier(id, tier).into_iter().collect();
        if self.row(id).is_stored() {
            let key = self.row(id).key;
            self.journal.note(key);
        } else {
            dropped.extend(self.remove_with_descendants(id));
        }
        dropped
    }

    #[expect(clippy::expect_used, reason = "namespaces are never removed")]
    fn remove_one(&mut self, id: RowId, dropped: &mut Vec<DroppedFile>) {
        for tier in Tier::ALL {
            dropped.extend(self.leave_tier(id, tier));
        }
        let row = self.row_mut(id);
        if row.doomed {
            return;
        }
        row.doomed = true;
        let (key, node, namespace, parent, pins) = (row.key, row.node, row.namespace, row.parent, row.pins);
        self.by_key.remove(&key);
        self.journal.note_removal(key);
        let entry = self.namespaces.get_mut(namespace.0 as usize);
        entry.expect("invariant: a row's namespace is in the table").trie.remove(node);
        if let Some(parent) = parent {
            self.row_mut(parent).children.retain(|child| *child != id);
        }
        if pins == 0 {
            self.rows.remove(id);
        }
    }

    /// Takes a row out of one tier. The file, if it is one, is returned for removal.
    fn leave_tier(&mut self, id: RowId, tier: Tier) -> Option<DroppedFile> {
        let row = self.row_mut(id);
        if row.doomed || !row.resides_in(tier) {
            return None;
        }
        let dropped = DroppedFile { key: row.key, tier, bytes: row.bytes_in(tier) };
        let lru_key = row.lru_key(id);
        match row.spot_mut(tier) {
            Some(spot) => *spot = None,
            None => {
                row.in_ram = false;
                if row.pending.is_none() {
                    row.memory = None;
                }
            }
        }
        self.ledger_mut(tier).leave(&lru_key, dropped.bytes);
        (tier != Tier::Ram && self.reservations.begin_removal(dropped.key, tier)).then_some(dropped)
    }

    /// Notes that the file of a row does not have its hits and its last use yet.
    pub(super) fn mark_dirty(&mut self, id: RowId) {
        if !std::mem::replace(&mut self.row_mut(id).dirty, true) {
            self.dirty.push(id);
        }
    }

    /// The rows that were marked since the last call; some may have left.
    pub(super) fn take_marked(&mut self) -> Vec<RowId> {
        std::mem::take(&mut self.dirty)
    }

    /// Keeps a mark for the next call.
    pub(super) fn keep_mark(&mut self, id: RowId) {
        self.dirty.push(id);
    }

    pub(crate) fn used(&self, tier: Tier) -> u64 {
        self.ledger(tier).used()
    }

    pub(crate) fn quota(&self, tier: Tier) -> u64 {
        self.ledger(tier).quota()
    }

    /// Rows in a tier.
    pub(crate) fn rows_in(&self, tier: Tier) -> usize {
        self.ledger(tier).len()
    }

    /// Rows that at least one lease or write holds.
    pub(crate) fn pinned(&self) -> usize {
        self.rows.iter().filter(|row| row.pins > 0).count()
    }

    /// Approximate heap bytes of the index itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_row = |row: &Row| {
            let parts: usize = row.spots.iter().flatten().map(|spot| spot.parts.len() * 32).sum();
            row.children.capacity() * size_of::<RowId>() + row.owners.capacity() * size_of::<OwnerId>() + parts
        };
        let tries: usize = self.namespaces.iter().map(|entry| entry.trie.memory_bytes()).sum();
        let rows = self.rows.heap_bytes() + self.rows.iter().map(of_row).sum::<usize>();
        let keys = self.by_key.capacity() * (size_of::<(Key, RowId)>() + 1);
        tries + rows + keys + self.ledgers.iter().map(TierLedger::heap_bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use poncho_gguf::QuantType;

    use crate::index::Needs;
    use crate::index::rows::PayloadPart;
    use crate::kinds::PartKind;
    use crate::testing::broken_invariant;

    const NAMESPACE: Namespace = Namespace { fingerprint: [1; 32], quant: QuantType::Q4_1, context_hash: [2; 32] };

    fn payload() -> Payload {
        [PayloadPart { kind: PartKind::Attention, bytes: vec![7; 10].into() }].into()
    }

    /// Enters a row of the ram tier with the tokens `0..end`, of which it holds those from `start` on.
    fn add(index: &mut Index, start: u32, end: u32, parent: Option<RowId>) -> RowId {
        let tokens: Vec<u32> = (0..end).collect();
        let parent_key = parent.map(|parent| index.row(parent).key);
        let meta = RowMeta { start, parent: parent_key, ..RowMeta::new(NAMESPACE, end) };
        let id = index.insert(NAMESPACE.key(&tokens), meta, &tokens, &[], parent).unwrap();
        index.set_ram(id, payload());
        id
    }

    #[test]
    fn an_id_that_names_no_row_is_loud() {
        let index = Index::new([100; 3]);
        let complaint = broken_invariant(|| assert!(!index.row(RowId(3)).doomed));
        assert_eq!(complaint, "invariant: a row id names a row");
        assert!(index.live(RowId(3)).is_none(), "an id that may be out of date is asked for differently");
    }

    #[test]
    fn a_write_that_ends_twice_is_loud() {
        let mut index = Index::new([100; 3]);
        let id = add(&mut index, 0, 5, None);
        index.set_pending(id, Tier::Disk, payload(), 10);
        assert_eq!(index.end_pending(id, 10), []);
        let complaint = broken_invariant(|| drop(index.end_pending(id, 10)));
        assert_eq!(complaint, "invariant: a write that ends was pending");
    }

    #[test]
    fn a_pin_that_is_let_go_of_twice_is_loud() {
        let mut index = Index::new([100; 3]);
        let id = add(&mut index, 0, 5, None);
        index.pin(id);
        index.unpin(id);
        assert!(broken_invariant(|| index.unpin(id)).contains("overflow"));
    }

    #[test]
    fn a_chain_with_a_gap_is_loud() {
        let mut index = Index::new([100; 3]);
        let short = add(&mut index, 0, 5, None);
        let child = add(&mut index, 8, 10, Some(short));
        let complaint = broken_invariant(|| assert!(index.chain(child, 10, Needs::ATTENTION).is_none()));
        assert!(complaint.contains("invariant: a parent holds the tokens before its child's start"), "{complaint}");
    }

    #[test]
    fn a_row_that_is_entered_twice_or_miscounts_its_tokens_is_loud() {
        let mut index = Index::new([100; 3]);
        add(&mut index, 0, 5, None);
        assert!(broken_invariant(|| assert_eq!(add(&mut index, 0, 5, None).0, 0)).contains("a row is entered once"));
        let meta = RowMeta::new(NAMESPACE, 7);
        let complaint = broken_invariant(|| assert!(index.insert(NAMESPACE.key(&[1]), meta, &[1], &[], None).is_err()));
        assert!(complaint.contains("a row counts its tokens"), "{complaint}");
    }
}
