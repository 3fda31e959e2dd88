//! Who may write which key in which tier: reservations with an owner and a time limit.
//!
//! The first stage of publishing takes one, the third checks that it is still valid and makes it permanent. Pure bookkeeping
//! under the store's lock; the caller gives the time. It must never touch files.

use std::collections::HashMap;
use std::time::Duration;

use crate::identity::key::Key;
use crate::kinds::Tier;

/// Proof of a reservation. A later reservation of the same key has another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Token(u64);

/// Why a key cannot be reserved now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another writer holds it.
    Conflict,
    /// Its file is being removed.
    Removing,
}

#[derive(Debug)]
enum Holder {
    Writer { token: Token, expires: Duration },
    Remover,
}

/// All reservations.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    held: HashMap<(Key, Tier), Holder>,
    last: u64,
}

impl Reservations {
    /// Stage 1: the right to write `key` in `tier` until `now + ttl`. An expired reservation is taken over.
    pub(crate) fn reserve(&mut self, key: Key, tier: Tier, now: Duration, ttl: Duration) -> Result<Token, Refusal> {
        if self.is_taken(key, tier, now) {
            let removing = matches!(self.held.get(&(key, tier)), Some(Holder::Remover));
            return Err(if removing { Refusal::Removing } else { Refusal::Conflict });
        }
        self.last += 1;
        let token = Token(self.last);
        self.held.insert((key, tier), Holder::Writer { token, expires: now.saturating_add(ttl) });
        Ok(token)
    }

    /// Stage 3: a reservation that is still the caller's stays so until it is released. An expired one is still the caller's
    /// if no other writer took it over. Two writers that both give their file its final name could replace each other's.
    pub(crate) fn confirm(&mut self, key: Key, tier: Tier, token: Token) -> bool {
        let is_held = self.is_held(key, tier, token);
        if is_held {
            self.held.insert((key, tier), Holder::Writer { token, expires: Duration::MAX });
        }
        is_held
    }

    fn is_held(&self, key: Key, tier: Tier, token: Token) -> bool {
        matches!(self.held.get(&(key, tier)), Some(Holder::Writer { token: held, .. }) if *held == token)
    }

    /// Ends a reservation if it is still the caller's.
    pub(crate) fn release(&mut self, key: Key, tier: Tier, token: Token) {
        if self.is_held(key, tier, token) {
            self.held.remove(&(key, tier));
        }
    }

    /// Keeps writers away from a key while its file is removed. False if a writer holds it.
    pub(crate) fn begin_removal(&mut self, key: Key, tier: Tier) -> bool {
        if self.held.contains_key(&(key, tier)) {
            return false;
        }
        self.held.insert((key, tier), Holder::Remover);
        true
    }

    /// The file is gone.
    pub(crate) fn end_removal(&mut self, key: Key, tier: Tier) {
        if matches!(self.held.get(&(key, tier)), Some(Holder::Remover)) {
            self.held.remove(&(key, tier));
        }
    }

    /// Whether any file of the tier is being removed.
    pub(crate) fn is_removing(&self, tier: Tier) -> bool {
        self.held.iter().any(|((_, held), holder)| *held == tier && matches!(holder, Holder::Remover))
    }

    /// Whether the key is being written or removed, however long that takes: its file must not be touched.
    pub(crate) fn is_busy(&self, key: Key, tier: Tier) -> bool {
        self.held.contains_key(&(key, tier))
    }

    /// Whether `reserve` would be refused now.
    pub(crate) fn is_taken(&self, key: Key, tier: Tier, now: Duration) -> bool {
        matches!(self.held.get(&(key, tier)), Some(Holder::Remover)) || self.is_being_written(key, tier, now)
    }

    /// Whether a writer holds the key.
    pub(crate) fn is_being_written(&self, key: Key, tier: Tier, now: Duration) -> bool {
        matches!(self.held.get(&(key, tier)), Some(Holder::Writer { expires, .. }) if now < *expires)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key::from_bytes([1; 32]);
    const TTL: Duration = Duration::from_secs(60);

    #[test]
    fn a_second_writer_of_a_key_is_refused_until_the_first_is_done() {
        let mut reservations = Reservations::default();
        let now = Duration::ZERO;
        let first = reservations.reserve(KEY, Tier::Disk, now, TTL).unwrap();
        assert_eq!(reservations.reserve(KEY, Tier::Disk, now, TTL), Err(Refusal::Conflict));
        assert!(reservations.reserve(KEY, Tier::RamFile, now, TTL).is_ok(), "tiers are apart");
        reservations.release(KEY, Tier::Disk, first);
        assert!(reservations.reserve(KEY, Tier::Disk, now, TTL).is_ok());
    }

    #[test]
    fn an_expired_reservation_is_taken_over_and_the_old_owner_notices() {
        let mut reservations = Reservations::default();
        let slow = reservations.reserve(KEY, Tier::Disk, Duration::ZERO, TTL).unwrap();
        assert!(reservations.is_held(KEY, Tier::Disk, slow));
        let fast = reservations.reserve(KEY, Tier::Disk, TTL, TTL).unwrap();
        assert!(!reservations.is_held(KEY, Tier::Disk, slow));
        reservations.release(KEY, Tier::Disk, slow);
        assert!(reservations.is_held(KEY, Tier::Disk, fast), "the old owner's release must not free the new one's");
    }

    #[test]
    fn a_confirmed_reservation_does_not_expire() {
        let mut reservations = Reservations::default();
        let slow = reservations.reserve(KEY, Tier::Disk, Duration::ZERO, TTL).unwrap();
        assert!(!reservations.is_taken(KEY, Tier::Disk, TTL) && reservations.is_busy(KEY, Tier::Disk));
        assert!(reservations.confirm(KEY, Tier::Disk, slow), "nobody took it over");
        assert!(reservations.is_taken(KEY, Tier::Disk, TTL * 9));
        assert_eq!(reservations.reserve(KEY, Tier::Disk, TTL * 9, TTL), Err(Refusal::Conflict));
        reservations.release(KEY, Tier::Disk, slow);
        assert_eq!(reservations.len(), 0);
        assert!(!reservations.confirm(KEY, Tier::Disk, slow), "it has ended");
    }

    #[test]
    fn removal_and_writing_exclude_each_other() {
        let mut reservations = Reservations::default();
        let writer = reservations.reserve(KEY, Tier::Disk, Duration::ZERO, TTL).unwrap();
        assert!(!reservations.begin_removal(KEY, Tier::Disk));
        reservations.release(KEY, Tier::Disk, writer);
        assert!(reservations.begin_removal(KEY, Tier::Disk));
        assert!(reservations.is_removing(Tier::Disk) && !reservations.is_removing(Tier::RamFile));
        assert_eq!(reservations.reserve(KEY, Tier::Disk, TTL * 9, TTL), Err(Refusal::Removing));
        reservations.end_removal(KEY, Tier::Disk);
        assert_eq!(reservations.len(), 0);
    }
}
