//! Other indexes that drafts could be found with, to compare: a suffix automaton and a suffix array.
//!
//! Used by the benchmark of drafts alone. Neither can forget a row: one that is evicted means building them again.

use poncho_engine::draft::ngrams::{BARRIER, LONGEST_MATCH, SHORT};
use poncho_engine::draft::{Draft, Source};

/// A place in an automaton: the state of the longest suffix that was seen, and its length.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    state: u32,
    length: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    length: u32,
    link: Option<u32>,
    /// Where it ended last.
    end: u32,
}

/// All substrings of a growing list of tokens.
#[derive(Debug, Default)]
pub(crate) struct SuffixAutomaton {
    tokens: Vec<u32>,
    states: Vec<State>,
    /// For each state the tokens that lead on, sorted, and where to.
    edges: Vec<Vec<(u32, u32)>>,
    last: u32,
    /// The longest suffix of the list that stands in it before.
    before: Place,
}

impl SuffixAutomaton {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.tokens.capacity() * 4 + self.states.capacity() * size_of::<State>() + self.edge_bytes()
    }

    fn edge_bytes(&self) -> usize {
        let edges: usize = self.edges.iter().map(Vec::capacity).sum();
        edges * 8 + self.edges.capacity() * size_of::<Vec<(u32, u32)>>()
    }

    fn edge(&self, state: u32, token: u32) -> Option<u32> {
        let edges = self.edges.get(state as usize)?;
        edges.binary_search_by_key(&token, |edge| edge.0).ok().map(|place| edges[place].1)
    }

    fn set_edge(&mut self, state: u32, token: u32, to: u32) {
        let edges = &mut self.edges[state as usize];
        match edges.binary_search_by_key(&token, |edge| edge.0) {
            Ok(place) => edges[place].1 = to,
            Err(place) => edges.insert(place, (token, to)),
        }
    }

    pub(crate) fn start(&self) -> Place {
        Place::default()
    }

    /// Moves a place on by a token.
    pub(crate) fn follow(&self, place: &mut Place, token: u32) {
        loop {
            if let Some(next) = self.edge(place.state, token) {
                *place = Place { state: next, length: place.length + 1 };
                return;
            }
            let Some(link) = self.states.get(place.state as usize).and_then(|state| state.link) else {
                *place = Place::default();
                return;
            };
            *place = Place { state: link, length: self.states[link as usize].length as usize };
        }
    }

    pub(crate) fn push(&mut self, token: u32) {
        if self.states.is_empty() {
            self.states.push(State::default());
            self.edges.push(Vec::new());
        }
        let mut before = self.before;
        self.follow(&mut before, token);
        self.before = before;
        let end = u32::try_from(self.tokens.len()).unwrap();
        self.tokens.push(token);
        let new = u32::try_from(self.states.len()).unwrap();
        self.states.push(State { length: self.states[self.last as usize].length + 1, link: Some(0), end });
        self.edges.push(Vec::new());
        let mut at = Some(self.last);
        while let Some(state) = at.filter(|state| self.edge(*state, token).is_none()) {
            self.set_edge(state, token, new);
            at = self.states[state as usize].link;
        }
        if let Some((state, next)) = at.and_then(|state| Some((state, self.edge(state, token)?))) {
            let length = self.states[state as usize].length + 1;
            if self.states[next as usize].length == length {
                self.states[new as usize].link = Some(next);
            } else {
                let copy = u32::try_from(self.states.len()).unwrap();
                self.states.push(State { length, ..self.states[next as usize] });
                self.edges.push(self.edges[next as usize].clone());
                let mut at = Some(state);
                while let Some(state) = at.filter(|state| self.edge(*state, token) == Some(next)) {
                    self.set_edge(state, token, copy);
                    at = self.states[state as usize].link;
                }
                self.states[next as usize].link = Some(copy);
                self.states[new as usize].link = Some(copy);
            }
        }
        self.last = new;
        // The latest end of the suffixes, as far as it is worth the time.
        let mut at = self.states[new as usize].link;
        for _ in 0..16 {
            let Some(state) = at else { break };
            self.states[state as usize].end = end;
            at = self.states[state as usize].link;
        }
    }

    /// Adds a row, without what the automaton has of it.
    pub(crate) fn add_new(&mut self, tokens: &[u32]) {
        let mut text = std::mem::take(&mut self.tokens);
        let before = text.len();
        append_new(&mut text, tokens);
        let new = text.split_off(before);
        self.tokens = text;
        new.into_iter().for_each(|token| self.push(token));
    }

    pub(crate) fn draft(&self, most: usize) -> Option<Draft> {
        self.guess(&self.before, most, Source::Context)
    }

    pub(crate) fn draft_at(&self, place: &Place, most: usize) -> Option<Draft> {
        self.guess(place, most, Source::Stored)
    }

    fn guess(&self, place: &Place, most: usize, source: Source) -> Option<Draft> {
        let state = self.states.get(place.state as usize).filter(|_| place.length >= SHORT)?;
        let next = self.tokens.iter().skip(state.end as usize + 1).take(most);
        let tokens: Vec<u32> = next.copied().take_while(|token| *token != BARRIER).collect();
        (!tokens.is_empty()).then_some(Draft { tokens, matched: place.length.min(LONGEST_MATCH), source })
    }
}

/// Appends what a row has beyond its longest common beginning with one that is there, and a barrier.
pub(crate) fn append_new(text: &mut Vec<u32>, tokens: &[u32]) {
    let mut known = 0;
    for row in text.split(|token| *token == BARRIER) {
        known = known.max(row.iter().zip(tokens).take_while(|(one, two)| one == two).count());
    }
    text.extend(tokens.iter().skip(known.saturating_sub(LONGEST_MATCH)));
    text.push(BARRIER);
}

/// All suffixes of a list, sorted by the tokens before each position, backwards.
#[derive(Debug, Default)]
pub(crate) struct SuffixArray {
    tokens: Vec<u32>,
    /// Positions by the tokens before them.
    order: Vec<u32>,
}

impl SuffixArray {
    pub(crate) fn new(tokens: Vec<u32>) -> Self {
        let mut order: Vec<u32> = (1..u32::try_from(tokens.len()).unwrap()).collect();
        order.sort_by(|one, two| backwards(&tokens[..*one as usize]).cmp(backwards(&tokens[..*two as usize])));
        Self { tokens, order }
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        (self.tokens.capacity() + self.order.capacity()) * 4
    }

    pub(crate) fn draft(&self, tokens: &[u32], most: usize) -> Option<Draft> {
        let place = self.order.partition_point(|at| backwards(&self.tokens[..*at as usize]).lt(backwards(tokens)));
        let length = |at: u32| {
            let pairs = backwards(&self.tokens[..at as usize]).zip(backwards(tokens));
            pairs.take_while(|(one, two)| one == two).count()
        };
        let near = self.order.iter().skip(place.saturating_sub(4)).take(8);
        let (matched, at) = near.map(|at| (length(*at), *at)).max()?;
        let next = self.tokens.iter().skip(at as usize).take(most);
        let tokens: Vec<u32> = next.copied().take_while(|token| *token != BARRIER).collect();
        (matched >= SHORT && !tokens.is_empty()).then_some(Draft { tokens, matched, source: Source::Stored })
    }
}

fn backwards(tokens: &[u32]) -> impl Iterator<Item = &u32> {
    tokens.iter().rev().take(LONGEST_MATCH)
}
