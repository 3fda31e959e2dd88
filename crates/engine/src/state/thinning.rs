//! Which saved boundaries of one conversation to give up when there are too many of them.
//!
//! Partial states (windows, recurrent states) cannot be cut, so a conversation is resumable only where one was saved.
//! The next prompt most often parts from this one near its end, so the newest boundaries stay dense and older ones thin
//! out geometrically: whatever the point where a prompt parts, the boundary before it is not much further from the end.
//! Pure; called by the saving side. It must never give up the newest boundary.

/// The boundaries to give up, ascending, so that at most `budget` remain.
///
/// `boundaries` are the token counts of the saved states, ascending. The first one (the end of the system prompt, shared
/// with other conversations) and the last one stay while the budget allows two; with a budget of one the last stays.
#[must_use]
pub fn thin(boundaries: &[usize], budget: usize) -> Vec<usize> {
    let mut kept = boundaries.to_vec();
    let mut dropped = Vec::with_capacity(kept.len().saturating_sub(budget));
    while kept.len() > budget {
        let victim = if budget >= 2 { least_missed(&kept) } else { 0 };
        if kept.get(victim).is_none() {
            break;
        }
        dropped.push(kept.remove(victim));
    }
    dropped.sort_unstable();
    dropped
}

/// Index of the inner boundary that leaves the smallest gap in proportion to the gap's distance from the end; the
/// oldest among equals. The last but one leaves the largest possible, so the newest are the last to go.
fn least_missed(kept: &[usize]) -> usize {
    let end = kept.last().copied().unwrap_or(0);
    let mut least: Option<(usize, u128, u128)> = None;
    for (index, triple) in (1..).zip(kept.windows(3)) {
        let &[before, _, after] = triple else { continue };
        let (gap, distance) = (widen(after.saturating_sub(before)), widen(end.saturating_sub(before)));
        // Fractions are compared crosswise, so that the choice is exact on every machine.
        if least.is_none_or(|(_, least_gap, least_distance)| gap * least_distance < least_gap * distance) {
            least = Some((index, gap, distance));
        }
    }
    least.map_or(0, |(index, _, _)| index)
}

/// Twice as wide, so that products fit.
const fn widen(value: usize) -> u128 {
    value as u128
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keep(boundaries: &[usize], budget: usize) -> Vec<usize> {
        let dropped = thin(boundaries, budget);
        boundaries.iter().copied().filter(|boundary| !dropped.contains(boundary)).collect()
    }

    #[test]
    fn within_the_budget_nothing_is_given_up() {
        assert_eq!(thin(&[10, 20, 30], 3), Vec::<usize>::new());
        assert_eq!(thin(&[], 0), Vec::<usize>::new());
    }

    #[test]
    fn the_smallest_budgets_keep_what_matters_most() {
        assert_eq!(keep(&[10, 20, 30, 40], 2), [10, 40]);
        assert_eq!(keep(&[10, 20, 30, 40], 1), [40]);
        assert_eq!(keep(&[10, 20, 30, 40], 0), Vec::<usize>::new());
    }

    #[test]
    fn equal_steps_thin_out_towards_the_past() {
        let boundaries: Vec<usize> = (1..=64).map(|turn| turn * 100).collect();
        let kept = keep(&boundaries, 8);
        assert_eq!(kept[0], 100);
        assert_eq!(kept[5..], [6200, 6300, 6400], "the newest are dense");
        let gaps: Vec<usize> = kept.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.is_sorted_by(|older, newer| older >= newer), "{kept:?}");
    }

    #[test]
    fn a_conversation_thinned_at_every_turn_stays_geometric() {
        let mut kept = Vec::new();
        for turn in 1..=500 {
            kept.push(turn * 100);
            kept = keep(&kept, 12);
            if turn < 12 {
                continue;
            }
            // A prompt that parts just before a kept boundary falls back to the one before it.
            let end = turn * 100;
            for pair in kept.windows(2) {
                let (fallback, parted) = (end - pair[0], end - pair[1]);
                assert!(fallback <= 4 * parted + 100, "turn {turn}: {kept:?}");
            }
        }
        assert_eq!(kept[0], 100);
    }

    proptest! {
        #[test]
        fn it_keeps_the_budget_the_ends_and_its_word(
            boundaries in prop::collection::btree_set(1_usize..100_000, 0..60), budget in 0_usize..20
        ) {
            let boundaries: Vec<usize> = boundaries.into_iter().collect();
            let kept = keep(&boundaries, budget);
            prop_assert_eq!(kept.len(), boundaries.len().min(budget));
            prop_assert!(thin(&boundaries, budget).is_sorted());
            if budget >= 1 {
                prop_assert_eq!(kept.last(), boundaries.last());
            }
            if budget >= 2 {
                prop_assert_eq!(kept.first(), boundaries.first());
            }
            if budget >= 3 && boundaries.len() >= 3 {
                prop_assert!(kept.contains(&boundaries[boundaries.len() - 2]), "the newest two stay");
            }
            prop_assert_eq!(thin(&kept, budget), Vec::<usize>::new(), "a second time changes nothing");
            if budget > 2 {
                prop_assert_eq!(keep(&kept, budget - 1), keep(&boundaries, budget - 1), "in steps or at once");
            }
        }

        #[test]
        fn even_the_largest_numbers_are_compared(low in 0_usize..5, budget in 0_usize..4) {
            let boundaries = [low, usize::MAX / 2, usize::MAX - 1, usize::MAX];
            prop_assert_eq!(keep(&boundaries, budget).len(), budget);
        }
    }
}
