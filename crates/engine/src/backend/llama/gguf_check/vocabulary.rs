//! Rules for the vocabulary.
//!
//! Called by the check of a file. llama.cpp refuses most wrong vocabularies with an error, and asserts on some: a text
//! that two tokens have, special tokens that it would add and does not have, no vocabulary at all.

use super::metadata::Metadata;

/// Special tokens that a tokenizer has without being told.
#[derive(Debug, Clone, Copy)]
struct Defaults {
    bos: Option<u64>,
    eos: Option<u64>,
    sep: Option<u64>,
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
}

const NOTHING: Defaults = Defaults { bos: None, eos: None, sep: None, add_bos: false, add_eos: false, add_sep: false };

/// What llama.cpp assumes for each kind of tokenizer.
fn defaults(tokenizer: &str) -> Option<Defaults> {
    Some(match tokenizer {
        "llama" => Defaults { bos: Some(1), eos: Some(2), add_bos: true, ..NOTHING },
        // Whether a start is added depends on the pre-tokenizer; the default token is there in any real vocabulary.
        "gpt2" | "hybriddna" | "whitespace" => {
            Defaults { bos: Some(11), eos: Some(11), add_bos: true, add_eos: true, ..NOTHING }
        }
        "gemma4" => Defaults { add_bos: true, ..NOTHING },
        "bert" => Defaults { bos: Some(101), sep: Some(102), add_bos: true, add_sep: true, ..NOTHING },
        "t5" => Defaults { eos: Some(1), add_eos: true, ..NOTHING },
        "plamo2" | "plamo3" => Defaults { bos: Some(1), eos: Some(2), ..NOTHING },
        _ => return None,
    })
}

/// All rules.
pub(super) fn check(metadata: &Metadata) -> Result<(), String> {
    let Some(tokenizer) = metadata.text("tokenizer.ggml.model") else { return Ok(()) };
    let tokenizer = tokenizer.as_ref();
    if ["none", "no_vocab", "test"].contains(&tokenizer) {
        return Err(format!("tokenizer.ggml.model is {tokenizer:?}: the file has no vocabulary to read texts with"));
    }
    let Some(count) = metadata.tokens.count else { return Ok(()) };
    if count == 0 || count > u64::from(i32::MAX.cast_unsigned()) {
        return Err(format!("tokenizer.ggml.tokens has {count} tokens"));
    }
    if let Some(index) = metadata.tokens.twice {
        return Err(format!("token {index} of tokenizer.ggml.tokens appears twice"));
    }
    // llama.cpp turns bytes it has no token for into byte tokens and does not survive their absence.
    if tokenizer == "llama" && metadata.tokens.bytes < 256 {
        let found = metadata.tokens.bytes;
        return Err(format!("tokenizer.ggml.tokens has {found} of the 256 byte tokens of a SentencePiece vocabulary"));
    }
    special(metadata, tokenizer, count)
}

/// A token that would be added to every text must exist.
fn special(metadata: &Metadata, tokenizer: &str, count: u64) -> Result<(), String> {
    let Some(defaults) = defaults(tokenizer) else { return Ok(()) };
    let flag = |key: &str, default: bool| metadata.number(key).map_or(default, |flag| flag != 0);
    let start = ("tokenizer.ggml.bos_token_id", defaults.bos, flag("tokenizer.ggml.add_bos_token", defaults.add_bos));
    let end = ("tokenizer.ggml.eos_token_id", defaults.eos, flag("tokenizer.ggml.add_eos_token", defaults.add_eos));
    let between = ("tokenizer.ggml.seperator_token_id", defaults.sep, defaults.add_sep);
    // Two kinds add their start whatever the file says.
    let start = if ["bert", "gemma4"].contains(&tokenizer) { (start.0, start.1, true) } else { start };
    for (key, default, added) in [start, end, between] {
        let stated = metadata.number(key);
        let usable = [stated, default].into_iter().flatten().any(|id| id < count);
        if added && !usable {
            let shown = stated.map_or_else(|| "missing".to_owned(), |id| id.to_string());
            return Err(format!("{key} is {shown}, and the tokenizer adds that token to texts"));
        }
    }
    Ok(())
}
