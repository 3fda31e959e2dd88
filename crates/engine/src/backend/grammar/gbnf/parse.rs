//! From a grammar's text to rules.
//!
//! Called when a grammar is made, with a text that may come from a client. It takes what llama.cpp's parser takes.
//! Repetitions are written out as rules, each chain of optional repetitions once however often it is used. Every refusal
//! says what is wrong and where; a text that is larger than the limits allow is refused before memory is spent on it.

use std::collections::HashMap;

use super::class::Class;
use super::limits::{DEEPEST_GROUP, MOST_ELEMENTS, MOST_REPETITIONS, MOST_RULES, MOST_TEXT};
use super::recursion::find_left_recursion;
use super::{Element, invalid};
use crate::backend::{GrammarError, Token};

/// Looks up a token that a grammar names by its text.
pub(super) type TokenNames<'a> = &'a dyn Fn(&str) -> Option<Token>;

/// The rules of a grammar.
#[derive(Debug)]
pub(crate) struct Gbnf {
    elements: Vec<Element>,
    /// Where the alternatives of each rule begin.
    rules: Vec<Vec<u32>>,
    classes: Vec<Class>,
    root: u32,
}

impl Gbnf {
    /// Reads a text that starts from the rule `root`.
    pub(crate) fn parse(text: &str, root: &str, token_names: TokenNames<'_>) -> Result<Self, GrammarError> {
        if text.len() > MOST_TEXT {
            return Err(invalid(format!("the text has {} bytes and may have {MOST_TEXT}", text.len())));
        }
        let mut parser = Parser {
            bytes: text.as_bytes(),
            at: 0,
            names: HashMap::new(),
            rules: Vec::new(),
            elements: 0,
            classes: Vec::new(),
            class_ids: HashMap::new(),
            repeated: HashMap::new(),
            token_names,
        };
        parser.grammar()?;
        let start = parser.names.get(root.as_bytes()).copied();
        let start = start.ok_or_else(|| invalid(format!("there is no rule {root:?} to start from")))?;
        parser.check_names()?;
        let Parser { rules, classes, .. } = parser;
        find_left_recursion(&rules)?;
        Ok(Self::flatten(&rules, classes, start))
    }

    fn flatten(rules: &[Vec<Element>], classes: Vec<Class>, root: u32) -> Self {
        let mut elements = Vec::with_capacity(rules.iter().map(Vec::len).sum());
        let starts = rules.iter().map(|rule| {
            let mut starts = vec![number(elements.len())];
            for (place, element) in rule.iter().enumerate() {
                if *element == Element::Or {
                    starts.push(number(elements.len() + place + 1));
                }
            }
            elements.extend_from_slice(rule);
            starts
        });
        let rules = starts.collect();
        Self { elements, rules, classes, root }
    }

    /// The step at a place; a place that does not exist ends the rule.
    pub(super) fn element(&self, place: u32) -> Element {
        usize::try_from(place).ok().and_then(|place| self.elements.get(place)).copied().unwrap_or(Element::End)
    }

    /// Where the alternatives of a rule begin.
    pub(super) fn alternatives(&self, rule: u32) -> &[u32] {
        usize::try_from(rule).ok().and_then(|rule| self.rules.get(rule)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn class(&self, class: u32) -> Option<&Class> {
        self.classes.get(usize::try_from(class).ok()?)
    }

    pub(super) fn root(&self) -> u32 {
        self.root
    }
}

/// Counts are bounded far below 32 bits.
fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A stretch of steps and how often it may still come; `None` without an end.
type Repeated = (Vec<Element>, Option<u64>);

struct Parser<'t> {
    bytes: &'t [u8],
    at: usize,
    names: HashMap<&'t [u8], u32>,
    /// Empty until it is defined.
    rules: Vec<Vec<Element>>,
    elements: usize,
    classes: Vec<Class>,
    class_ids: HashMap<Class, u32>,
    repeated: HashMap<Repeated, u32>,
    token_names: TokenNames<'t>,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn ahead(&self, by: usize) -> Option<u8> {
        self.bytes.get(self.at + by).copied()
    }

    fn wrong(&self, what: &str) -> GrammarError {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let rest: String = String::from_utf8_lossy(rest.get(..40).unwrap_or(rest)).into_owned();
        let line = 1 + self.bytes.get(..self.at).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count();
        invalid(format!("{what} in line {line} before {rest:?}"))
    }

    fn space(&mut self, newlines: bool) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => self.at += 1,
                b'\r' | b'\n' if newlines => self.at += 1,
                b'#' => {
                    while self.peek().is_some_and(|byte| byte != b'\r' && byte != b'\n') {
                        self.at += 1;
                    }
                }
                _ => break,
            }
        }
    }

    fn grammar(&mut self) -> Result<(), GrammarError> {
        self.space(true);
        while self.peek().is_some() {
            self.rule()?;
        }
        if self.rules.is_empty() { Err(invalid("the text has no rule")) } else { Ok(()) }
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let name = self.name()?;
        self.space(false);
        let rule = self.named(name)?;
        if self.bytes.get(self.at..self.at + 3) != Some(b"::=") {
            return Err(self.wrong("\"::=\" is missing"));
        }
        self.at += 3;
        self.space(true);
        self.alternatives(rule, 0)?;
        match self.peek() {
            Some(b'\r') => self.at += if self.ahead(1) == Some(b'\n') { 2 } else { 1 },
            Some(b'\n') => self.at += 1,
            None => {}
            Some(_) => return Err(self.wrong("a rule does not end")),
        }
        self.space(true);
        Ok(())
    }

    fn name(&mut self) -> Result<&'t [u8], GrammarError> {
        let start = self.at;
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        match self.bytes.get(start..self.at) {
            Some(name) if !name.is_empty() => Ok(name),
            _ => Err(self.wrong("a name is missing")),
        }
    }

    fn named(&mut self, name: &'t [u8]) -> Result<u32, GrammarError> {
        if let Some(rule) = self.names.get(name) {
            return Ok(*rule);
        }
        let rule = self.new_rule()?;
        self.names.insert(name, rule);
        Ok(rule)
    }

    fn new_rule(&mut self) -> Result<u32, GrammarError> {
        if self.rules.len() >= MOST_RULES {
            let what = format!("the grammar has more than {MOST_RULES} rules, with its groups and repetitions");
            return Err(self.wrong(&what));
        }
        self.rules.push(Vec::new());
        Ok(number(self.rules.len() - 1))
    }

    fn define(&mut self, rule: u32, elements: Vec<Element>) {
        if let Some(place) = usize::try_from(rule).ok().and_then(|rule| self.rules.get_mut(rule)) {
            *place = elements;
        }
    }

    /// Counts steps before they are made.
    fn spend(&mut self, count: usize) -> Result<(), GrammarError> {
        self.elements = self.elements.saturating_add(count);
        if self.elements <= MOST_ELEMENTS {
            return Ok(());
        }
        Err(self
            .wrong(&format!("the grammar has more than {MOST_ELEMENTS} steps when its repetitions are written out")))
    }

    fn push(&mut self, rule: &mut Vec<Element>, element: Element) -> Result<(), GrammarError> {
        self.spend(1)?;
        rule.push(element);
        Ok(())
    }

    fn alternatives(&mut self, rule: u32, depth: usize) -> Result<(), GrammarError> {
        let mut elements = Vec::new();
        self.sequence(&mut elements, depth)?;
        while self.peek() == Some(b'|') {
            self.push(&mut elements, Element::Or)?;
            self.at += 1;
            self.space(true);
            self.sequence(&mut elements, depth)?;
        }
        self.push(&mut elements, Element::End)?;
        self.define(rule, elements);
        Ok(())
    }

    fn sequence(&mut self, rule: &mut Vec<Element>, depth: usize) -> Result<(), GrammarError> {
        let nested = depth > 0;
        let mut last = rule.len();
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.at += 1;
                    last = rule.len();
                    self.literal(rule)?;
                }
                b'[' => {
                    self.at += 1;
                    last = rule.len();
                    self.brackets(rule)?;
                }
                b'<' | b'!' => {
                    last = rule.len();
                    self.token(rule)?;
                }
                b'(' => {
                    if depth >= DEEPEST_GROUP {
                        return Err(self.wrong(&format!("groups nest more than {DEEPEST_GROUP} deep")));
                    }
                    self.at += 1;
                    self.space(true);
                    let group = self.new_rule()?;
                    self.alternatives(group, depth + 1)?;
                    last = rule.len();
                    self.push(rule, Element::Rule(group))?;
                    if self.peek() != Some(b')') {
                        return Err(self.wrong("a group does not end"));
                    }
                    self.at += 1;
                }
                b'.' => {
                    self.at += 1;
                    last = rule.len();
                    self.character(rule, Class::any())?;
                }
                b'*' | b'+' | b'?' => {
                    self.at += 1;
                    let (low, high) = match byte {
                        b'*' => (0, None),
                        b'+' => (1, None),
                        _ => (0, Some(1)),
                    };
                    self.repeat(rule, last, low, high)?;
                }
                b'{' => {
                    self.at += 1;
                    let (low, high) = self.counts(nested)?;
                    self.repeat(rule, last, low, high)?;
                }
                byte if is_name(byte) => {
                    let name = self.name()?;
                    let other = self.named(name)?;
                    last = rule.len();
                    self.push(rule, Element::Rule(other))?;
                }
                _ => break,
            }
            self.space(nested);
        }
        Ok(())
    }

    fn character(&mut self, rule: &mut Vec<Element>, class: Class) -> Result<(), GrammarError> {
        self.spend(class.ranges().len())?;
        let id = match self.class_ids.get(&class) {
            Some(id) => *id,
            None => {
                let id = number(self.classes.len());
                self.classes.push(class.clone());
                self.class_ids.insert(class, id);
                id
            }
        };
        self.push(rule, Element::Character(id))
    }

    fn literal(&mut self, rule: &mut Vec<Element>) -> Result<(), GrammarError> {
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) => {
                    let character = self.escaped()?;
                    self.character(rule, Class::new(vec![(character, character)], false))?;
                }
                None => return Err(self.wrong("a literal does not end")),
            }
        }
    }

    fn brackets(&mut self, rule: &mut Vec<Element>) -> Result<(), GrammarError> {
        let negated = self.peek() == Some(b'^');
        if negated {
            self.at += 1;
        }
        let mut ranges = Vec::new();
        loop {
            match self.peek() {
                Some(b']') => break,
                Some(_) => {
                    let low = self.escaped()?;
                    let mut high = low;
                    if self.peek() == Some(b'-') && self.ahead(1) != Some(b']') {
                        self.at += 1;
                        high = self.escaped()?;
                    }
                    ranges.push((low, high));
                }
                None => return Err(self.wrong("a bracket does not end")),
            }
        }
        self.at += 1;
        // Brackets with nothing inside stand for nothing.
        if ranges.is_empty() { Ok(()) } else { self.character(rule, Class::new(ranges, negated)) }
    }

    /// One character of a literal or of brackets.
    fn escaped(&mut self) -> Result<u32, GrammarError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.first() == Some(&b'\\') {
            let digits = match rest.get(1) {
                Some(b'x') => 2,
                Some(b'u') => 4,
                Some(b'U') => 8,
                Some(plain @ (b'\\' | b'"' | b'[' | b']' | b'-')) => {
                    self.at += 2;
                    return Ok(u32::from(*plain));
                }
                Some(letter @ (b't' | b'r' | b'n')) => {
                    self.at += 2;
                    return Ok(u32::from(match letter {
                        b't' => b'\t',
                        b'r' => b'\r',
                        _ => b'\n',
                    }));
                }
                _ => return Err(self.wrong("an escape is not known")),
            };
            let hex = rest.get(2..2 + digits).and_then(|hex| std::str::from_utf8(hex).ok());
            let hex = hex.filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let value = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
            let value = value.ok_or_else(|| self.wrong(&format!("an escape needs {digits} hexadecimal digits")))?;
            self.at += 2 + digits;
            return Ok(value);
        }
        let len = match rest.first() {
            Some(0..=0xbf) => 1,
            Some(0xc0..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xff) => 4,
            None => return Err(self.wrong("the text ends too early")),
        };
        let character = rest.get(..len).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let character = character.and_then(|text| text.chars().next());
        let character = character.ok_or_else(|| self.wrong("the text is not UTF-8"))?;
        self.at += len;
        Ok(u32::from(character))
    }

    fn token(&mut self, rule: &mut Vec<Element>) -> Result<(), GrammarError> {
        let negated = self.peek() == Some(b'!');
        if negated {
            self.at += 1;
        }
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.first() != Some(&b'<') {
            return Err(self.wrong("a token is missing"));
        }
        let by_number = rest.get(1) == Some(&b'[');
        let end = rest.iter().position(|byte| *byte == b'>').ok_or_else(|| self.wrong("a token does not end"))?;
        let text = rest.get(..=end).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default();
        let token = if by_number {
            text.strip_prefix("<[").and_then(|text| text.strip_suffix("]>")).and_then(|text| text.parse().ok())
        } else {
            (self.token_names)(text)
        };
        let token = token.ok_or_else(|| self.wrong("the model has no such token"))?;
        self.at += end + 1;
        self.push(rule, if negated { Element::OtherToken(token) } else { Element::Token(token) })
    }

    fn count(&mut self, nested: bool) -> Result<u64, GrammarError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        let digits = self.bytes.get(start..self.at).and_then(|digits| std::str::from_utf8(digits).ok());
        let count = digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| self.wrong("a number is missing"))?;
        self.space(nested);
        Ok(count)
    }

    /// What stands in braces, after the first of them.
    fn counts(&mut self, nested: bool) -> Result<(u64, Option<u64>), GrammarError> {
        self.space(nested);
        let low = self.count(nested)?;
        let mut high = Some(low);
        if self.peek() == Some(b',') {
            self.at += 1;
            self.space(nested);
            let bounded = self.peek().is_some_and(|byte| byte.is_ascii_digit());
            high = if bounded { Some(self.count(nested)?) } else { None };
        }
        if self.peek() != Some(b'}') {
            return Err(self.wrong("a repetition does not end"));
        }
        self.at += 1;
        if low > MOST_REPETITIONS {
            return Err(self.wrong(&format!("{low} repetitions are needed and {MOST_REPETITIONS} may be")));
        }
        Ok((low, high.filter(|high| *high <= MOST_REPETITIONS)))
    }

    /// Repeats what was just read: first the required copies, then a chain of optional ones.
    fn repeat(
        &mut self,
        rule: &mut Vec<Element>,
        last: usize,
        low: u64,
        high: Option<u64>,
    ) -> Result<(), GrammarError> {
        let item: Vec<Element> = rule.get(last..).unwrap_or_default().to_vec();
        if item.is_empty() {
            return Err(self.wrong("there is nothing to repeat"));
        }
        let copies = usize::try_from(low).unwrap_or(usize::MAX);
        self.spend(item.len().saturating_mul(copies))?;
        rule.truncate(last);
        for _ in 0..copies {
            rule.extend_from_slice(&item);
        }
        // An upper count below the lower one allows no more than the lower one asks for.
        let optional = high.map(|high| high.saturating_sub(low));
        if optional == Some(0) {
            return Ok(());
        }
        let chain = self.chain(item, optional)?;
        self.push(rule, Element::Rule(chain))
    }

    /// The rule for up to `count` times an item.
    fn chain(&mut self, item: Vec<Element>, count: Option<u64>) -> Result<u32, GrammarError> {
        let mut key = (item, count);
        if let Some(rule) = self.repeated.get(&key) {
            return Ok(*rule);
        }
        let Some(count) = count else {
            let rule = self.new_rule()?;
            let mut elements = key.0.clone();
            self.spend(elements.len() + 3)?;
            elements.extend([Element::Rule(rule), Element::Or, Element::End]);
            self.define(rule, elements);
            self.repeated.insert(key, rule);
            return Ok(rule);
        };
        let mut shorter: Option<u32> = None;
        for left in 1..=count {
            key.1 = Some(left);
            if let Some(known) = self.repeated.get(&key) {
                shorter = Some(*known);
                continue;
            }
            let rule = self.new_rule()?;
            let mut elements = key.0.clone();
            // The key keeps a copy.
            self.spend(2 * elements.len() + 3)?;
            elements.extend(shorter.map(Element::Rule));
            elements.extend([Element::Or, Element::End]);
            self.define(rule, elements);
            self.repeated.insert(key.clone(), rule);
            shorter = Some(rule);
        }
        shorter.ok_or_else(|| self.wrong("a repetition is empty"))
    }

    fn check_names(&self) -> Result<(), GrammarError> {
        let undefined = self.names.iter().find(|(_, rule)| {
            usize::try_from(**rule).ok().and_then(|rule| self.rules.get(rule)).is_none_or(Vec::is_empty)
        });
        match undefined {
            Some((name, _)) => Err(invalid(format!("the rule {:?} is not defined", String::from_utf8_lossy(name)))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
