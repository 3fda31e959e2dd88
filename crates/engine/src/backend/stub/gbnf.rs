//! GBNF texts as automata over bytes: the parser of the stub's grammars.
//!
//! Called when a grammar is made. It knows literals, byte classes, groups, alternatives, `*`, `+`, `?` and rules by name;
//! a rule may not refer to itself, because it is written out wherever it is used. It must never accept a text that it
//! does not understand.

use std::collections::HashMap;

use crate::backend::GrammarError;

/// More states than any test needs; named rules are written out at every use.
const MOST_STATES: usize = 100_000;
/// Deeper nesting of groups and rules is refused.
const DEEPEST: usize = 64;

/// A state of the automaton.
#[derive(Clone, Debug)]
pub(super) enum RuleState {
    /// Goes on after one of these bytes.
    Byte(Box<[bool; 256]>, usize),
    /// Goes on at each of these without reading.
    Split(Vec<usize>),
    /// The text is complete.
    End,
}

/// The states of a grammar and the place where it starts.
pub(super) fn compile(text: &str, root: &str) -> Result<(Vec<RuleState>, usize), GrammarError> {
    let rules = split_rules(text)?;
    let mut compiler = Compiler { rules: &rules, states: vec![RuleState::End], depth: 0 };
    let entry = compiler.rule(root, 0)?;
    Ok((compiler.states, entry))
}

pub(super) fn invalid(reason: impl Into<String>) -> GrammarError {
    GrammarError::Invalid { reason: reason.into() }
}

/// A pattern that stands for itself, with or without the usual frame that lets anything come before and after.
pub(super) fn literal_pattern(pattern: &str) -> Result<Vec<u8>, GrammarError> {
    let body = pattern.strip_prefix('^').unwrap_or(pattern);
    let body = body.strip_prefix("[\\s\\S]*?").unwrap_or(body);
    let body = body.strip_suffix("[\\s\\S]*").unwrap_or(body);
    let body = body.strip_prefix('(').and_then(|body| body.strip_suffix(')')).unwrap_or(body);
    let mut text = String::new();
    let mut rest = body.chars();
    while let Some(char) = rest.next() {
        match char {
            '\\' => text.extend(rest.next()),
            '(' | ')' | '[' | ']' | '{' | '}' | '*' | '+' | '?' | '.' | '|' | '^' | '$' => {
                return Err(invalid(format!("the stub knows no regular expressions, only plain text: {pattern}")));
            }
            other => text.push(other),
        }
    }
    Ok(text.into_bytes())
}

/// The rules by name. A rule ends where the next `name ::=` begins.
fn split_rules(text: &str) -> Result<HashMap<String, String>, GrammarError> {
    let mut rules: HashMap<String, String> = HashMap::new();
    let mut current = None;
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let named = line.split_once("::=").map(|(name, body)| (name.trim(), body));
        let named = named.filter(|(name, _)| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        match (named, &current) {
            (Some((name, body)), _) => {
                rules.insert(name.to_owned(), body.to_owned());
                current = Some(name.to_owned());
            }
            (None, Some(name)) => {
                let rule = rules.entry(name.clone()).or_default();
                rule.push('\n');
                rule.push_str(line);
            }
            (None, None) if line.trim().is_empty() => {}
            (None, None) => return Err(invalid(format!("no rule starts with: {line}"))),
        }
    }
    Ok(rules)
}

/// Turns rules into states, last to first: each part gets the state that follows it.
struct Compiler<'a> {
    rules: &'a HashMap<String, String>,
    states: Vec<RuleState>,
    depth: usize,
}

impl Compiler<'_> {
    fn push(&mut self, state: RuleState) -> Result<usize, GrammarError> {
        if self.states.len() >= MOST_STATES {
            return Err(invalid("the grammar is too large for the stub"));
        }
        self.states.push(state);
        Ok(self.states.len() - 1)
    }

    fn rule(&mut self, name: &str, next: usize) -> Result<usize, GrammarError> {
        let rules = self.rules;
        let body = rules.get(name).ok_or_else(|| invalid(format!("there is no rule {name}")))?;
        let (entry, rest) = self.alternatives(body, next)?;
        if rest.is_empty() { Ok(entry) } else { Err(invalid(format!("the rule {name} does not end before: {rest}"))) }
    }

    /// Parts separated by `|`, up to a closing bracket or the end.
    fn alternatives<'t>(&mut self, mut text: &'t str, next: usize) -> Result<(usize, &'t str), GrammarError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(invalid("rules that refer to themselves, or nest too deeply, are beyond the stub"));
        }
        let mut entries = Vec::new();
        loop {
            let (items, rest) = split_items(text)?;
            let mut entry = next;
            for item in items.iter().rev() {
                entry = self.item(item, entry)?;
            }
            entries.push(entry);
            match rest.strip_prefix('|') {
                Some(rest) => text = rest,
                None => {
                    self.depth -= 1;
                    return Ok((self.push(RuleState::Split(entries))?, rest));
                }
            }
        }
    }

    fn item(&mut self, item: &Item<'_>, next: usize) -> Result<usize, GrammarError> {
        match item.repeat {
            None => self.atom(item.atom, next),
            Some('?') => {
                let entry = self.atom(item.atom, next)?;
                self.push(RuleState::Split(vec![entry, next]))
            }
            Some(repeat) => {
                let again = self.push(RuleState::Split(Vec::new()))?;
                let entry = self.atom(item.atom, again)?;
                if let Some(state) = self.states.get_mut(again) {
                    *state = RuleState::Split(vec![entry, next]);
                }
                Ok(if repeat == '+' { entry } else { again })
            }
        }
    }

    fn atom(&mut self, atom: &str, next: usize) -> Result<usize, GrammarError> {
        if let Some(inner) = atom.strip_prefix('(').and_then(|atom| atom.strip_suffix(')')) {
            return match self.alternatives(inner, next)? {
                (entry, "") => Ok(entry),
                (_, rest) => Err(invalid(format!("a group does not end before: {rest}"))),
            };
        }
        if let Some(inner) = atom.strip_prefix('"').and_then(|atom| atom.strip_suffix('"')) {
            let mut entry = next;
            for &(byte, _) in unescape(inner)?.iter().rev() {
                let mut class = Box::new([false; 256]);
                mark(&mut class, byte..=byte);
                entry = self.push(RuleState::Byte(class, entry))?;
            }
            return Ok(entry);
        }
        if let Some(inner) = atom.strip_prefix('[').and_then(|atom| atom.strip_suffix(']')) {
            return self.push(RuleState::Byte(Box::new(class(inner)?), next));
        }
        self.rule(atom, next)
    }
}

fn mark(class: &mut [bool; 256], bytes: std::ops::RangeInclusive<u8>) {
    for byte in bytes {
        if let Some(member) = class.get_mut(usize::from(byte)) {
            *member = true;
        }
    }
}

/// The bytes of a class such as `a-z0-9` or `^"`.
fn class(text: &str) -> Result<[bool; 256], GrammarError> {
    if !text.is_ascii() {
        return Err(invalid("the stub's classes hold bytes, not characters beyond ASCII"));
    }
    let (text, negated) = text.strip_prefix('^').map_or((text, false), |text| (text, true));
    let mut class = [false; 256];
    let bytes = unescape(text)?;
    let mut rest = bytes.as_slice();
    while let Some((&(first, _), after)) = rest.split_first() {
        match after {
            [(b'-', false), (last, _), after @ ..] => {
                mark(&mut class, first..=*last);
                rest = after;
            }
            _ => {
                mark(&mut class, first..=first);
                rest = after;
            }
        }
    }
    Ok(class.map(|member| member != negated))
}

/// The bytes of a literal or a class, each with whether it was escaped.
fn unescape(text: &str) -> Result<Vec<(u8, bool)>, GrammarError> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push((byte, false));
            continue;
        }
        let (&escaped, after) = rest.split_first().ok_or_else(|| invalid("a text ends with a backslash"))?;
        rest = after;
        let value = match escaped {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let (digits, after) = rest.split_at_checked(2).ok_or_else(|| invalid("\\x needs two digits"))?;
                rest = after;
                let digits = std::str::from_utf8(digits).unwrap_or_default();
                u8::from_str_radix(digits, 16).map_err(|_| invalid(format!("\\x{digits} is not a byte")))?
            }
            other => other,
        };
        bytes.push((value, true));
    }
    Ok(bytes)
}

/// An atom and how often it may come.
struct Item<'t> {
    atom: &'t str,
    repeat: Option<char>,
}

/// The items up to `|`, a closing bracket or the end, and what follows them.
fn split_items(mut text: &str) -> Result<(Vec<Item<'_>>, &str), GrammarError> {
    let mut items = Vec::new();
    loop {
        text = text.trim_start();
        if text.is_empty() || text.starts_with(['|', ')']) {
            return Ok((items, text));
        }
        let len = atom_len(text).filter(|&len| len > 0).ok_or_else(|| invalid(format!("cannot read: {text}")))?;
        let (atom, rest) = text.split_at_checked(len).ok_or_else(|| invalid(format!("cannot read: {text}")))?;
        let repeat = rest.chars().next().filter(|char| matches!(char, '*' | '+' | '?'));
        text = rest.strip_prefix(['*', '+', '?']).unwrap_or(rest);
        items.push(Item { atom, repeat });
    }
}

/// Bytes of the literal, class, group or name at the start of a text; `None` if it does not end.
fn atom_len(text: &str) -> Option<usize> {
    let close = match text.chars().next()? {
        '"' => '"',
        '[' => ']',
        '(' => ')',
        _ => {
            return text
                .find(|char: char| !char.is_ascii_alphanumeric() && char != '-' && char != '_')
                .or(Some(text.len()));
        }
    };
    let mut chars = text.char_indices().skip(1);
    let mut depth = 1;
    let mut quote = None;
    while let Some((at, char)) = chars.next() {
        match (char, quote) {
            ('\\', _) => {
                chars.next();
            }
            (char, Some(end)) if char == end => quote = None,
            (_, Some(_)) => {}
            ('"', None) if close == ')' => quote = Some('"'),
            ('[', None) if close == ')' => quote = Some(']'),
            ('(', None) if close == ')' => depth += 1,
            (char, None) if char == close => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + char.len_utf8());
                }
            }
            _ => {}
        }
    }
    None
}
