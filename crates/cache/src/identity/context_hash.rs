//! The hash of the context settings that change the bytes or the meaning of a state.
//!
//! The engine fills `ContextFacts` from the context it created (effective values, not the user's wishes) and puts
//! the hash into the `Namespace`. Deliberately absent: `n_ctx` (a row saved at 4k must be usable at 32k; the fit is
//! checked instead), `n_batch`, `n_ubatch` and thread counts, which change speed but not what a state means.
//! The encoding must never change without a new `ENCODING` line: every stored key depends on it.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// First bytes of every encoding; a changed encoding gets a new number, so that old rows are missed, not misread.
const ENCODING: &[u8] = b"poncho context facts 1\n";

/// Everything about a context, besides the model, that a state depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextFacts {
    /// ggml type id of the K cache.
    pub type_k: u32,
    /// ggml type id of the V cache.
    pub type_v: u32,
    /// Whether flash attention is on; it changes the layout of V.
    pub flash_attention: bool,
    /// Whether all sequences share one pool of cells. Rows that do not depend on it have one fixed value here.
    pub unified: bool,
    /// llama.cpp's RoPE scaling type.
    pub rope_scaling_type: i32,
    /// RoPE base frequency.
    pub rope_freq_base: f32,
    /// RoPE frequency scale.
    pub rope_freq_scale: f32,
    /// YaRN extrapolation factor.
    pub yarn_ext_factor: f32,
    /// YaRN attention factor.
    pub yarn_attn_factor: f32,
    /// YaRN low correction dimension.
    pub yarn_beta_fast: f32,
    /// YaRN high correction dimension.
    pub yarn_beta_slow: f32,
    /// YaRN original context size.
    pub yarn_orig_ctx: u32,
    /// Whether sliding-window layers keep the full context.
    pub swa_full: bool,
    /// Identity of the pinned llama.cpp build: its state format has no version of its own.
    pub state_format: String,
    /// For models that switch their RoPE factors by context length: whether this context is on the long side.
    /// `None` for all others. The one way in which the context length reaches the hash.
    pub rope_switch_side: Option<bool>,
    /// Further facts by name, for backends that have more of them.
    pub extra: BTreeMap<String, String>,
}

impl ContextFacts {
    /// SHA-256 over the canonical encoding: per fact its name and its value, each with its length before it.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        // Taken apart without `..`, so that a new field cannot be forgotten here.
        let Self {
            type_k,
            type_v,
            flash_attention,
            unified,
            rope_scaling_type,
            rope_freq_base,
            rope_freq_scale,
            yarn_ext_factor,
            yarn_attn_factor,
            yarn_beta_fast,
            yarn_beta_slow,
            yarn_orig_ctx,
            swa_full,
            state_format,
            rope_switch_side,
            extra,
        } = self;
        let mut encoding = Encoding::new();
        encoding.fact("type_k", &type_k.to_le_bytes());
        encoding.fact("type_v", &type_v.to_le_bytes());
        encoding.fact("flash_attention", &[u8::from(*flash_attention)]);
        encoding.fact("unified", &[u8::from(*unified)]);
        encoding.fact("rope_scaling_type", &rope_scaling_type.to_le_bytes());
        encoding.fact("rope_freq_base", &float_bytes(*rope_freq_base));
        encoding.fact("rope_freq_scale", &float_bytes(*rope_freq_scale));
        encoding.fact("yarn_ext_factor", &float_bytes(*yarn_ext_factor));
        encoding.fact("yarn_attn_factor", &float_bytes(*yarn_attn_factor));
        encoding.fact("yarn_beta_fast", &float_bytes(*yarn_beta_fast));
        encoding.fact("yarn_beta_slow", &float_bytes(*yarn_beta_slow));
        encoding.fact("yarn_orig_ctx", &yarn_orig_ctx.to_le_bytes());
        encoding.fact("swa_full", &[u8::from(*swa_full)]);
        encoding.fact("state_format", state_format.as_bytes());
        match rope_switch_side {
            None => encoding.fact("rope_switch_side", &[]),
            Some(long) => encoding.fact("rope_switch_side", &[u8::from(*long)]),
        }
        for (name, value) in extra {
            // The prefix keeps a caller's name apart from the names above.
            encoding.fact(&format!("extra.{name}"), value.as_bytes());
        }
        encoding.hash.finalize().into()
    }
}

struct Encoding {
    hash: Sha256,
}

impl Encoding {
    fn new() -> Self {
        let mut hash = Sha256::new();
        hash.update(ENCODING);
        Self { hash }
    }

    fn fact(&mut self, name: &str, value: &[u8]) {
        for bytes in [name.as_bytes(), value] {
            self.hash.update((bytes.len() as u64).to_le_bytes());
            self.hash.update(bytes);
        }
    }
}

/// The bit pattern, with the two zeros made one: they compute the same.
fn float_bytes(value: f32) -> [u8; 4] {
    let value = if value == 0.0 { 0.0 } else { value };
    value.to_bits().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    fn facts() -> ContextFacts {
        ContextFacts {
            type_k: 1,
            type_v: 1,
            flash_attention: true,
            unified: true,
            rope_scaling_type: -1,
            rope_freq_base: 10_000.0,
            rope_freq_scale: 1.0,
            yarn_ext_factor: -1.0,
            yarn_attn_factor: 1.0,
            yarn_beta_fast: 32.0,
            yarn_beta_slow: 1.0,
            yarn_orig_ctx: 4096,
            swa_full: false,
            state_format: "build 1".to_owned(),
            rope_switch_side: None,
            extra: BTreeMap::new(),
        }
    }

    #[test]
    fn every_field_changes_the_hash() {
        type Change = fn(&mut ContextFacts);
        let changes: [Change; 18] = [
            |facts| facts.type_k = 8,
            |facts| facts.type_v = 8,
            |facts| facts.flash_attention = false,
            |facts| facts.unified = false,
            |facts| facts.rope_scaling_type = 2,
            |facts| facts.rope_freq_base = 10_000.001,
            |facts| facts.rope_freq_scale = 0.5,
            |facts| facts.yarn_ext_factor = 1.0,
            |facts| facts.yarn_attn_factor = 2.0,
            |facts| facts.yarn_beta_fast = 1.0,
            |facts| facts.yarn_beta_slow = 32.0,
            |facts| facts.yarn_orig_ctx = 4097,
            |facts| facts.swa_full = true,
            |facts| facts.state_format.push('1'),
            |facts| facts.rope_switch_side = Some(false),
            |facts| facts.rope_switch_side = Some(true),
            |facts| drop(facts.extra.insert(String::new(), String::new())),
            |facts| drop(facts.extra.insert("type_k".to_owned(), String::new())),
        ];
        let mut hashes = BTreeSet::from([facts().hash()]);
        for (index, change) in changes.iter().enumerate() {
            let mut changed = facts();
            change(&mut changed);
            assert!(hashes.insert(changed.hash()), "change {index} left the hash as it was");
        }
    }

    #[test]
    fn both_zeros_are_one_value() {
        let zero = ContextFacts { yarn_ext_factor: 0.0, ..facts() };
        let minus_zero = ContextFacts { yarn_ext_factor: -0.0, ..facts() };
        assert_eq!(zero.hash(), minus_zero.hash());
    }

    #[test]
    fn hash_is_stable_across_versions() {
        let hash = crate::identity::key::to_hex(&facts().hash());
        assert_eq!(
            hash, "057e61a7846de3cb973cfe1af37806e2ee8e2668f44b7955b36b43963326d5c8",
            "a changed encoding needs a new ENCODING line"
        );
    }

    proptest! {
        #[test]
        fn text_never_moves_between_neighbours(
            left in ("[ab.]{0,4}", prop::collection::btree_map("[ab.]{0,3}", "[ab.]{0,3}", 0..4)),
            right in ("[ab.]{0,4}", prop::collection::btree_map("[ab.]{0,3}", "[ab.]{0,3}", 0..4)),
        ) {
            let hash = |(state_format, extra): &(String, BTreeMap<String, String>)| {
                ContextFacts { state_format: state_format.clone(), extra: extra.clone(), ..facts() }.hash()
            };
            prop_assert_eq!(hash(&left) == hash(&right), left == right);
        }
    }
}
