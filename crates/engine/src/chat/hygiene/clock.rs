//! Finds the time of day in a text and blanks it, in lines that tell the date or the time and nowhere else.
//!
//! Used by the rule `clock`. The date itself stays: it changes once a day, and the model may need it. A time that is
//! part of an instruction ("deploy at 10:30") stands in a line without a date and stays too.

/// Words that make a line one about the present time.
const CLOCK_WORDS: [&str; 8] =
    ["current time", "current date", "local time", "time is", "time now", "date and time", "timestamp", "right now"];
const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// The text without times of day, and how many there were; `None` if there was none.
pub(super) fn blanked(text: &str) -> Option<(String, usize)> {
    let mut places = 0;
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match tells_the_time(line).then(|| blanked_line(line)).flatten() {
            Some((line, count)) => {
                out.push_str(&line);
                places += count;
            }
            None => out.push_str(line),
        }
    }
    (places > 0).then_some((out, places))
}

fn tells_the_time(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    CLOCK_WORDS.iter().any(|word| line.contains(word)) || has_date(&line)
}

/// `2025-11-15`, `15/11/2025`, `11/15/2025`, or a year of this century beside the name of a month.
pub(super) fn has_date(line: &str) -> bool {
    let words = || line.split(|char: char| !char.is_ascii_alphanumeric() && char != '-' && char != '/');
    let numbers = |word: &str, separator: char| -> Vec<usize> {
        let parts = word.split(separator).map(|part| part.bytes().take_while(u8::is_ascii_digit).count());
        parts.collect()
    };
    let is_date = |word: &str| {
        matches!(numbers(word, '-').as_slice(), [4, 1..=2, 1..=2])
            || matches!(numbers(word, '/').as_slice(), [1..=2, 1..=2, 4])
    };
    let is_year =
        |word: &str| word.len() == 4 && word.starts_with("20") && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_month = |word: &str| MONTHS.iter().any(|month| word.starts_with(month));
    words().any(is_date) || (words().any(is_year) && words().any(is_month))
}

fn blanked_line(line: &str) -> Option<(String, usize)> {
    let mut out = String::with_capacity(line.len());
    let mut places = 0;
    let mut rest = line;
    let mut before = None;
    while let Some(first) = rest.chars().next() {
        let may_begin =
            before.is_none_or(|char: char| !char.is_alphanumeric() && !matches!(char, ':' | '.' | '-') || char == 'T');
        if let Some((blank, length)) = may_begin.then(|| time_at(rest)).flatten() {
            out.push_str(blank);
            places += 1;
            before = Some(':');
            rest = rest.get(length..).unwrap_or_default();
        } else {
            out.push(first);
            before = Some(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        }
    }
    (places > 0).then_some((out, places))
}

/// What a time at the start of a text becomes, and how long it is.
fn time_at(text: &str) -> Option<(&'static str, usize)> {
    let digits = |from: usize| text.bytes().skip(from).take_while(u8::is_ascii_digit).count();
    let number = |from: usize, length: usize| text.get(from..from + length).and_then(|part| part.parse::<u32>().ok());
    let colon = |at: usize| text.as_bytes().get(at) == Some(&b':');
    let hour = digits(0);
    let minute = hour + 1;
    if !(1..=2).contains(&hour)
        || number(0, hour)? > 23
        || !colon(hour)
        || digits(minute) != 2
        || number(minute, 2)? > 59
    {
        return None;
    }
    let mut end = minute + 2;
    let mut blank = "--:--";
    if colon(end) && digits(end + 1) == 2 && number(end + 1, 2)? <= 60 {
        end += 3;
        blank = "--:--:--";
        let fraction = digits(end + 1);
        if text.as_bytes().get(end) == Some(&b'.') && fraction > 0 {
            end += 1 + fraction;
        }
    }
    let after = text.get(end..).unwrap_or_default();
    let half = after.trim_start_matches([' ', '\u{202f}']);
    let is_half = half.get(..2).is_some_and(|word| word.eq_ignore_ascii_case("am") || word.eq_ignore_ascii_case("pm"));
    let ends_there = !half.chars().nth(2).is_some_and(char::is_alphanumeric);
    if is_half && ends_there {
        return Some((blank, end + (after.len() - half.len()) + 2));
    }
    let goes_on = after.starts_with(|char: char| char.is_ascii_digit() || char == ':');
    (!goes_on).then_some((blank, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_present_are_blanked() {
        for (text, expected) in [
            ("Current time: 2025-11-15T06:42:55.123Z", "Current time: 2025-11-15T--:--:--Z"),
            ("Today is Sat Nov 15 2025 06:42:55 GMT+0000", "Today is Sat Nov 15 2025 --:--:-- GMT+0000"),
            ("Now: 15/11/2025, 6:42 PM.", "Now: 15/11/2025, --:--."),
            ("The time is 23:59", "The time is --:--"),
            ("2025-11-15 06:42 to 2025-11-15 07:00\nat 10:30", "2025-11-15 --:-- to 2025-11-15 --:--\nat 10:30"),
        ] {
            assert_eq!(blanked(text).unwrap().0, expected);
        }
    }

    #[test]
    fn everything_else_stays() {
        for text in [
            "Deploy at 10:30 each day.",
            "Today is 2025-11-15.",
            "2025-11-15: ports 127.0.0.1:8080, ratio 4:3, verse 1:234, version 12:30:4567",
            "2025-11-15 25:00 12:60 a1:23 x.1:23 08:aa",
            "in march 1999 at 10:30",
            "",
            "é 2025-11-15 é",
        ] {
            assert_eq!(blanked(text), None, "{text}");
        }
    }
}
