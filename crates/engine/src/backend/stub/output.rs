//! What the stub's model says: logits and embeddings from a digest.
//!
//! Used by the stub's context. The texts that come out are mostly ASCII letters with a two-byte character here and there,
//! and end by themselves after some sixty tokens, so that everything behind the sampler has something to do. A pure
//! function of the digest and the token just read; it must never depend on anything else.

use crate::backend::{Pooling, Token};

use super::digest::{mix, unit};
use super::vocab::{EOS, N_VOCAB};

/// Width of an embedding.
pub(super) const N_EMBD: u32 = 16;
/// Starts a two-byte character; any continuation byte may follow.
const LEAD_BYTE: Token = 0xC3;
/// On average, a reply ends after this number of steps.
const MEAN_LENGTH: u64 = 64;

/// The logits after a token; `reply` is what a test wants to come next.
pub(super) fn logits(digest: u64, token: Token, reply: Option<&Token>) -> Vec<f32> {
    let ends = mix(digest, u64::MAX).is_multiple_of(MEAN_LENGTH);
    let lift = |next: Token| match next {
        _ if reply == Some(&next) => 24.0,
        0x80..=0xBF if token == LEAD_BYTE => 12.0,
        EOS if ends => 8.0,
        LEAD_BYTE | 0x20 | 0x61..=0x7A => 4.0,
        0x21..=0x60 => 1.0,
        _ => -8.0,
    };
    (0..N_VOCAB).map(|next| 4.0 * unit(mix(digest, next.into())) + lift(next)).collect()
}

/// The embedding of a row.
pub(super) fn embedding(digest: u64) -> Vec<f32> {
    (0..N_EMBD).map(|index| 2.0 * unit(mix(digest, (N_VOCAB + index).into())) - 1.0).collect()
}

/// One embedding from those of a sequence's rows.
pub(super) fn pooled(rows: &[&[f32]], pooling: Pooling) -> Vec<f32> {
    let pick = |row: Option<&&[f32]>| row.map(|row| row.to_vec()).unwrap_or_default();
    match pooling {
        Pooling::Cls => pick(rows.first()),
        Pooling::Last => pick(rows.last()),
        Pooling::Rank => pick(rows.last()).into_iter().take(1).collect(),
        Pooling::FromModel | Pooling::None | Pooling::Mean => {
            let mut mean = vec![0.0; N_EMBD as usize];
            for row in rows {
                mean.iter_mut().zip(*row).for_each(|(mean, value)| *mean += value / rows.len() as f32);
            }
            mean
        }
    }
}
