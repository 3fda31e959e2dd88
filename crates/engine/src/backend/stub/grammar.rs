//! A grammar of the stub in progress: an automaton over bytes, at a set of places.
//!
//! Made by the stub's model, driven by a request's sampler like the real one. A token is allowed if its bytes lead
//! somewhere, an end token if the text is complete; a lazy grammar sleeps until one of its triggers is written. It must
//! never accept what it forbade.

use std::collections::BTreeSet;

use crate::backend::{Candidate, Grammar, GrammarError, GrammarOptions, GrammarTrigger, SpecialText, Token};

use super::gbnf::{RuleState, compile, invalid, literal_pattern};
use super::vocab;

/// A grammar in progress.
#[derive(Clone, Debug)]
pub(super) struct StubGrammar {
    states: Vec<RuleState>,
    start: BTreeSet<usize>,
    now: BTreeSet<usize>,
    stuck: bool,
    /// What wakes it, and the text written while it sleeps; `None` once it is awake.
    asleep: Option<Vec<u8>>,
    lazy: bool,
    trigger_tokens: Vec<Token>,
    trigger_texts: Vec<Vec<u8>>,
}

impl StubGrammar {
    pub(super) fn new(options: &GrammarOptions) -> Result<Self, GrammarError> {
        let root = if options.root.is_empty() { "root" } else { &options.root };
        let (states, entry) = compile(&options.text, root)?;
        let mut grammar = Self {
            states,
            start: BTreeSet::new(),
            now: BTreeSet::new(),
            stuck: false,
            asleep: None,
            lazy: options.lazy,
            trigger_tokens: Vec::new(),
            trigger_texts: Vec::new(),
        };
        for trigger in &options.triggers {
            match trigger {
                GrammarTrigger::Token(token) => grammar.trigger_tokens.push(*token),
                GrammarTrigger::Pattern(pattern) => grammar.trigger_texts.push(literal_pattern(pattern)?),
            }
        }
        if options.lazy && options.triggers.is_empty() {
            return Err(invalid("a lazy grammar needs a trigger"));
        }
        grammar.start = grammar.closure([entry]);
        grammar.reset();
        Ok(grammar)
    }

    /// Every place that can be reached from these without reading.
    fn closure(&self, from: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut open: Vec<usize> = from.into_iter().collect();
        while let Some(place) = open.pop() {
            if found.insert(place)
                && let Some(RuleState::Split(next)) = self.states.get(place)
            {
                open.extend(next);
            }
        }
        found
    }

    /// The places after some bytes; empty if they do not fit.
    fn after(&self, places: &BTreeSet<usize>, bytes: &[u8]) -> BTreeSet<usize> {
        let mut places = places.clone();
        for &byte in bytes {
            let next = places.iter().filter_map(|&place| match self.states.get(place) {
                Some(RuleState::Byte(class, next)) if class.get(usize::from(byte)) == Some(&true) => Some(*next),
                _ => None,
            });
            places = self.closure(next);
        }
        places
    }

    fn is_complete(&self) -> bool {
        self.now.iter().any(|&place| matches!(self.states.get(place), Some(RuleState::End)))
    }

    fn allows(&self, token: Token) -> bool {
        if self.asleep.is_some() {
            return true;
        }
        if vocab::is_eog(token) {
            return self.is_complete();
        }
        let bytes = text_of(token);
        !bytes.is_empty() && !self.after(&self.now, &bytes).is_empty()
    }

    /// Reads a token while asleep, and wakes up if it was told to.
    fn doze(&mut self, token: Token, mut written: Vec<u8>) -> Result<(), GrammarError> {
        let from = written.len();
        written.extend(text_of(token));
        let found = self.trigger_texts.iter().filter_map(|text| find(&written, text)).min();
        let woken = if self.trigger_tokens.contains(&token) { Some(from) } else { found };
        let Some(start) = woken else {
            self.asleep = Some(written);
            return Ok(());
        };
        // The text that wakes the grammar is the first that it must describe.
        self.now = self.after(&self.start, written.get(start..).unwrap_or_default());
        self.stuck = self.now.is_empty();
        if self.stuck { Err(GrammarError::Stuck) } else { Ok(()) }
    }
}

impl Grammar for StubGrammar {
    fn constrain(&mut self, candidates: &mut [Candidate]) -> Result<(), GrammarError> {
        if self.stuck {
            return Err(GrammarError::Stuck);
        }
        for candidate in candidates.iter_mut().filter(|candidate| !self.allows(candidate.token)) {
            candidate.logit = f32::NEG_INFINITY;
        }
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        if self.stuck || !self.allows(token) {
            self.stuck = true;
            return Err(GrammarError::Stuck);
        }
        if let Some(written) = self.asleep.take() {
            return self.doze(token, written);
        }
        if !vocab::is_eog(token) {
            self.now = self.after(&self.now, &text_of(token));
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.now.clone_from(&self.start);
        self.stuck = false;
        self.asleep = self.lazy.then(Vec::new);
    }

    fn duplicate(&self) -> Option<Box<dyn Grammar>> {
        Some(Box::new(self.clone()))
    }
}

fn text_of(token: Token) -> Vec<u8> {
    let mut bytes = Vec::new();
    vocab::token_bytes(token, SpecialText::Hide, &mut bytes);
    bytes
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len().max(1)).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::stub::schema::to_grammar;
    use crate::backend::stub::vocab::{EOS, IM_START, N_VOCAB, TOOL_OPEN};

    fn grammar(text: &str) -> StubGrammar {
        StubGrammar::new(&GrammarOptions { text: text.to_owned(), ..GrammarOptions::default() }).unwrap()
    }

    /// Whether the grammar takes the text, and whether it may end there.
    fn takes(grammar: &mut StubGrammar, text: &str) -> (bool, bool) {
        grammar.reset();
        let taken = text.bytes().all(|byte| grammar.accept(byte.into()).is_ok());
        (taken, taken && grammar.allows(EOS))
    }

    fn allowed(grammar: &mut StubGrammar) -> Vec<Token> {
        let mut all: Vec<Candidate> = (0..N_VOCAB).map(|token| Candidate { token, logit: 0.0, p: 0.0 }).collect();
        grammar.constrain(&mut all).unwrap();
        all.retain(|candidate| candidate.logit == 0.0);
        all.iter().map(|candidate| candidate.token).collect()
    }

    #[test]
    fn each_construct_means_what_it_says() {
        let cases: [(&str, &[&str], &[&str]); 7] = [
            ("root ::= [0-9]+", &["1", "42"], &["", "a", "4a"]),
            ("root ::= \"a\" (\"b\" | \"cd\")* \"e\"?", &["a", "ab", "acdbe", "ae"], &["b", "ac", "aee"]),
            ("root ::= x \" \" x\nx ::= [a-c]\n  | \"zz\"", &["a b", "zz c"], &["ab", "z z"]),
            ("root ::= [^a\\n]", &["b", "\""], &["a", "\n"]),
            ("root ::= \"\\\"(|\\x41\"", &["\"(|A"], &["\"(|B"]),
            ("# only this\nroot ::= [-az]", &["-", "a", "z"], &["b"]),
            ("root ::= (\"(\" [)] (\"x\" | \"y\"))+", &["()x", "()x()y"], &["()", "(x"]),
        ];
        for (text, good, bad) in cases {
            let mut grammar = grammar(text);
            for word in good {
                assert_eq!(takes(&mut grammar, word), (true, true), "{text} {word}");
            }
            for word in bad {
                assert!(!takes(&mut grammar, word).1, "{text} {word}");
            }
        }
    }

    #[test]
    fn only_what_fits_is_allowed_and_the_rest_sticks() {
        let mut grammar = grammar("root ::= \"ab\" [0-1]");
        assert_eq!(allowed(&mut grammar), [u32::from(b'a')]);
        grammar.accept(b'a'.into()).unwrap();
        let mut copy = grammar.duplicate().unwrap();
        assert_eq!(grammar.accept(b'x'.into()), Err(GrammarError::Stuck));
        assert_eq!(grammar.constrain(&mut []), Err(GrammarError::Stuck));
        copy.accept(b'b'.into()).unwrap();
        copy.accept(b'0'.into()).unwrap();
        assert_eq!(copy.accept(EOS), Ok(()));
        assert_eq!(copy.accept(b'0'.into()), Err(GrammarError::Stuck));
    }

    #[test]
    fn a_grammar_without_a_way_to_go_on_allows_nothing() {
        let mut grammar = grammar("root ::= \"a\" [^\\x00-\\xff]");
        grammar.accept(b'a'.into()).unwrap();
        assert!(allowed(&mut grammar).is_empty());
    }

    #[test]
    fn texts_that_are_not_understood_are_refused() {
        let refused = [
            "",
            "root ::= x",
            "root ::= \"a",
            "root ::= root",
            "root ::= (\"a\"",
            "root ::= \"a\")",
            "nonsense",
            "root ::= {",
        ];
        for text in refused {
            let options = GrammarOptions { text: text.to_owned(), ..GrammarOptions::default() };
            assert!(matches!(StubGrammar::new(&options), Err(GrammarError::Invalid { .. })), "{text}");
        }
    }

    #[test]
    fn a_lazy_grammar_sleeps_until_it_is_triggered() {
        let options = |text: &str, trigger| GrammarOptions {
            text: text.to_owned(),
            lazy: true,
            triggers: vec![trigger],
            ..GrammarOptions::default()
        };
        let mut by_text = StubGrammar::new(&options(
            "root ::= \"go\" [0-9]",
            GrammarTrigger::Pattern("[\\s\\S]*?(go)[\\s\\S]*".to_owned()),
        ))
        .unwrap();
        assert!(allowed(&mut by_text).contains(&IM_START), "asleep it allows everything");
        "let us go".bytes().for_each(|byte| by_text.accept(byte.into()).unwrap());
        assert_eq!(allowed(&mut by_text), (b'0'..=b'9').map(u32::from).collect::<Vec<_>>());
        let text = "root ::= \"<tool_call>\" [x]";
        let mut by_token = StubGrammar::new(&options(text, GrammarTrigger::Token(TOOL_OPEN))).unwrap();
        by_token.accept(b'a'.into()).unwrap();
        by_token.accept(TOOL_OPEN).unwrap();
        assert_eq!(allowed(&mut by_token), [u32::from(b'x')]);
        let regex = options("root ::= [x]", GrammarTrigger::Pattern("a+".to_owned()));
        assert!(matches!(StubGrammar::new(&regex), Err(GrammarError::Invalid { .. })));
    }

    #[test]
    fn a_schema_becomes_a_grammar_that_takes_its_values_only() {
        let schema = r#"{"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["x\\", true]},
            "t": {"type": "array", "items": {"type": "boolean"}}}}"#;
        let mut grammar = grammar(&to_grammar(schema).unwrap());
        assert_eq!(takes(&mut grammar, r#"{"n":-12,"s":"x\\","t":[true,false]}"#), (true, true));
        assert_eq!(takes(&mut grammar, r#"{"n":0,"s":true,"t":[]}"#), (true, true));
        assert!(!takes(&mut grammar, r#"{"n":01,"s":true,"t":[]}"#).0);
        assert!(!takes(&mut grammar, r#"{"n":1}"#).0);
        for bad in ["{", "{}", r#"{"type": "mystery"}"#] {
            assert!(matches!(to_grammar(bad), Err(GrammarError::BadSchema { .. })), "{bad}");
        }
    }
}
