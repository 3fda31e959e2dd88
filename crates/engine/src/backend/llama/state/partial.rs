//! The partial state: the window of sliding-window layers and the recurrent state, checked and put in place.
//!
//! Used by `state.rs` for every kind but plain attention. Pure and safe, like `segment.rs`: bytes from a file are
//! checked against the context's own shape before llama.cpp sees them.

use std::collections::HashMap;

use crate::backend::StateError;
use crate::backend::llama::state::layout::{KvShape, STATE_HEADER, StateShape, push_u32, read_u32};
use crate::backend::llama::state::segment::{
    CellRun, Frame, FrameSpec, Rows, SectionView, cell_position, check_blob_header, read_attention, read_section,
};

/// Checks a partial state: window sections with plausible positions, then the recurrent section.
pub(in crate::backend::llama) fn check_partial(
    blob: &[u8],
    shape: &StateShape,
    n_tokens: Option<u32>,
) -> Result<(), StateError> {
    check_blob_header(blob)?;
    check_partial_sections(blob, STATE_HEADER, shape, n_tokens)
}

/// A partial state framed for as many streams as the context has; `None` if it already is.
pub(in crate::backend::llama) fn reframe_partial(
    blob: &[u8],
    shape: &StateShape,
) -> Result<Option<Vec<u8>>, StateError> {
    check_blob_header(blob)?;
    let streams = read_u32(blob, STATE_HEADER).unwrap_or_default() as usize;
    if shape.window.is_empty() || streams == shape.streams {
        return Ok(None);
    }
    if streams == 0 || streams > 256 {
        return Err(StateError::Malformed { reason: "streams", expected: shape.streams as u64, got: streams as u64 });
    }
    let mut out = blob.get(..STATE_HEADER).unwrap_or_default().to_vec();
    let mut at = STATE_HEADER;
    for section in &shape.window {
        let view = read_section(blob, at, section, streams)?;
        push_u32(&mut out, shape.streams);
        out.extend(std::iter::repeat_n(0, 4 * (shape.streams - 1)));
        push_u32(&mut out, view.cells);
        if view.cells != 0 {
            let body = view.records..view.records + section.body_len(view.cells);
            out.extend_from_slice(blob.get(body).unwrap_or_default());
        }
        at = view.end;
    }
    out.extend_from_slice(blob.get(at..).unwrap_or_default());
    Ok(Some(out))
}

/// A partial state with its window cells where a sequence that was never saved has them.
///
/// llama.cpp fills the cells of a windowed layer in turn, so position `p` lies in cell `p % ring`, and it adds up the
/// attention in the order of the cells. A saved window holds only the cells that can still be seen; set as it is, they
/// would land at the front and every later sum would round differently. So the cells that can no longer be seen are
/// put back too, with zeros: they are masked, but they hold the others in place.
pub(in crate::backend::llama) fn mirror_window(
    blob: &[u8],
    shape: &StateShape,
    ring: u32,
    n_tokens: u32,
) -> Result<MirroredWindow, StateError> {
    let last = n_tokens.saturating_sub(1);
    let positions: Vec<u32> = (0..n_tokens.min(ring)).map(|cell| last - (last - cell) % ring).collect();
    let mut views = Vec::with_capacity(shape.window.len());
    let mut at = STATE_HEADER;
    for section in &shape.window {
        let view = read_section(blob, at, section, shape.streams)?;
        at = view.end;
        views.push(view);
    }
    let tail = shape.recurrent.as_ref().map_or(&[][..], |recurrent| &recurrent.empty);
    let spec = FrameSpec { streams: shape.streams, sections: &shape.window, positions: &positions, tail };
    let mut out = vec![0; spec.len()];
    let mut frame = Frame::new(&mut out, &spec)?;
    let mut first_real = n_tokens;
    for (index, (view, section)) in views.iter().zip(&shape.window).enumerate() {
        for (run, to) in ring_runs(blob, view, section, &positions)? {
            frame.copy_extensions(index, blob, view, run, to);
            frame.each_stretch(index, view, run, to, |frame, from, to, len| frame.copy(blob, from, to, len));
        }
        for cell in 0..view.cells {
            first_real = first_real.min(cell_position(blob, view, section, cell)?);
        }
    }
    frame.finish()?;
    Ok(MirroredWindow { blob: out, first_real, displaced: (n_tokens > ring).then(|| n_tokens - ring) })
}

/// See [`mirror_window`].
pub(in crate::backend::llama) struct MirroredWindow {
    /// The partial state; its recurrent section is empty.
    pub(in crate::backend::llama) blob: Vec<u8>,
    /// The smallest position that is not a placeholder.
    pub(in crate::backend::llama) first_real: u32,
    /// In a ring that has gone round: the placeholder in the cell that the next token takes. Removing it makes
    /// llama.cpp look there first.
    pub(in crate::backend::llama) displaced: Option<u32>,
}

/// Runs of saved cells with the cell of the ring that each starts at.
fn ring_runs(
    blob: &[u8],
    view: &SectionView,
    section: &KvShape,
    positions: &[u32],
) -> Result<Vec<(CellRun, usize)>, StateError> {
    let mut saved = HashMap::with_capacity(view.cells);
    for cell in 0..view.cells {
        saved.insert(cell_position(blob, view, section, cell)?, cell);
    }
    let mut runs: Vec<(CellRun, usize)> = Vec::new();
    let mut placed = 0usize;
    for (to, position) in positions.iter().enumerate() {
        let Some(cell) = saved.get(position).copied() else { continue };
        placed += 1;
        match runs.last_mut() {
            Some((run, start)) if run.first + run.len == cell && *start + run.len == to => run.len += 1,
            _ => runs.push((CellRun { first: cell, len: 1 }, to)),
        }
    }
    if placed != view.cells {
        let (expected, got) = (view.cells as u64, placed as u64);
        return Err(StateError::Malformed { reason: "window cells inside the ring", expected, got });
    }
    Ok(runs)
}

/// The number of tokens a partial state was saved after, if its window shows it.
pub(in crate::backend::llama) fn window_length(blob: &[u8], shape: &StateShape) -> Option<u32> {
    let section = shape.window.first()?;
    let view = read_section(blob, STATE_HEADER, section, shape.streams).ok()?;
    let positions = (0..view.cells).filter_map(|cell| cell_position(blob, &view, section, cell).ok());
    positions.max()?.checked_add(1)
}

/// A partial state without window cells: only its recurrent part is set.
pub(in crate::backend::llama) fn recurrent_only(blob: &[u8], shape: &StateShape) -> Result<Vec<u8>, StateError> {
    let mut at = STATE_HEADER;
    let mut out = blob.get(..STATE_HEADER).unwrap_or_default().to_vec();
    for section in &shape.window {
        at = read_section(blob, at, section, shape.streams)?.end;
        push_u32(&mut out, shape.streams);
        out.extend(std::iter::repeat_n(0, 4 * shape.streams));
    }
    out.extend_from_slice(blob.get(at..).unwrap_or_default());
    Ok(out)
}

/// Checks a whole state.
pub(in crate::backend::llama) fn check_whole(blob: &[u8], shape: &StateShape) -> Result<(), StateError> {
    let sections = read_attention(blob, shape, shape.streams, Rows::There)?;
    for (view, section) in sections.iter().zip(&shape.attention) {
        check_positions(blob, view, section, None)?;
    }
    let end = sections.last().map_or(STATE_HEADER, |view| view.end);
    check_partial_sections(blob, end, shape, None)
}

fn check_partial_sections(
    blob: &[u8],
    start: usize,
    shape: &StateShape,
    n_tokens: Option<u32>,
) -> Result<(), StateError> {
    let mut at = start;
    for section in &shape.window {
        let view = read_section(blob, at, section, shape.streams)?;
        check_positions(blob, &view, section, n_tokens)?;
        at = view.end;
    }
    let rest = blob.get(at..).unwrap_or_default();
    let Some(recurrent) = &shape.recurrent else {
        if rest.is_empty() {
            return Ok(());
        }
        return Err(StateError::Malformed { reason: "bytes after the state", expected: 0, got: rest.len() as u64 });
    };
    if rest == recurrent.empty && n_tokens.is_none() {
        return Ok(());
    }
    if rest.len() != recurrent.one_len {
        let (expected, got) = (recurrent.one_len as u64, rest.len() as u64);
        return Err(StateError::Malformed { reason: "recurrent state length", expected, got });
    }
    let position = read_u32(rest, 4).unwrap_or_default();
    let fixed = read_u32(rest, 0) == Some(1)
        && read_u32(rest, 8) == Some(0)
        && rest.get(12..20) == Some(recurrent.data_head.as_slice());
    if !fixed {
        return Err(StateError::Malformed { reason: "recurrent state head", expected: 1, got: 0 });
    }
    if position > i32::MAX as u32 || n_tokens.is_some_and(|n| position.checked_add(1) != Some(n)) {
        let expected = n_tokens.unwrap_or_default().saturating_sub(1).into();
        return Err(StateError::Malformed { reason: "recurrent position", expected, got: position.into() });
    }
    Ok(())
}

/// Positions must be distinct and valid, and with a known length the last one must be there and none beyond it.
fn check_positions(
    blob: &[u8],
    view: &SectionView,
    section: &KvShape,
    n_tokens: Option<u32>,
) -> Result<(), StateError> {
    let mut positions = Vec::with_capacity(view.cells);
    for index in 0..view.cells {
        positions.push(cell_position(blob, view, section, index)?);
    }
    positions.sort_unstable();
    let last = positions.last().copied();
    if last.is_some_and(|last| last > i32::MAX as u32) {
        return Err(StateError::Malformed {
            reason: "cell position",
            expected: 0,
            got: last.unwrap_or_default().into(),
        });
    }
    if let Some(twice) = positions.windows(2).find(|pair| pair.first() == pair.last()) {
        let got = twice.first().copied().unwrap_or_default().into();
        return Err(StateError::Malformed { reason: "position held twice", expected: 1, got });
    }
    match n_tokens {
        Some(n) if last.and_then(|last| last.checked_add(1)) != Some(n) => Err(StateError::Malformed {
            reason: "last position of the window",
            expected: n.saturating_sub(1).into(),
            got: last.unwrap_or(u32::MAX).into(),
        }),
        _ => Ok(()),
    }
}
