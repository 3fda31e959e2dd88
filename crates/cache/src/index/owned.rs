//! Rows by their owners: who has sent all tokens of a row, and what one owner's rows hold for some tokens.
//!
//! Called by the handle for claims, lists and explanations, which must never reveal the rows of one owner to another. A
//! row belongs to every owner that has sent all of its tokens; one that nobody claimed belongs to nobody.

use std::cmp::Reverse;

use super::rows::{Row, RowId};
use super::table::Index;
use super::trie::Match;
use crate::identity::key::{Key, Namespace};
use crate::identity::owner::{MOST_OWNERS, OwnerId, add_owner};

impl Row {
    /// Whether that owner has sent all of its tokens.
    pub(crate) fn is_owned_by(&self, owner: OwnerId) -> bool {
        self.owners.contains(&owner)
    }
}

impl Index {
    /// Notes more owners of a row.
    pub(crate) fn add_owners(&mut self, id: RowId, owners: &[OwnerId]) {
        let row = self.row_mut(id);
        let (key, before) = (row.key, row.owners.len());
        for owner in owners {
            add_owner(&mut row.owners, *owner);
        }
        // A full list replaces its oldest owner: its length says nothing then.
        if before != row.owners.len() || before == MOST_OWNERS {
            self.journal.note(key);
        }
    }

    /// An owner has sent these tokens: every row that holds a beginning of them is its own too.
    pub(crate) fn claim(&mut self, namespace: &Namespace, tokens: &[u32], owner: OwnerId) {
        let Some(matched) = self.match_tokens(namespace, tokens) else { return };
        for (_, id) in matched.boundaries {
            self.add_owners(id, &[owner]);
        }
    }

    /// How stored rows meet these tokens: all rows, or those of one owner.
    pub(crate) fn match_for(
        &self,
        namespace: &Namespace,
        tokens: &[u32],
        owner: Option<OwnerId>,
    ) -> Option<Match<RowId>> {
        let Some(owner) = owner else { return self.match_tokens(namespace, tokens) };
        let trie = self.trie(namespace)?;
        let is_own = |id: RowId| self.row(id).is_owned_by(owner);
        let mut boundaries = trie.lookup(tokens).boundaries;
        boundaries.retain(|(_, id)| is_own(*id));
        let longest = trie.longest_where(tokens, is_own);
        let common = longest.map_or(0, |(common, _)| common);
        Some(Match { common, boundaries, below: longest.map(|(_, id)| id), divergence: None })
    }

    /// Rows that no other row extends, the newest first: all rows, or those of one owner. The order does not depend on
    /// when a row was used, because another owner may have used it.
    pub(crate) fn newest_prompts(&self, namespace: &Namespace, owner: Option<OwnerId>, limit: usize) -> Vec<Key> {
        let Some(trie) = self.trie(namespace) else { return Vec::new() };
        let longest = trie.longest_rows(|id| owner.is_none_or(|owner| self.row(id).is_owned_by(owner)));
        let mut rows: Vec<&Row> = longest.into_iter().map(|id| self.row(id)).collect();
        rows.sort_unstable_by_key(|row| (Reverse(row.meta.created), row.key));
        rows.into_iter().take(limit).map(|row| row.key).collect()
    }

    /// How many leading tokens an owner's rows hold.
    pub(crate) fn owned_reach(&self, namespace: &Namespace, tokens: &[u32], owner: OwnerId) -> usize {
        self.match_for(namespace, tokens, Some(owner)).map_or(0, |matched| matched.common)
    }
}
