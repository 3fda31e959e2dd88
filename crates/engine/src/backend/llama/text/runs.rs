//! How far a pre-tokenizer's regular expressions may recurse on a text: the longest run of characters that one match can
//! hold, and how long such a run may be.
//!
//! Used by `tokenizer.rs`. llama.cpp cuts a text into words with expressions. For some it has written code; for the others
//! it uses std::regex, which recurses once for each character of a match. A match is made of at most three runs of one
//! class each, so the longest run bounds the stack. The classes may be larger than llama.cpp's, never smaller: a
//! character of doubt belongs to several. An unfamiliar pre-tokenizer has all of them.

use std::ops::Range;

/// Characters of a run that std::regex is let through. Measured: it takes 321 bytes of stack for each at most, whatever
/// the expression, so two full runs in one match take half of a deep stack.
pub(in crate::backend::llama) const LONGEST: usize = 100_000;
/// The same where the expression looks ahead from each character to the end of the run: 10,000 characters take 3 s,
/// 2,000 a tenth of one.
const LONGEST_STEEP: usize = 2_000;
/// Runs up to this length fit into any thread's stack.
pub(in crate::backend::llama) const SHALLOW: usize = 1_000;

/// Characters that may stand together in one match. Each is a bit of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) enum Class {
    /// Letters and marks.
    Letters = 1,
    /// Everything but letters, numbers and white space; also marks.
    Others = 2,
    Numbers = 4,
    Spaces = 8,
    /// Everything beyond ASCII.
    Wide = 16,
    /// Everything but white space.
    NotSpace = 32,
    /// Everything but white space and the punctuation that BLOOM cuts at.
    Bloom = 64,
    /// Letters, marks and single spaces between them.
    SpacedLetters = 128,
    /// Letters, numbers and underscores.
    Word = 256,
}

use Class::{Bloom, Letters, NotSpace, Numbers, Others, SpacedLetters, Spaces, Wide, Word};

const ALL: [Class; 9] = [Letters, Others, Numbers, Spaces, Wide, NotSpace, Bloom, SpacedLetters, Word];

/// The classes of each value of `tokenizer.ggml.pre`.
const KNOWN: [(&str, &[Class]); 12] = [
    // llama.cpp has code for all their expressions, or the expressions match single characters.
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 midm-2.0 jina-v5-nano lfm2 dbrx smaug-bpe starcoder refact command-r \
         smollm codeshell exaone minerva-7b mellum2 gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 \
         mellum modern-bert jina-v1-en jina-v2-code roberta-bpe mpt olmo jais trillion granite-docling exaone4 qwen2 \
         deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open qwen35 glm4 glm5 chatglm-bpe kimi-k2 grok-2 \
         laguna gemma4 granite-embed-multi-311m mmbert sarvam-moe domyn-small k2-horizon",
        &[],
    ),
    ("default", &[Others, Numbers]),
    ("falcon", &[Others]),
    ("chameleon superbpe", &[Numbers]),
    ("deepseek-llm", &[Letters, Others, Wide, Numbers, Spaces]),
    ("deepseek-coder", &[Letters, Others, Wide]),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4 spark2_5 afmoe flint youtu", &[Letters, Others, Spaces, Wide]),
    ("poro-chat bloom gpt3-finnish viking", &[Bloom]),
    (
        "tekken pixtral gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m nemotron-3.5-embed tiny_aya \
         cohere2moe bailingmoe bailingmoe2 llada-moe seed-coder ufakzeka minicpm5 jais-2",
        &[Letters, Others, Spaces],
    ),
    ("tekken-num3", &[Letters, Others, Spaces, Numbers]),
    ("exaone-moe", &[SpacedLetters, Others, Spaces]),
    ("soprano", &[Word, Others, Spaces]),
];

/// Which runs one match of a pre-tokenizer may hold, and how long each may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) struct RunLimits(Vec<(Class, usize)>);

/// A run that is too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend::llama) struct Run {
    pub(in crate::backend::llama) class: Class,
    /// Where it stands, in bytes.
    pub(in crate::backend::llama) bytes: Range<usize>,
    pub(in crate::backend::llama) chars: usize,
    pub(in crate::backend::llama) limit: usize,
}

impl RunLimits {
    /// The limits for a value of `tokenizer.ggml.pre`; `None` stands for a file without one.
    pub(in crate::backend::llama) fn of(pre: Option<&str>) -> Self {
        let pre = pre.unwrap_or("default");
        let known = KNOWN.iter().find(|(names, _)| names.split_whitespace().any(|name| name == pre));
        let classes = known.map_or(&ALL[..], |(_, classes)| classes);
        let limit = |class: &Class| {
            let steep = matches!((pre, class), ("superbpe" | "tekken-num3", Numbers) | ("deepseek-llm", Spaces));
            if steep { LONGEST_STEEP } else { LONGEST }
        };
        Self(classes.iter().map(|class| (*class, limit(class))).collect())
    }

    /// For vocabularies that are cut without regular expressions.
    pub(in crate::backend::llama) fn none() -> Self {
        Self(Vec::new())
    }

    /// The same runs, none longer than this.
    #[cfg(test)]
    pub(in crate::backend::llama) fn at_most(&self, limit: usize) -> Self {
        Self(self.0.iter().map(|(class, longest)| (*class, limit.min(*longest))).collect())
    }

    /// Characters of the longest run.
    pub(in crate::backend::llama) fn longest(&self, text: &str) -> usize {
        let (mut longest, mut counts) = (0, [0; ALL.len()]);
        if self.0.is_empty() {
            return 0;
        }
        for character in text.chars() {
            let set = classes_of(character);
            for ((class, _), count) in self.0.iter().zip(&mut counts) {
                *count = if set & *class as u16 == 0 { 0 } else { *count + 1 };
                longest = longest.max(*count);
            }
        }
        longest
    }

    /// The first run, by its start, that is longer than it may be.
    pub(in crate::backend::llama) fn first_over(&self, text: &str) -> Option<Run> {
        let runs = self.0.iter().filter_map(|(class, limit)| first_run(text, *class, *limit));
        runs.min_by_key(|run| run.bytes.start)
    }
}

fn first_run(text: &str, class: Class, limit: usize) -> Option<Run> {
    let (mut start, mut chars) = (0, 0);
    for (at, character) in text.char_indices() {
        if classes_of(character) & class as u16 != 0 {
            start = if chars == 0 { at } else { start };
            chars += 1;
        } else if chars > limit {
            return Some(Run { class, bytes: start..at, chars, limit });
        } else {
            chars = 0;
        }
    }
    (chars > limit).then_some(Run { class, bytes: start..text.len(), chars, limit })
}

/// The classes that a character may belong to.
fn classes_of(character: char) -> u16 {
    const LETTER: u16 = Letters as u16 | NotSpace as u16 | Bloom as u16 | SpacedLetters as u16 | Word as u16;
    const DIGIT: u16 = Numbers as u16 | NotSpace as u16 | Bloom as u16 | Word as u16;
    const OTHER: u16 = Others as u16 | NotSpace as u16 | Bloom as u16;
    match character {
        'a'..='z' | 'A'..='Z' => LETTER,
        '0'..='9' => DIGIT,
        ' ' => Spaces as u16 | SpacedLetters as u16,
        '\t'..='\r' => Spaces as u16,
        '(' | ')' | '|' | '.' | ',' | '!' | '?' => Others as u16 | NotSpace as u16,
        '_' => OTHER | Word as u16,
        '\0'..='\x7f' => OTHER,
        // Ideographs, syllables and the punctuation between them are what every version of Unicode says they are.
        '\u{4e00}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7a3}' | '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' => {
            LETTER | Wide as u16
        }
        '\u{3001}'
        | '\u{3002}'
        | '\u{3008}'..='\u{3011}'
        | '\u{ff01}'
        | '\u{ff0c}'
        | '\u{ff1a}'
        | '\u{ff1b}'
        | '\u{ff1f}' => OTHER | Wide as u16,
        wide if wide.is_whitespace() => Spaces as u16 | Wide as u16,
        _ => LETTER | DIGIT | OTHER | Wide as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_where_its_class_ends() {
        let limits = RunLimits::of(Some("gpt-4o"));
        for (text, longest) in [
            ("", 0),
            ("aaaa bb", 4),
            ("a1a1a1", 1),
            ("--a---", 3),
            ("   \n\tx", 5),
            ("ab\u{301}c", 4),
            ("你好。你好吗", 3),
        ] {
            assert_eq!(limits.longest(text), longest, "{text:?}");
        }
        assert_eq!(RunLimits::of(Some("bloom")).longest("aGVsbG8=,. x"), 8);
        assert_eq!(RunLimits::of(Some("exaone-moe")).longest("one two. three"), 7);
        assert_eq!(RunLimits::of(Some("llama3")).longest(&"a".repeat(5000)), 0);
    }

    #[test]
    fn the_first_run_that_is_too_long_is_found_with_its_place() {
        let limits = RunLimits::of(Some("gpt-4o")).at_most(4);
        assert_eq!(limits.first_over("aaaa ----\n1234567"), None, "digits come in threes there");
        let run = limits.first_over("é ----- aaaaaa").unwrap();
        assert_eq!((run.class, run.bytes, run.chars, run.limit), (Others, 3..8, 5, 4));
        assert_eq!(limits.first_over("aaaaa").unwrap().bytes, 0..5);
    }

    #[test]
    fn an_unfamiliar_pre_tokenizer_has_every_class_and_steep_ones_a_lower_limit() {
        assert_eq!(RunLimits::of(Some("of-tomorrow")).0.len(), ALL.len());
        assert_eq!(RunLimits::of(None), RunLimits::of(Some("default")));
        let digits = "1".repeat(LONGEST_STEEP + 1);
        assert!(RunLimits::of(Some("superbpe")).first_over(&digits).is_some());
        assert!(RunLimits::of(Some("tekken-num3")).first_over(&digits).is_some());
        assert!(RunLimits::of(Some("deepseek-llm")).first_over(&digits).is_none());
        assert!(RunLimits::of(Some("deepseek-llm")).first_over(&" ".repeat(LONGEST_STEEP + 1)).is_some());
    }
}
