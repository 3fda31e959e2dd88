//! Stop sequences, found across the borders of tokens.
//!
//! The worker pushes the text of each token and sends on what comes out. The reply ends at the first byte at which any
//! stop sequence is complete; if several end there, the longest counts, so that none of it is shown. Held back is
//! exactly the longest end of the text that could still become a stop sequence. It must never emit a part of a match.

use crate::reply::pattern::Pattern;

/// Watches one reply for its stop sequences.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// What was emitted by the last push, then what is held back.
    buffer: String,
    emitted: usize,
    matched: Option<usize>,
}

#[derive(Debug, Clone)]
struct Stop {
    /// Its place in the request's list.
    index: usize,
    pattern: Pattern<u8>,
    progress: usize,
}

/// What a push brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopOutcome<'a> {
    /// Text that belongs to the reply and can be sent now.
    pub emit: &'a str,
    /// The stop sequence that is complete, by its place in the request's list. Once set, nothing more is emitted.
    pub matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher for one reply. Empty stop sequences are ignored.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        let prepared = stops.iter().enumerate().filter_map(|(index, stop)| {
            let pattern = Pattern::new(stop.as_bytes())?;
            Some(Stop { index, pattern, progress: 0 })
        });
        Self { stops: prepared.collect(), buffer: String::new(), emitted: 0, matched: None }
    }

    /// Takes more text of the reply.
    pub fn push(&mut self, text: &str) -> StopOutcome<'_> {
        self.buffer.drain(..self.emitted);
        self.emitted = 0;
        if self.matched.is_some() {
            return StopOutcome { emit: "", matched: self.matched };
        }
        let mut end = self.buffer.len();
        self.buffer.push_str(text);
        for byte in text.bytes() {
            end += 1;
            if let Some((index, len)) = self.advance(byte) {
                self.matched = Some(index);
                // The match is held back whole, or lies in this text: it starts inside the buffer.
                self.buffer.truncate(end.saturating_sub(len));
                self.emitted = self.buffer.len();
                return StopOutcome { emit: &self.buffer, matched: self.matched };
            }
        }
        let held = self.stops.iter().map(|stop| stop.progress).max().unwrap_or(0);
        // What is held equals the start of a stop sequence, so it starts at a character too.
        let emit = self.buffer.get(..self.buffer.len() - held).unwrap_or_default();
        self.emitted = emit.len();
        StopOutcome { emit, matched: None }
    }

    /// The reply ended otherwise: what is still held back belongs to it.
    pub fn flush(&mut self) -> &str {
        self.buffer.drain(..self.emitted);
        self.emitted = self.buffer.len();
        self.stops.iter_mut().for_each(|stop| stop.progress = 0);
        &self.buffer
    }

    /// Feeds one byte to every stop sequence; the longest complete one (the first listed among equals), if any.
    fn advance(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut complete: Option<(usize, usize)> = None;
        for stop in &mut self.stops {
            stop.progress = stop.pattern.advance(stop.progress, byte);
            let len = stop.pattern.items().len();
            if stop.progress == len && complete.is_none_or(|(_, longest)| len > longest) {
                complete = Some((stop.index, len));
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(&stops.iter().map(|stop| (*stop).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_stop_over_three_tokens_is_cut_out() {
        let mut stop = matcher(&["<|end|>"]);
        assert_eq!(stop.push("Hello <"), StopOutcome { emit: "Hello ", matched: None });
        assert_eq!(stop.push("|end"), StopOutcome { emit: "", matched: None });
        assert_eq!(stop.push("|> and more"), StopOutcome { emit: "", matched: Some(0) });
        assert_eq!(stop.push("late"), StopOutcome { emit: "", matched: Some(0) });
        assert_eq!(stop.flush(), "");
    }

    #[test]
    fn held_text_comes_out_when_it_cannot_match_any_more() {
        let mut stop = matcher(&["aab"]);
        assert_eq!(stop.push("xaa").emit, "x");
        assert_eq!(stop.push("a").emit, "a", "the last two may still begin it");
        assert_eq!(stop.push("é").emit, "aaé");
        assert_eq!(stop.push("a").emit, "");
        assert_eq!(stop.flush(), "a");
        assert_eq!(stop.flush(), "", "nothing comes out twice");
    }

    #[test]
    fn of_several_the_first_complete_one_counts_and_then_the_longest() {
        assert_eq!(matcher(&["abcd", "bc"]).push("xabcd"), StopOutcome { emit: "xa", matched: Some(1) });
        assert_eq!(matcher(&["c", "bc", "bc"]).push("abc"), StopOutcome { emit: "a", matched: Some(1) });
    }

    #[test]
    fn without_stops_everything_passes() {
        let mut stop = matcher(&["", ""]);
        assert_eq!(stop.push("abc"), StopOutcome { emit: "abc", matched: None });
        assert_eq!(stop.flush(), "");
    }

    /// The definition, on the whole text at once.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_str()));
            if let Some((index, stop)) = ending.min_by_key(|(index, stop)| (std::cmp::Reverse(stop.len()), *index)) {
                return (text[..end - stop.len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn any_split_gives_the_answer_of_the_whole_text(
            stops in prop::collection::vec("[abé]{1,4}", 0..4), pieces in prop::collection::vec("[abé]{0,3}", 0..20)
        ) {
            let whole = pieces.concat();
            let mut matcher = StopMatcher::new(&stops);
            let (mut seen, mut shown, mut matched) = (String::new(), String::new(), None);
            for piece in &pieces {
                seen.push_str(piece);
                let outcome = matcher.push(piece);
                shown.push_str(outcome.emit);
                matched = outcome.matched;
                if matched.is_none() {
                    let held = seen.strip_prefix(&shown).expect("only the reply's own text comes out");
                    let longest = (0..=seen.len())
                        .filter(|&len| seen.is_char_boundary(seen.len() - len))
                        .filter(|&len| stops.iter().any(|stop| stop.starts_with(&seen[seen.len() - len..])))
                        .max()
                        .unwrap_or(0);
                    prop_assert_eq!(held.len(), longest, "no more and no less is held back");
                }
            }
            shown.push_str(matcher.flush());
            prop_assert_eq!((shown, matched), naive(&whole, &stops));
        }
    }
}
