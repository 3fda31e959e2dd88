//! What a chat template reads of the clock.
//!
//! Asked by `ChatModel` before it reuses a rendered prompt. llama.cpp gives templates a function `strftime_now` and the
//! variables `datetime` and `date_string`, which change at midnight. A template that reads more than the day, or that
//! cannot be understood, is rendered each time.

use std::time::{SystemTime, UNIX_EPOCH};

/// A stretch of time in which a template writes the same.
pub(super) type Slot = u64;

/// Midnight is at the end of a quarter of an hour in every time zone.
const QUARTER: u64 = 15 * 60;
/// The letters after a `%` that stand for a day, a month or a year.
const OF_A_DAY: &str = "aAbBdDeFhjmuyY%";
const FUNCTION: &str = "strftime_now";
const VARIABLES: [&str; 2] = ["datetime", "date_string"];

/// How often a template may write something else for the same request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    Never,
    Daily,
    Always,
}

impl Clock {
    /// What the source of a template reads.
    pub(super) fn of(template: &str) -> Self {
        let mut clock = Self::Never;
        for (place, name) in template.match_indices(FUNCTION) {
            match call(template.get(place + name.len()..).unwrap_or_default()) {
                Self::Always => return Self::Always,
                Self::Daily => clock = Self::Daily,
                Self::Never => {}
            }
        }
        if VARIABLES.iter().any(|name| template.contains(name)) {
            clock = Self::Daily;
        }
        clock
    }

    /// The stretch of time now; `None` if there is none.
    pub(super) fn slot(self) -> Option<Slot> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        match self {
            Self::Never => Some(0),
            Self::Daily => Some(now / QUARTER),
            Self::Always => None,
        }
    }
}

/// What a template does with the function, of which the name was read.
fn call(rest: &str) -> Clock {
    let rest = rest.trim_start();
    if let Some(test) = rest.strip_prefix("is ") {
        let test = test.trim_start();
        let test = test.strip_prefix("not ").unwrap_or(test).trim_start();
        return if test.starts_with("defined") { Clock::Never } else { Clock::Always };
    }
    let format = || {
        let argument = rest.strip_prefix('(')?.trim_start();
        let quote = argument.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
        let (format, after) = argument.get(1..)?.split_once(quote)?;
        after.trim_start().starts_with(')').then_some(format)
    };
    match format() {
        Some(format) if is_of_a_day(format) => Clock::Daily,
        _ => Clock::Always,
    }
}

fn is_of_a_day(format: &str) -> bool {
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter == '\\' {
            return false;
        }
        // A `-` leaves out a leading zero.
        if letter == '%' && !letters.find(|letter| *letter != '-').is_some_and(|letter| OF_A_DAY.contains(letter)) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_reads_no_clock_never_changes() {
        for template in ["", "{% for message in messages %}{{ message.content }}{% endfor %}", "I know the date."] {
            assert_eq!(Clock::of(template), Clock::Never, "{template}");
        }
        assert_eq!(Clock::of("{% if strftime_now is defined %}x{% endif %}"), Clock::Never);
        assert_eq!(Clock::Never.slot(), Some(0));
    }

    #[test]
    fn a_template_that_reads_the_day_changes_daily() {
        for template in [
            r#"{{ strftime_now("%Y-%m-%d") }}"#,
            "{%- set date = strftime_now( '%d %b %Y' ) -%}",
            "{{ strftime_now('%-d. %B') if strftime_now is not defined else date_string }}",
            "{{ date_string }}",
            "{{ datetime }}",
            "{{ strftime_now('100 %%') }}",
        ] {
            assert_eq!(Clock::of(template), Clock::Daily, "{template}");
        }
        assert!(Clock::Daily.slot() > Some(0));
    }

    #[test]
    fn a_template_that_reads_more_or_is_not_understood_always_changes() {
        for template in [
            "{{ strftime_now('%H:%M') }}",
            "{{ strftime_now('%c') }}",
            "{{ strftime_now('%Y') }} {{ strftime_now('%S') }}",
            "{{ strftime_now(format) }}",
            "{{ strftime_now('%' ~ 'S') }}",
            r"{{ strftime_now('\x25S') }}",
            "{{ strftime_now('%",
            "{{ strftime_now('%-') }}",
            "{% set now = strftime_now %}{{ now('%S') }}",
            "{{ '%S' | strftime_now }}",
            "{{ strftime_now is callable }}",
        ] {
            assert_eq!(Clock::of(template), Clock::Always, "{template}");
        }
        assert_eq!(Clock::Always.slot(), None);
    }
}
