//! Classes of characters: what stands in brackets, a character of a literal, or the dot.
//!
//! Made by the parser, asked by the machine. Ranges are sorted and do not touch, so that asking is a binary search.

use super::text::PartialCharacter;

/// The largest number that the decoder can make of four bytes.
const LAST: u32 = u32::MAX;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Class {
    /// What it takes, sorted.
    ranges: Vec<(u32, u32)>,
    /// What it was told not to take, as it was written.
    except: Option<Vec<(u32, u32)>>,
}

impl Class {
    pub(super) fn any() -> Self {
        Self { ranges: vec![(0, LAST)], except: None }
    }

    pub(super) fn new(written: Vec<(u32, u32)>, negated: bool) -> Self {
        let mut ranges: Vec<(u32, u32)> = written.iter().copied().filter(|(low, high)| low <= high).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match merged.last_mut() {
                Some((_, end)) if low <= end.saturating_add(1) => *end = high.max(*end),
                _ => merged.push((low, high)),
            }
        }
        if !negated {
            return Self { ranges: merged, except: None };
        }
        let mut rest = Vec::with_capacity(merged.len() + 1);
        let mut next = Some(0);
        for (low, high) in merged {
            if let Some(start) = next.filter(|start| *start < low) {
                rest.push((start, low - 1));
            }
            next = high.checked_add(1);
        }
        rest.extend(next.map(|start| (start, LAST)));
        Self { ranges: rest, except: Some(written) }
    }

    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    pub(super) fn takes(&self, character: u32) -> bool {
        let after = self.ranges.partition_point(|(low, _)| *low <= character);
        after.checked_sub(1).and_then(|at| self.ranges.get(at)).is_some_and(|(_, high)| character <= *high)
    }

    /// Whether a character that begins with these bytes may be meant. Like llama.cpp, a class that leaves characters
    /// out takes no beginning that one of them shares.
    pub(super) fn may_take(&self, begun: PartialCharacter) -> bool {
        let Some((low, high)) = begun.range() else { return false };
        let overlaps = |ranges: &[(u32, u32)]| ranges.iter().any(|(from, to)| *from <= high && low <= *to);
        match &self.except {
            None => overlaps(&self.ranges),
            Some(except) => !overlaps(except),
        }
    }
}
