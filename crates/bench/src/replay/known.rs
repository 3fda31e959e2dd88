//! A perfect prefix cache: every prompt that was sent before.
//!
//! Used by the replay to count new tokens. Pure arithmetic on tokens; it never asks the server.

/// The prompts so far.
#[derive(Debug, Default)]
pub(crate) struct Known {
    prompts: Vec<Vec<u32>>,
}

impl Known {
    /// How many leading tokens of this prompt were sent before.
    ///
    /// Only prompts count. A reply's last token is drawn and not computed, so a reply of one token adds nothing to what
    /// could be known; longer replies are the model's own and the next prompt holds the recorded ones instead.
    pub(crate) fn common(&self, prompt: &[u32]) -> usize {
        let agree = |known: &Vec<u32>| known.iter().zip(prompt).take_while(|(one, other)| one == other).count();
        self.prompts.iter().map(agree).max().unwrap_or(0)
    }

    /// The prompt was sent.
    pub(crate) fn add(&mut self, prompt: &[u32]) {
        self.prompts.push(prompt.to_vec());
    }
}

/// Tokens computed by tokens that had to be. Where nothing was new, a token computed counts as if one had been.
pub(crate) fn ratio(prefilled: usize, new: usize) -> f64 {
    prefilled.max(usize::from(new == 0)) as f64 / new.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_one_when_nothing_was_read_again() {
        assert_eq!([ratio(0, 0), ratio(1, 0), ratio(5, 0)], [1.0, 1.0, 5.0]);
        assert_eq!([ratio(10, 10), ratio(15, 10), ratio(5, 10)], [1.0, 1.5, 0.5]);
    }

    #[test]
    fn the_longest_prefix_of_any_earlier_prompt_counts() {
        let mut known = Known::default();
        assert_eq!(known.common(&[1, 2, 3]), 0, "nothing was sent yet");
        known.add(&[1, 2, 3, 4]);
        known.add(&[1, 2, 9]);
        assert_eq!(known.common(&[1, 2, 3, 5]), 3, "not only the last prompt counts");
        assert_eq!(known.common(&[1, 2, 9, 9, 9]), 3);
        assert_eq!(known.common(&[1, 2, 3, 4]), 4, "a prompt sent twice is not new");
        assert_eq!(known.common(&[1, 2]), 2, "a shorter one neither");
        assert_eq!(known.common(&[2, 3, 4]), 0, "the middle of a prompt is not a prefix");
        assert_eq!(known.common(&[]), 0);
    }
}
