//! Raw bytes as a list of changes to a text or file that is valid without them.
//!
//! Used by the targets for formats with a frame that random bytes never pass: GGUF files and packed states. An edit
//! overwrites, inserts or removes bytes at a place that is taken modulo the length, so every input means something.

/// Values that parsers stumble over, as eight bytes each.
const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_ffff,
    0x0101_0101_0101_0101,
    1 << 40,
    1 << 62,
];

/// Most edits of one input: more only make the result random.
const MOST: usize = 16;

/// Applies the edits that `script` stands for to the first `reach` bytes of `bytes`.
pub fn apply(script: &[u8], bytes: &mut Vec<u8>, reach: usize) {
    for edit in script.chunks_exact(6).take(MOST) {
        let &[what, p0, p1, p2, value, length] = edit else { continue };
        let reach = reach.min(bytes.len());
        if reach == 0 {
            return;
        }
        let at = usize::from(p0) | usize::from(p1) << 8 | usize::from(p2) << 16;
        let at = at % reach;
        let run = usize::from(length % 32) + 1;
        match what % 5 {
            0 => overwrite(bytes, at, &[value]),
            1 => {
                let number = INTERESTING.get(usize::from(value) % INTERESTING.len()).copied().unwrap_or_default();
                let width = [1, 2, 4, 8].get(usize::from(length) % 4).copied().unwrap_or(1);
                overwrite(bytes, at, number.to_le_bytes().get(..width).unwrap_or_default());
            }
            2 => {
                let inserted = std::iter::repeat_n(value, run);
                bytes.splice(at..at, inserted);
            }
            3 => {
                let end = at.saturating_add(run).min(bytes.len());
                bytes.drain(at..end);
            }
            _ => overwrite(bytes, at, &vec![value; run]),
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    for (old, new) in bytes.iter_mut().skip(at).zip(with) {
        *old = *new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_stay_within_reach_and_mean_something_for_every_script() {
        let before: Vec<u8> = (0..64).collect();
        let mut changed = 0;
        for what in 0..5 {
            for place in 0..=255 {
                let mut bytes = before.clone();
                apply(&[what, place, 1, 2, 200, 3], &mut bytes, 16);
                assert_eq!(bytes.last(), before.last(), "an edit of {what} at {place} reached the end");
                changed += usize::from(bytes != before);
            }
        }
        assert!(changed > 1200, "only {changed} of 1280 scripts changed anything");
    }

    #[test]
    fn an_empty_text_is_left_alone() {
        let mut bytes = Vec::new();
        apply(&[2, 0, 0, 0, 1, 1], &mut bytes, 10);
        assert!(bytes.is_empty());
    }
}
