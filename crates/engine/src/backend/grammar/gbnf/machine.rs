//! Which characters may follow: the ways through a grammar, all at once, with every step counted.
//!
//! A way is what is still to come, as a list of places in rules that share their tails. A state is the set of ways that
//! fit what was written; states and the steps between them are remembered, so that asking about a whole vocabulary costs
//! little more than walking its characters. Each new step costs work. Tokens earn work, and what is saved up is bounded:
//! a grammar that wants more ends its own request, and others never wait long for it. The same questions in the same
//! order cost the same on every machine.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::limits::{MOST_NODES, MOST_STATES, MOST_WAYS, MOST_WORK, WORK_PER_TOKEN};
use super::text::{Characters, PartialCharacter};
use super::{Element, Gbnf};
use crate::backend::{GrammarError, Token};

/// A state, as long as the machine is not told to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StateId(u32);

/// The state without a way.
const DEAD: StateId = StateId(0);
/// The way that is complete.
const COMPLETE: u32 = 0;
/// A step that was not computed yet.
const UNKNOWN: StateId = StateId(u32::MAX);

/// A state takes memory whatever is in it, and so does the table of its steps.
const COST_OF_STATE: usize = 8;
const COST_OF_STEPS: usize = 32;

/// A place in a rule, and the way that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    place: u32,
    then: u32,
}

/// Characters that lead to the same state.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    first: u32,
    last: u32,
    to: StateId,
}

#[derive(Clone, Debug)]
struct MachineState {
    /// Sorted; each begins with a character or a token, or is complete.
    ways: Arc<[u32]>,
    has_tokens: bool,
    /// The steps from here, sorted; `None` until the first question.
    steps: Option<Vec<Stretch>>,
    /// The same for ASCII, by character.
    ascii: Vec<StateId>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    grammar: Arc<Gbnf>,
    nodes: Vec<Node>,
    node_ids: HashMap<Node, u32>,
    states: Vec<MachineState>,
    state_ids: HashMap<Arc<[u32]>, StateId>,
    start: StateId,
    /// What may still be spent.
    work: u64,
    /// Scratch.
    open: Vec<u32>,
    seen: HashSet<u32>,
}

impl Machine {
    /// The machine before the first character.
    pub(crate) fn new(grammar: Arc<Gbnf>) -> Result<Self, GrammarError> {
        let mut machine = Self {
            grammar,
            nodes: Vec::new(),
            node_ids: HashMap::new(),
            states: Vec::new(),
            state_ids: HashMap::new(),
            start: DEAD,
            work: MOST_WORK,
            open: Vec::new(),
            seen: HashSet::new(),
        };
        machine.clear();
        let grammar = Arc::clone(&machine.grammar);
        let mut ways = Vec::new();
        machine.seen.clear();
        for &place in grammar.alternatives(grammar.root()) {
            let way = machine.step_to(place, COMPLETE);
            machine.close(way, &mut ways)?;
        }
        machine.start = machine.state(ways)?;
        Ok(machine)
    }

    /// The state before the first character.
    pub(crate) fn start(&self) -> StateId {
        self.start
    }

    /// A token was accepted: it earns work for the next one.
    pub(crate) fn earn(&mut self) {
        self.work = self.work.saturating_add(WORK_PER_TOKEN).min(MOST_WORK);
    }

    /// What was spent of the work that may be saved up.
    #[cfg(test)]
    pub(crate) fn spent(&self) -> u64 {
        MOST_WORK - self.work
    }

    /// Whether what was written is complete.
    pub(crate) fn is_complete(&self, state: StateId) -> bool {
        self.ways(state).first() == Some(&COMPLETE)
    }

    /// Whether no continuation is left.
    pub(crate) fn is_dead(state: StateId) -> bool {
        state == DEAD
    }

    /// Whether a token fits here; `text` has its characters.
    pub(crate) fn allows(&mut self, from: StateId, token: Token, text: &Characters) -> Result<bool, GrammarError> {
        let mut state = from;
        for &character in text.list.iter().take_while(|character| **character != 0) {
            if self.has_tokens(state) && self.ways(state).iter().any(|way| self.is_token(*way, token)) {
                return Ok(true);
            }
            state = self.after(state, character)?;
            if state == DEAD {
                return Ok(false);
            }
        }
        if text.rest.is_whole() {
            return Ok(true);
        }
        self.may_begin(state, text.rest)
    }

    /// The state after a token; dead if it does not fit.
    pub(crate) fn accept(&mut self, from: StateId, token: Token, text: &Characters) -> Result<StateId, GrammarError> {
        let waiting = self.ways_of(from);
        let mut state = from;
        for &character in &text.list {
            state = self.after(state, character)?;
        }
        let mut ways = self.ways(state).to_vec();
        if text.list.is_empty() {
            // Only a beginning of a character: what is complete without it, or waits for a token, does not go on.
            ways.retain(|way| matches!(self.first(*way), Some(Element::Character(_))));
        } else if !self.has_tokens(from) {
            return Ok(state);
        }
        // Ways that wait for a token take it whole.
        let taking: Vec<u32> = waiting.iter().copied().filter(|way| self.is_token(*way, token)).collect();
        self.seen.clear();
        for node in taking.into_iter().filter_map(|way| self.node(way)).collect::<Vec<_>>() {
            let next = self.step_to(node.place + 1, node.then);
            self.close(next, &mut ways)?;
        }
        self.state(ways)
    }

    /// Forgets remembered states if there are too many; only `keep` stays valid, under its new name.
    pub(crate) fn tidy(&mut self, keep: StateId) -> Result<StateId, GrammarError> {
        if self.nodes.len() < MOST_NODES && self.states.len() < MOST_STATES {
            return Ok(keep);
        }
        let (kept, start) = (self.ways_of(keep), self.ways_of(self.start));
        let nodes = std::mem::take(&mut self.nodes);
        self.clear();
        let mut moved = HashMap::from([(COMPLETE, COMPLETE)]);
        self.start = self.carry(&start, &nodes, &mut moved)?;
        self.carry(&kept, &nodes, &mut moved)
    }

    fn carry(&mut self, ways: &[u32], from: &[Node], moved: &mut HashMap<u32, u32>) -> Result<StateId, GrammarError> {
        let mut carried = Vec::with_capacity(ways.len());
        for &way in ways {
            // From the end of the way to its beginning, so that each node finds the one that follows it.
            let mut path = Vec::new();
            let mut at = way;
            while !moved.contains_key(&at) {
                let Some(node) = usize::try_from(at).ok().and_then(|at| from.get(at)) else { break };
                path.push((at, *node));
                at = node.then;
            }
            while let Some((old, node)) = path.pop() {
                let then = moved.get(&node.then).copied().unwrap_or(COMPLETE);
                let new = self.intern(Node { place: node.place, then });
                moved.insert(old, new);
            }
            carried.extend(moved.get(&way));
        }
        self.state(carried)
    }

    fn clear(&mut self) {
        // The first node stands for the complete way, the first state for none at all.
        self.nodes = vec![Node { place: u32::MAX, then: COMPLETE }];
        self.node_ids.clear();
        self.states.clear();
        self.state_ids.clear();
        let none: Arc<[u32]> = Arc::from([]);
        self.states.push(MachineState { ways: Arc::clone(&none), has_tokens: false, steps: None, ascii: Vec::new() });
        self.state_ids.insert(none, DEAD);
    }

    fn spend(&mut self, units: usize) -> Result<(), GrammarError> {
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        self.work = self.work.checked_sub(units).ok_or(GrammarError::TooCostly)?;
        Ok(())
    }

    fn node(&self, way: u32) -> Option<Node> {
        usize::try_from(way).ok().and_then(|way| self.nodes.get(way)).copied().filter(|_| way != COMPLETE)
    }

    fn first(&self, way: u32) -> Option<Element> {
        self.node(way).map(|node| self.grammar.element(node.place))
    }

    fn is_token(&self, way: u32, token: Token) -> bool {
        match self.first(way) {
            Some(Element::Token(wanted)) => wanted == token,
            Some(Element::OtherToken(unwanted)) => unwanted != token,
            _ => false,
        }
    }

    fn stored(&self, state: StateId) -> Option<&MachineState> {
        self.states.get(usize::try_from(state.0).ok()?)
    }

    fn ways(&self, state: StateId) -> &[u32] {
        self.stored(state).map_or(&[], |state| &state.ways)
    }

    fn ways_of(&self, state: StateId) -> Arc<[u32]> {
        self.stored(state).map_or_else(|| Arc::from([]), |state| Arc::clone(&state.ways))
    }

    fn has_tokens(&self, state: StateId) -> bool {
        self.stored(state).is_some_and(|state| state.has_tokens)
    }

    fn intern(&mut self, node: Node) -> u32 {
        if let Some(id) = self.node_ids.get(&node) {
            return *id;
        }
        let id = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.push(node);
        self.node_ids.insert(node, id);
        id
    }

    /// The way from a place on, which is only what follows if nothing stands there.
    fn step_to(&mut self, place: u32, then: u32) -> u32 {
        if self.grammar.element(place).is_end() { then } else { self.intern(Node { place, then }) }
    }

    /// Opens rules until every way begins with a character or a token, or is complete. What was seen is kept by the
    /// caller: ways that meet are followed once.
    fn close(&mut self, way: u32, out: &mut Vec<u32>) -> Result<(), GrammarError> {
        let grammar = Arc::clone(&self.grammar);
        self.open.push(way);
        while let Some(way) = self.open.pop() {
            if !self.seen.insert(way) {
                continue;
            }
            match self.node(way).map(|node| (node, grammar.element(node.place))) {
                Some((node, Element::Rule(rule))) => {
                    if let Err(error) = self.spend(1 + grammar.alternatives(rule).len()) {
                        self.open.clear();
                        return Err(error);
                    }
                    let then = self.step_to(node.place + 1, node.then);
                    for &place in grammar.alternatives(rule) {
                        let next = self.step_to(place, then);
                        self.open.push(next);
                    }
                }
                _ => out.push(way),
            }
        }
        Ok(())
    }

    fn state(&mut self, mut ways: Vec<u32>) -> Result<StateId, GrammarError> {
        ways.sort_unstable();
        ways.dedup();
        if ways.len() > MOST_WAYS {
            return Err(GrammarError::TooCostly);
        }
        if let Some(state) = self.state_ids.get(ways.as_slice()) {
            return Ok(*state);
        }
        self.spend(COST_OF_STATE + ways.len())?;
        let id = StateId(u32::try_from(self.states.len()).unwrap_or(u32::MAX));
        let is_token = |way: &u32| matches!(self.first(*way), Some(Element::Token(_) | Element::OtherToken(_)));
        let has_tokens = ways.iter().any(is_token);
        let ways: Arc<[u32]> = Arc::from(ways);
        self.states.push(MachineState { ways: Arc::clone(&ways), has_tokens, steps: None, ascii: Vec::new() });
        self.state_ids.insert(ways, id);
        Ok(id)
    }

    /// The state after a character.
    fn after(&mut self, state: StateId, character: u32) -> Result<StateId, GrammarError> {
        let at = usize::try_from(state.0).unwrap_or(usize::MAX);
        let ascii = usize::try_from(character).ok().filter(|character| *character < 128);
        let Some(stored) = self.states.get(at) else { return Ok(DEAD) };
        let known = ascii.and_then(|place| stored.ascii.get(place)).copied();
        if let Some(known) = known.filter(|known| *known != UNKNOWN) {
            return Ok(known);
        }
        if stored.steps.is_none() {
            let steps = self.stretches(state)?;
            if let Some(stored) = self.states.get_mut(at) {
                stored.steps = Some(steps);
                stored.ascii = vec![UNKNOWN; 128];
            }
        }
        let steps = self.states.get(at).and_then(|stored| stored.steps.as_deref()).unwrap_or_default();
        let place = steps.partition_point(|stretch| stretch.first <= character).checked_sub(1);
        let stretch = place.and_then(|place| steps.get(place)).filter(|stretch| character <= stretch.last).copied();
        let to = match stretch {
            None => DEAD,
            Some(stretch) if stretch.to != UNKNOWN => stretch.to,
            Some(_) => self.compute(state, character)?,
        };
        if let Some(stored) = self.states.get_mut(at) {
            if let Some(known) = ascii.and_then(|place| stored.ascii.get_mut(place)) {
                *known = to;
            }
            let steps = stored.steps.as_mut();
            if let Some(stretch) = steps.and_then(|steps| place.and_then(|place| steps.get_mut(place)))
                && character <= stretch.last
            {
                stretch.to = to;
            }
        }
        Ok(to)
    }

    /// The characters that lead on from a state, cut where ways begin or cease to take them.
    fn stretches(&mut self, state: StateId) -> Result<Vec<Stretch>, GrammarError> {
        let grammar = Arc::clone(&self.grammar);
        // Where ways come and where they go, the second one past their last character.
        let mut borders: Vec<(u64, i64)> = Vec::new();
        let ways = self.ways_of(state);
        for &way in ways.iter() {
            let Some(Element::Character(class)) = self.first(way) else { continue };
            for &(low, high) in grammar.class(class).map_or(&[][..], |class| class.ranges()) {
                borders.push((u64::from(low), 1));
                borders.push((u64::from(high) + 1, -1));
            }
        }
        self.spend(COST_OF_STEPS + ways.len() + borders.len())?;
        borders.sort_unstable();
        let mut stretches: Vec<Stretch> = Vec::new();
        let (mut open, mut from) = (0i64, 0u64);
        for (at, change) in borders {
            let last = at.checked_sub(1).and_then(|last| u32::try_from(last).ok());
            if let (true, Some(last), Ok(first)) = (open > 0 && at > from, last, u32::try_from(from)) {
                stretches.push(Stretch { first, last, to: UNKNOWN });
            }
            open += change;
            from = at;
        }
        Ok(stretches)
    }

    fn compute(&mut self, state: StateId, character: u32) -> Result<StateId, GrammarError> {
        let grammar = Arc::clone(&self.grammar);
        let ways = self.ways_of(state);
        self.spend(ways.len())?;
        let mut next = Vec::new();
        self.seen.clear();
        for &way in ways.iter() {
            let Some(node) = self.node(way) else { continue };
            let Element::Character(class) = grammar.element(node.place) else { continue };
            if grammar.class(class).is_some_and(|class| class.takes(character)) {
                let way = self.step_to(node.place + 1, node.then);
                self.close(way, &mut next)?;
                if next.len() > MOST_WAYS {
                    return Err(GrammarError::TooCostly);
                }
            }
        }
        self.state(next)
    }

    /// Whether a character of which only the beginning is known may follow.
    fn may_begin(&mut self, state: StateId, begun: PartialCharacter) -> Result<bool, GrammarError> {
        let ways = self.ways_of(state);
        self.spend(ways.len().div_ceil(8))?;
        Ok(ways.iter().any(|way| match self.first(*way) {
            Some(Element::Character(class)) => self.grammar.class(class).is_some_and(|class| class.may_take(begun)),
            _ => false,
        }))
    }
}
