//! Text to send: prompts of a wanted length, the same in every run, each different from its first words on.
//!
//! Pure; used by the comparison and the matrix. The words are common English ones that most vocabularies hold whole. No two
//! prompts share more than the opening of the chat template, so that a prompt that should be cold is.

/// Common words of one token each in most vocabularies.
const WORDS: [&str; 64] = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
];
/// Words in a sentence.
const SENTENCE: usize = 12;

/// Makes prompts.
#[derive(Debug, Clone)]
pub(crate) struct Prompts {
    seed: u64,
    tokens_per_word: f64,
}

impl Prompts {
    /// Prompts for a vocabulary in which a word of this text takes this many tokens.
    pub(crate) fn new(seed: u64, tokens_per_word: f64) -> Self {
        Self { seed, tokens_per_word: tokens_per_word.max(0.1) }
    }

    /// A text of about this many tokens. Texts of different tags differ from their first words on.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of words is small")]
    pub(crate) fn text(&self, tag: &str, tokens: usize) -> String {
        let words = (tokens as f64 / self.tokens_per_word).round() as usize;
        let mut random = Random::new(self.seed, tag);
        // Digits first: no two numbers share many tokens, and the tag makes it certain.
        let mut text = format!("{} {tag}:", random.next() % 1_000_000_000);
        for place in 1..=words.max(1) {
            text.push(' ');
            text.push_str(random.word());
            if place % SENTENCE == 0 {
                text.push('.');
            }
        }
        text
    }
}

/// A text from which the tokens of a word can be counted.
pub(crate) fn sample(words: usize) -> String {
    Prompts::new(0, 1.0).text("sample", words)
}

/// The SplitMix64 generator: a few lines, the same numbers on every machine.
struct Random(u64);

impl Random {
    fn new(seed: u64, tag: &str) -> Self {
        // FNV-1a over the tag.
        let hash = tag
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Self(hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn word(&mut self) -> &'static str {
        let place = usize::try_from(self.next() >> 58).unwrap_or(0);
        WORDS.get(place).copied().unwrap_or("time")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_same_tag_gives_the_same_text_and_a_seed_gives_another() {
        let prompts = Prompts::new(1, 1.0);
        assert_eq!(prompts.text("cold-512-1", 512), prompts.text("cold-512-1", 512));
        assert_ne!(prompts.text("cold-512-1", 512), Prompts::new(2, 1.0).text("cold-512-1", 512));
    }

    #[test]
    fn no_two_texts_begin_alike() {
        let mut openings = BTreeSet::new();
        for seed in 0..4 {
            for round in 0..500 {
                let text = Prompts::new(seed, 1.0).text(&format!("cold-{round}"), 20);
                assert!(openings.insert(text.chars().take(9).collect::<String>()), "{text}");
            }
        }
    }

    #[test]
    fn the_length_follows_the_vocabulary() {
        let count = |tokens_per_word| Prompts::new(1, tokens_per_word).text("x", 600).split(' ').count();
        assert_eq!((count(1.0), count(2.0)), (602, 302), "two words of opening, then the text");
        assert!(Prompts::new(1, 0.0).text("x", 10).len() < 2000, "a wrong count must not make it endless");
        assert_eq!(Prompts::new(1, 1.0).text("x", 0).split(' ').count(), 3);
    }

    #[test]
    fn every_word_is_used() {
        assert_eq!(WORDS.iter().collect::<BTreeSet<_>>().len(), 64, "no word twice");
        let text = sample(4000);
        assert!(WORDS.iter().all(|word| text.contains(word)));
    }
}
