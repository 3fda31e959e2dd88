//! The grid of cold-exact requests: the positions at which their states may be saved and resumed.
//!
//! Used by the planner, by restores and by saves. A chunk between two boundaries is computed in one decode call of its
//! own; code that uses the grid must never split one.

use std::num::NonZeroUsize;

/// The number of positions between two boundaries at which exact states are saved and resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid(pub(crate) NonZeroUsize);

impl Grid {
    /// The last boundary at or before a position.
    pub(crate) fn floor(self, position: usize) -> usize {
        position - position % self.0
    }

    /// The length of the prefix of a prompt that can be resumed from a state that holds its first `common` tokens, all
    /// computed on the grid: a boundary before the last token, because the logits of that token are needed.
    pub(crate) fn usable(self, common: usize, prompt: usize) -> usize {
        self.floor(common.min(prompt.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_taken_up_at_boundaries_short_of_its_end() {
        let grid = Grid(NonZeroUsize::new(8).unwrap());
        assert_eq!([0, 7, 8, 9, 16].map(|position| grid.floor(position)), [0, 0, 8, 8, 16]);
        assert_eq!(grid.usable(20, 100), 16);
        assert_eq!(grid.usable(16, 16), 8, "the last chunk is computed again: its logits are wanted");
        assert_eq!(grid.usable(16, 17), 16);
        assert_eq!(grid.usable(5, 0), 0);
    }
}
