//! What kind of text changed: a date, an id, or something else.
//!
//! Called by `diagnosis.rs` with the words that differ. Pure. It looks at the shape of words only and must never need
//! the meaning of a text.

use crate::chat::hygiene;

/// More words than this are a sentence, not a value.
const MOST_WORDS: usize = 6;
/// More letters than this are a text that was put in front, not an id.
const LONGEST_INSERTION: usize = 400;
const NAMES: [&str; 19] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec", "mon", "tue", "wed", "thu",
    "fri", "sat", "sun",
];

/// A text that changes with every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Volatile {
    Date,
    Id,
}

/// What was replaced by what, with the line around it; a value that changes, or something else.
pub(super) fn replaced(cached: &str, asked: &str, line: &str) -> Option<Volatile> {
    if ![cached, asked].into_iter().all(is_value) {
        return None;
    }
    let is_date =
        hygiene::has_date(line) || [cached, asked].into_iter().all(|text| text.split_whitespace().any(is_day));
    Some(if is_date { Volatile::Date } else { Volatile::Id })
}

/// What was put in front of a cached text.
pub(super) fn inserted(asked: &str) -> Option<Volatile> {
    if asked.len() > LONGEST_INSERTION {
        return None;
    }
    if hygiene::has_date(asked) {
        return Some(Volatile::Date);
    }
    asked.split_whitespace().any(is_id).then_some(Volatile::Id)
}

/// A few words with numbers in them, or names of days and months.
fn is_value(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let has_digit = |word: &&str| word.bytes().any(|byte| byte.is_ascii_digit());
    let is_clock_word =
        |word: &str| ["am", "pm", "utc", "gmt", "at", "of"].contains(&bare(word).to_ascii_lowercase().as_str());
    !words.is_empty()
        && words.len() <= MOST_WORDS
        && words.iter().any(|word| has_digit(word) || is_day(word) || is_hex(bare(word)))
        && words.iter().all(|word| has_digit(word) || is_day(word) || is_hex(bare(word)) || is_clock_word(word))
}

fn bare(word: &str) -> &str {
    word.trim_matches(|letter: char| !letter.is_alphanumeric())
}

fn is_hex(word: &str) -> bool {
    word.len() >= 6 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The name of a day or a month, whole or short.
fn is_day(word: &str) -> bool {
    let word = bare(word).to_ascii_lowercase();
    let is_name = |name: &&str| {
        word.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.ends_with("day") || is_month_end(rest))
    };
    word.bytes().all(|byte| byte.is_ascii_alphabetic()) && NAMES.iter().any(is_name)
}

fn is_month_end(rest: &str) -> bool {
    ["uary", "ruary", "ch", "il", "e", "y", "ust", "tember", "t", "ober", "ember"].contains(&rest)
}

/// A word that looks like a name made by a program: a long number, a hash, a UUID, letters mixed with digits.
fn is_id(word: &str) -> bool {
    let word = word.rsplit(['=', ':', '#']).find(|part| !bare(part).is_empty()).map_or("", bare);
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let letters = word.bytes().filter(u8::is_ascii_alphabetic).count();
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    is_plain && (digits >= 4 || (digits >= 2 && digits + letters >= 6) || (digits >= 1 && is_hex(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_words_differ_by_their_shape() {
        for (cached, asked, line, expected) in [
            ("8f3a2b1c", "77aa0d3e", "Session 77aa0d3e", Some(Volatile::Id)),
            ("41", "42", "Request 42", Some(Volatile::Id)),
            ("6fa459ea-ee8a-3ca4-894e-db77e160355e", "16fd2706-8baf-433b-82eb-8c7fada847da", "", Some(Volatile::Id)),
            ("2025-11-15.", "2025-11-16.", "Today is 2025-11-16.", Some(Volatile::Date)),
            ("Saturday, November 15", "Sunday, November 16", "It is Sunday, November 16", Some(Volatile::Date)),
            ("cats", "cows", "about cows", None),
            ("friendly", "grumpy", "a grumpy assistant", None),
            ("3 cats", "4 cows", "4 cows", None),
            ("", "42", "42", None),
        ] {
            assert_eq!(replaced(cached, asked, line), expected, "{cached} -> {asked}");
        }
    }

    #[test]
    fn an_id_in_front_is_found_and_other_text_is_not_one() {
        for (text, expected) in [
            ("Request 7f3a2b\n", Some(Volatile::Id)),
            ("id=01JCQ5Z8T9 ", Some(Volatile::Id)),
            ("[trace: 90210]\n", Some(Volatile::Id)),
            ("Today is 2025-11-15.\n", Some(Volatile::Date)),
            ("Answer in 2 or 3 sentences.\n", None),
            ("Be brief.\n", None),
            ("", None),
        ] {
            assert_eq!(inserted(text), expected, "{text}");
        }
        assert_eq!(inserted(&"number 12345 ".repeat(100)), None);
    }
}
