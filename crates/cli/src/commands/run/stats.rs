//! The token counts of a conversation.
//!
//! The chat adds the facts of every reply; `/stats` prints the sums.

use super::reply::Facts;

/// Sums over the replies of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stats {
    replies: u64,
    cached: u64,
    new: u64,
    written: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, facts: &Facts) {
        self.replies += 1;
        self.cached = self.cached.saturating_add(facts.cached_tokens);
        self.new = self.new.saturating_add(facts.new_tokens);
        self.written = self.written.saturating_add(facts.reply_tokens);
    }

    /// The sums in one line.
    pub(crate) fn line(&self) -> String {
        let Self { replies, cached, new, written } = self;
        let read = cached.saturating_add(*new);
        let share = if read == 0 { 0.0 } else { *cached as f64 * 100.0 / read as f64 };
        format!("{replies} replies, {written} tokens generated; {cached} of {read} prompt tokens cached ({share:.0} %)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_summed() {
        let mut stats = Stats::default();
        assert_eq!(stats.line(), "0 replies, 0 tokens generated; 0 of 0 prompt tokens cached (0 %)");
        let facts = Facts { cached_tokens: 30, new_tokens: 10, reply_tokens: 5, ..Facts::default() };
        stats.add(&facts);
        stats.add(&Facts { cached_tokens: 0, ..facts });
        assert_eq!(stats.line(), "2 replies, 10 tokens generated; 30 of 50 prompt tokens cached (60 %)");
    }
}
