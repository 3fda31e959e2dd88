//! The stub's vocabulary: every byte is a token, and a few special ones follow.
//!
//! Used by the stub's model, and by tests that build prompts and expect replies. The texts are those of ChatML, so that
//! templates and markers have something real to find.

use crate::backend::{FillTokens, SpecialText, SpecialTokens, Token, TokenizeMode};

/// Start of a text.
pub const BOS: Token = 256;
/// End of a text.
pub const EOS: Token = 257;
/// End of a turn.
pub const EOT: Token = 258;
/// Opens a message.
pub const IM_START: Token = 259;
/// Closes a message; a model that writes it has finished.
pub const IM_END: Token = 260;
/// Opens a thinking block.
pub const THINK_OPEN: Token = 261;
/// Closes a thinking block.
pub const THINK_CLOSE: Token = 262;
/// Opens a tool call.
pub const TOOL_OPEN: Token = 263;
/// Closes a tool call.
pub const TOOL_CLOSE: Token = 264;
/// The marks around a gap, for models that know how to fill one: bytes that no text has.
pub const FILL: FillTokens = FillTokens { prefix: 1, suffix: 2, middle: 3 };
/// Entries in the vocabulary.
pub const N_VOCAB: u32 = 265;

/// The special tokens and their texts.
const SPECIAL: [(Token, &str); 9] = [
    (BOS, "<s>"),
    (EOS, "</s>"),
    (EOT, "<|eot|>"),
    (IM_START, "<|im_start|>"),
    (IM_END, "<|im_end|>"),
    (THINK_OPEN, "<think>"),
    (THINK_CLOSE, "</think>"),
    (TOOL_OPEN, "<tool_call>"),
    (TOOL_CLOSE, "</tool_call>"),
];

/// The tokens of a text, special ones recognised, none added.
#[must_use]
pub fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    tokenize(text, TokenizeMode { add_special: false, parse_special: true }, &mut out);
    out
}

pub(super) fn special_tokens(fills_gaps: bool) -> SpecialTokens {
    SpecialTokens {
        bos: Some(BOS),
        eos: Some(EOS),
        eot: Some(EOT),
        sep: None,
        nl: Some(b'\n'.into()),
        pad: None,
        fill: fills_gaps.then_some(FILL),
    }
}

pub(super) fn tokenize(text: &str, mode: TokenizeMode, out: &mut Vec<Token>) {
    if mode.add_special {
        out.push(BOS);
    }
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let special = SPECIAL.iter().find_map(|&(token, text)| Some((token, rest.strip_prefix(text.as_bytes())?)));
        match special.filter(|_| mode.parse_special) {
            Some((token, after)) => {
                out.push(token);
                rest = after;
            }
            None => {
                out.push(byte.into());
                rest = after;
            }
        }
    }
}

/// No token has more bytes than the longest special one.
pub(super) fn least_tokens(text: &str) -> usize {
    let longest = SPECIAL.iter().map(|(_, text)| text.len()).max().unwrap_or(1);
    text.len().div_ceil(longest)
}

pub(super) fn token_bytes(token: Token, special: SpecialText, out: &mut Vec<u8>) {
    if let Ok(byte) = u8::try_from(token) {
        out.push(byte);
    } else if let Some((_, text)) = SPECIAL.iter().find(|&&(id, _)| id == token)
        && (special == SpecialText::Render || !is_control(token))
    {
        out.extend_from_slice(text.as_bytes());
    }
}

/// The markers of thinking and tool calls are ordinary tokens, as in the models that have them.
pub(super) fn is_control(token: Token) -> bool {
    (BOS..=IM_END).contains(&token)
}

pub(super) fn is_eog(token: Token) -> bool {
    matches!(token, EOS | EOT | IM_END)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens: &[Token], special: SpecialText) -> String {
        let mut bytes = Vec::new();
        tokens.iter().for_each(|&token| token_bytes(token, special, &mut bytes));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn texts_come_back() {
        let written = "<s><|im_start|>user\nüß <think>x</think><tool_call>{}</tool_call><|im_end|></s><|eot|>";
        let read = tokens(written);
        assert_eq!(read[..2], [BOS, IM_START]);
        assert_eq!(text(&read, SpecialText::Render), written);
        assert_eq!(text(&read, SpecialText::Hide), "user\nüß <think>x</think><tool_call>{}</tool_call>");
        assert_eq!(text(&[9999], SpecialText::Render), "");
    }

    #[test]
    fn the_text_of_a_user_forges_nothing() {
        let mut out = vec![7];
        tokenize("<|im_end|>", TokenizeMode { add_special: true, parse_special: false }, &mut out);
        assert_eq!(out[..2], [7, BOS]);
        assert!(out[2..].iter().all(|&token| token < 256));
        assert_eq!(out.len(), 12);
    }
}
