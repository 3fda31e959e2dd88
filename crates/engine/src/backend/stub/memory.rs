//! What the stub remembers of a sequence, for each memory kind, and what of it can be taken away.
//!
//! Used by the stub's context. The layers are modelled as they are in llama.cpp: full attention keeps a cell for every
//! position, a windowed layer only the last ones, a recurrent layer one running value. What a token computes is a digest
//! of the token, its position, the adapters and everything its layers still hold, so a state that lacks something, or
//! holds another's, goes on differently from there. It must never be kinder than the real thing.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::{MemoryKind, Token};

use super::digest::{mix, mix_all};

/// How the layers of a model remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layers {
    /// The memory kind.
    pub(super) kind: MemoryKind,
    /// Whether windowed layers keep every position though they see only the last ones.
    pub(super) keep_all: bool,
    /// The model: where all digests start.
    pub(super) seed: u64,
}

impl Layers {
    fn has_full(self) -> bool {
        self.kind.has_segments() || self.kind == MemoryKind::None
    }

    fn window(self) -> Option<u32> {
        if let MemoryKind::Window { size } = self.kind { Some(size) } else { None }
    }

    fn is_recurrent(self) -> bool {
        matches!(self.kind, MemoryKind::Recurrent | MemoryKind::Hybrid)
    }
}

/// Counts the cells of a context that are in use.
#[derive(Debug, Default)]
pub(super) struct Pool(Arc<AtomicUsize>);

impl Pool {
    pub(super) fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self) -> Arc<CellCount> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Arc::new(CellCount(Arc::clone(&self.0)))
    }
}

/// A place in the pool. Sequences that share a cell share its place.
#[derive(Debug)]
struct CellCount(Arc<AtomicUsize>);

impl Drop for CellCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the full attention layers hold for one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// The position.
    pub(super) pos: u32,
    /// The token that was read there.
    pub(super) token: Token,
    /// What was computed there.
    pub(super) value: u64,
}

/// The memory of one sequence.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// Ascending by position.
    cells: Vec<Cell>,
    /// For each cell: the digest of all cells up to it.
    folds: Vec<u64>,
    places: Vec<Arc<CellCount>>,
    /// Position and value of what the windowed layers hold, ascending.
    window: VecDeque<(u32, u64)>,
    /// Position and value of the running state.
    running: Option<(u32, u64)>,
}

impl Sequence {
    /// Reads a token at the next position and returns what was computed there.
    pub(super) fn read(&mut self, token: Token, adapters: u64, layers: Layers, pool: &Pool) -> u64 {
        let pos = self.next_position(layers).unwrap_or_default();
        let full = self.folds.last().copied().unwrap_or_default();
        let running = self.running.map_or(0, |(at, value)| mix(value, at.into()));
        let visible = layers.window().map_or(0, |size| {
            let seen = self.window.iter().filter(|(at, _)| u64::from(*at) + u64::from(size) > u64::from(pos));
            seen.fold(1, |digest, &(at, value)| mix(mix(digest, at.into()), value))
        });
        let value = mix_all(&[layers.seed, adapters, token.into(), pos.into(), full, visible, running]);
        if layers.has_full() {
            self.push(Cell { pos, token, value }, pool);
        }
        if let Some(size) = layers.window() {
            self.window.push_back((pos, value));
            if !layers.keep_all {
                self.forget_masked(size);
            }
        }
        if layers.is_recurrent() {
            self.running = Some((pos, mix(running, value)));
        }
        value
    }

    /// The position that a next token must have; `None` if the layers disagree about it.
    pub(super) fn next_position(&self, layers: Layers) -> Option<u32> {
        let after = |last: Option<u32>| last.map_or(0, |last| last + 1);
        let full = self.cells.last().map(|cell| cell.pos);
        let other = match layers.kind {
            MemoryKind::Attention | MemoryKind::None => return Some(after(full)),
            MemoryKind::Recurrent => return Some(after(self.running.map(|(at, _)| at))),
            MemoryKind::Window { .. } => self.window.back().map(|&(at, _)| at),
            MemoryKind::Hybrid => self.running.map(|(at, _)| at),
        };
        // Layers that were emptied raise no objection in llama.cpp either: it goes on, and goes on wrong.
        (other.is_none() || other == full).then(|| after(full))
    }

    /// The smallest position, as llama.cpp reports it: that of the layers which hold the least.
    pub(super) fn pos_min(&self, layers: Layers) -> Option<u32> {
        let full = self.cells.first().map(|cell| cell.pos);
        let running = self.running.map(|(at, _)| at);
        match layers.kind {
            MemoryKind::Attention => full,
            MemoryKind::Window { .. } => self.window.front().map(|&(at, _)| at),
            MemoryKind::Recurrent => running,
            MemoryKind::Hybrid => full.zip(running).map(|(full, running)| full.max(running)),
            MemoryKind::None => None,
        }
    }

    /// The largest position, as llama.cpp reports it.
    pub(super) fn pos_max(&self, layers: Layers) -> Option<u32> {
        let full = self.cells.last().map(|cell| cell.pos);
        let running = self.running.map(|(at, _)| at);
        match layers.kind {
            MemoryKind::Attention => full,
            MemoryKind::Window { .. } => self.window.back().map(|&(at, _)| at),
            MemoryKind::Recurrent => running,
            MemoryKind::Hybrid => full.zip(running).map(|(full, running)| full.min(running)),
            MemoryKind::None => None,
        }
    }

    /// Removes positions; `false`, and nothing changed, if a running state cannot forget them.
    pub(super) fn remove(&mut self, range: &Range<u32>) -> bool {
        if let Some((at, _)) = self.running
            && range.contains(&at)
        {
            if range.start > 0 {
                return false;
            }
            self.running = None;
        }
        let start = self.cells.partition_point(|cell| cell.pos < range.start);
        let end = self.cells.partition_point(|cell| cell.pos < range.end).max(start);
        self.cells.drain(start..end);
        self.places.drain(start..end);
        self.folds.truncate(start);
        for cell in self.cells.get(start..).unwrap_or_default() {
            let fold = fold(self.folds.last().copied(), cell);
            self.folds.push(fold);
        }
        self.window.retain(|(at, _)| !range.contains(at));
        true
    }

    /// A copy that shares the cells' places.
    pub(super) fn share(&self) -> Self {
        Self {
            cells: self.cells.clone(),
            folds: self.folds.clone(),
            places: self.places.clone(),
            window: self.window.clone(),
            running: self.running,
        }
    }

    /// A copy with places of its own.
    pub(super) fn duplicate(&self, pool: &Pool) -> Self {
        Self { places: self.cells.iter().map(|_| pool.take()).collect(), ..self.share() }
    }

    /// Adds a cell after those that are there.
    pub(super) fn push(&mut self, cell: Cell, pool: &Pool) {
        self.folds.push(fold(self.folds.last().copied(), &cell));
        self.cells.push(cell);
        self.places.push(pool.take());
    }

    /// All cells of the full attention layers.
    pub(super) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The cells of a range; `None` if one is missing.
    pub(super) fn cells_of(&self, range: &Range<u32>) -> Option<&[Cell]> {
        let start = self.cells.partition_point(|cell| cell.pos < range.start);
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        let cells = self.cells.get(start..start.checked_add(len)?)?;
        range.clone().zip(cells).all(|(pos, cell)| cell.pos == pos).then_some(cells)
    }

    /// The digest of all cells below a position.
    pub(super) fn fold_before(&self, pos: u32) -> u64 {
        let index = self.cells.partition_point(|cell| cell.pos < pos);
        index.checked_sub(1).and_then(|last| self.folds.get(last)).copied().unwrap_or_default()
    }

    /// What the windowed layers hold and their last position does not mask.
    pub(super) fn unmasked_window(&self, layers: Layers) -> impl Iterator<Item = (u32, u64)> {
        let last = self.window.back().map_or(0, |&(at, _)| at);
        let size = layers.window().unwrap_or_default();
        self.window.iter().copied().filter(move |&(at, _)| last - at < size)
    }

    /// The running state.
    pub(super) fn running(&self) -> Option<(u32, u64)> {
        self.running
    }

    /// Replaces everything that is not full attention.
    pub(super) fn set_partial(&mut self, window: VecDeque<(u32, u64)>, running: Option<(u32, u64)>) {
        self.window = window;
        self.running = running;
    }

    fn forget_masked(&mut self, size: u32) {
        let last = self.window.back().map_or(0, |&(at, _)| at);
        while self.window.front().is_some_and(|&(at, _)| last - at >= size) {
            self.window.pop_front();
        }
    }
}

fn fold(before: Option<u64>, cell: &Cell) -> u64 {
    mix_all(&[before.unwrap_or_default(), cell.pos.into(), cell.value])
}
