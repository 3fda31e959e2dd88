//! Which models go when another one needs room.
//!
//! Called by the manager; pure. It must never choose a model that is in use.

/// A loaded model that may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) id: String,
    pub(crate) bytes: u64,
    /// Larger is later.
    pub(crate) last_used: u64,
}

/// The models that go so that `needed` bytes become free, the least recently used first; `None` if all of them are not
/// enough, because then none has to go.
pub(crate) fn victims(mut idle: Vec<Idle>, needed: u64) -> Option<Vec<String>> {
    idle.sort_by_key(|model| model.last_used);
    let mut freed: u64 = 0;
    let mut chosen = Vec::new();
    for model in idle {
        if freed >= needed {
            break;
        }
        freed = freed.saturating_add(model.bytes);
        chosen.push(model.id);
    }
    (freed >= needed).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn idle(id: &str, bytes: u64, last_used: u64) -> Idle {
        Idle { id: id.to_owned(), bytes, last_used }
    }

    #[test]
    fn the_least_recently_used_go_first_and_no_more_than_needed() {
        let all = || vec![idle("new", 50, 9), idle("old", 10, 1), idle("middle", 20, 5)];
        assert_eq!(victims(all(), 0), Some(vec![]));
        assert_eq!(victims(all(), 10), Some(vec!["old".to_owned()]));
        assert_eq!(victims(all(), 11), Some(vec!["old".to_owned(), "middle".to_owned()]));
        assert_eq!(victims(all(), 80).map(|all| all.len()), Some(3));
        assert_eq!(victims(all(), 81), None, "nothing is unloaded if that does not free enough");
        assert_eq!(victims(Vec::new(), 1), None);
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_enough_and_each_of_it_needed(
            sizes in prop::collection::vec(0_u64..100, 0..8), needed in 0_u64..400,
        ) {
            let all: Vec<Idle> = sizes.iter().zip(0..).map(|(bytes, at)| idle(&at.to_string(), *bytes, at)).collect();
            let sum = |ids: &[String]| -> u64 {
                ids.iter().map(|id| all.iter().find(|model| model.id == *id).unwrap().bytes).sum()
            };
            match victims(all.clone(), needed) {
                None => prop_assert!(sizes.iter().sum::<u64>() < needed),
                Some(chosen) => {
                    prop_assert!(sum(&chosen) >= needed);
                    if let Some((_, before)) = chosen.split_last() {
                        prop_assert!(sum(before) < needed, "the last one would not have had to go");
                    }
                    let order: Vec<String> = (0..chosen.len()).map(|at| at.to_string()).collect();
                    prop_assert_eq!(chosen, order, "in order of use");
                }
            }
        }
    }
}
