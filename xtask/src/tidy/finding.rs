//! One thing that tidy found: where, what, and what to do about it.
//!
//! Made by the rules, printed by `main.rs`.

use std::fmt;

/// A place and a problem. The order of the fields is the order of the report.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path from the root of the repository, with `/` between its parts.
    pub(crate) path: String,
    /// Counted from 1.
    pub(crate) line: usize,
    /// What is wrong.
    pub(crate) problem: String,
    /// What to do about it.
    pub(crate) advice: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, problem: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, problem: problem.into(), advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.problem, self.advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_place_problem_and_advice() {
        let finding = Finding::new("docs/a.md", 3, "it is wrong", "put it right");
        assert_eq!(finding.to_string(), "docs/a.md:3: it is wrong; put it right");
    }
}
