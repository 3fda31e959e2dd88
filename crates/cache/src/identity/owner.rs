//! Owners of rows: the names under which a cache remembers who has sent all tokens of a row.
//!
//! The engine claims rows for the owner of a request; lists, explanations and evictions can be narrowed to one owner. It
//! names an owner by a digest that the caller makes: it must never hold a secret itself.

pub use poncho_kinds::OwnerId;

/// Owners that one row remembers; a new one replaces the oldest.
pub(crate) const MOST_OWNERS: usize = 32;

/// Adds an owner to the bounded list of a row.
pub(crate) fn add_owner(owners: &mut Vec<OwnerId>, owner: OwnerId) {
    if owners.contains(&owner) {
        return;
    }
    if owners.len() >= MOST_OWNERS {
        owners.remove(0);
    }
    owners.push(owner);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_remembers_an_owner_once_and_a_bounded_number_of_them() {
        let owner = |number: u8| OwnerId::from_bytes([number; 16]);
        let mut owners = Vec::new();
        for number in 0..40 {
            add_owner(&mut owners, owner(number));
            add_owner(&mut owners, owner(number));
        }
        assert_eq!(owners.len(), MOST_OWNERS);
        assert!(owners.contains(&owner(39)) && !owners.contains(&owner(7)));
    }
}
