//! The vocabulary of every generated model: 256 byte tokens, a few merges, and the special tokens.
//!
//! A byte is its own token id, so a test can write a prompt down without a tokenizer; `bytes_of` is the oracle for
//! detokenizing. The merges are chosen so that a token may hold several characters, one whole multi-byte character, or
//! a part of one. Ids and texts are fixed: changing them changes every generated file.

use crate::gguf::{Gguf, Value};
use crate::spec::{ChatSpec, Mark};

/// Merges in order of rank; each one adds the token of both halves joined.
const MERGES: [(&[u8], &[u8]); 41] = [
    (b"t", b"h"),
    (b"th", b"e"),
    (b" ", b"the"),
    (b"i", b"n"),
    (b"in", b"g"),
    (b"e", b"r"),
    (b"a", b"n"),
    (b"an", b"d"),
    (b" ", b"and"),
    (b"o", b"n"),
    (b"o", b"r"),
    (b"o", b"u"),
    (b"y", b"ou"),
    (b" ", b"you"),
    (b"l", b"l"),
    (b"ll", b"o"),
    (b"H", b"e"),
    (b"He", b"llo"),
    (b"w", b"or"),
    (b"l", b"d"),
    (b"wor", b"ld"),
    (b" ", b"world"),
    (b" ", b"a"),
    (b"=", b"="),
    (b" ", b"="),
    (b"<", b"/"),
    (b"\n", b"\n"),
    (b" ", b" "),
    (b"  ", b"  "),
    (b"{", b"\""),
    (b"\"", b":"),
    (b"O", b"P"),
    (b"S", b"T"),
    (b"ST", b"OP"),
    // Whole characters of two and three bytes.
    (b"\xc3", b"\xa9"),
    (b"\xe4", b"\xbd"),
    (b"\xe4\xbd", b"\xa0"),
    // Parts of characters: the first two bytes of one of three and of most emoji.
    (b"\xe5", b"\xa5"),
    (b"\xf0", b"\x9f"),
    // A newline glued to the end of a sentence.
    (b".", b"\n"),
    (b";", b"\n"),
];

/// Id of the first special token; below it are the bytes and the merges.
#[expect(clippy::cast_possible_truncation, reason = "a short list written down in this file")]
const FIRST_SPECIAL: u32 = 256 + MERGES.len() as u32;

/// Number of tokens of a model without marks of its own.
#[expect(clippy::cast_possible_truncation, reason = "a short list written down in this file")]
pub const SIZE: u32 = FIRST_SPECIAL + Special::ALL.len() as u32;

/// Jinja source of the chat template, in the ChatML form.
pub const CHAT_TEMPLATE: &str = "{%- for message in messages -%}\
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{%- endfor -%}\
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// A token that no text is merged into. `Think` to `ToolCallEnd` are user-defined (shown as text), the others control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// Put before every prompt by the tokenizer.
    Start,
    /// End of text; also an end-of-generation token.
    End,
    /// Opens a message.
    MessageStart,
    /// Closes a message; also an end-of-generation token.
    MessageEnd,
    /// Fill-in-the-middle: the text before the gap follows.
    FillPrefix,
    /// Fill-in-the-middle: the text after the gap follows.
    FillSuffix,
    /// Fill-in-the-middle: the model writes the gap from here.
    FillMiddle,
    /// Opens a reasoning block.
    Think,
    /// Closes a reasoning block.
    ThinkEnd,
    /// Opens a tool call.
    ToolCall,
    /// Closes a tool call.
    ToolCallEnd,
}

impl Special {
    /// Every special token in the order of the ids.
    pub const ALL: [Self; 11] = [
        Self::Start,
        Self::End,
        Self::MessageStart,
        Self::MessageEnd,
        Self::FillPrefix,
        Self::FillSuffix,
        Self::FillMiddle,
        Self::Think,
        Self::ThinkEnd,
        Self::ToolCall,
        Self::ToolCallEnd,
    ];

    /// Token id in every generated model.
    pub fn id(self) -> u32 {
        FIRST_SPECIAL + self as u32
    }

    /// The text that stands for the token in a prompt.
    pub fn text(self) -> &'static str {
        match self {
            Self::Start => "<|startoftext|>",
            Self::End => "<|endoftext|>",
            Self::MessageStart => "<|im_start|>",
            Self::MessageEnd => "<|im_end|>",
            Self::FillPrefix => "<|fim_prefix|>",
            Self::FillSuffix => "<|fim_suffix|>",
            Self::FillMiddle => "<|fim_middle|>",
            Self::Think => "<think>",
            Self::ThinkEnd => "</think>",
            Self::ToolCall => "<tool_call>",
            Self::ToolCallEnd => "</tool_call>",
        }
    }

    fn is_control(self) -> bool {
        !matches!(self, Self::Think | Self::ThinkEnd | Self::ToolCall | Self::ToolCallEnd)
    }
}

/// What a token stands for: its bytes, or the text of a special token; `None` for an id outside the vocabulary.
pub fn bytes_of(id: u32) -> Option<Vec<u8>> {
    if let Ok(byte) = u8::try_from(id) {
        return Some(vec![byte]);
    }
    let index = usize::try_from(id).ok()?.checked_sub(256)?;
    if let Some((left, right)) = MERGES.get(index) {
        return Some([*left, *right].concat());
    }
    let special = Special::ALL.get(index.checked_sub(MERGES.len())?)?;
    Some(special.text().as_bytes().to_vec())
}

/// How loud the output row of a token is, relative to 1 for printable text. Greedy output is mostly readable: a byte
/// that cannot stand alone wins only now and then, a special token as often as `special_gain` lets it.
pub(crate) fn output_gain(id: u32, special_gain: f32) -> f32 {
    if id >= FIRST_SPECIAL {
        return special_gain;
    }
    let bytes = bytes_of(id).unwrap_or_default();
    let readable = std::str::from_utf8(&bytes).is_ok_and(|text| !text.chars().any(|c| c.is_control() && c != '\n'));
    if readable { 1.0 } else { 0.5 }
}

/// Number of tokens with further marks behind the usual ones.
pub(crate) fn size_with(marks: &[Mark]) -> u32 {
    SIZE + u32::try_from(marks.len()).unwrap_or_default()
}

/// Adds the tokenizer's keys and the chat template.
pub(crate) fn describe(gguf: &mut Gguf, pre_tokenizer: &str, chat: Option<&ChatSpec>) {
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const USER_DEFINED: i32 = 4;
    let bytes = (0..=255_u8).map(|byte| visible(&[byte]));
    let merged = MERGES.iter().map(|(left, right)| visible(&[*left, *right].concat()));
    let marks = chat.map_or(&[][..], |chat| &chat.marks);
    let special = Special::ALL.iter().map(|token| token.text().to_owned());
    let special = special.chain(marks.iter().map(|mark| mark.text.clone()));
    let special_types = Special::ALL.iter().map(|token| token.is_control());
    let special_types = special_types.chain(marks.iter().map(|mark| mark.is_control));
    let special_types = special_types.map(|is_control| if is_control { CONTROL } else { USER_DEFINED });
    let types = (0..FIRST_SPECIAL).map(|_| NORMAL).chain(special_types);
    let merges = MERGES.iter().map(|(left, right)| format!("{} {}", visible(left), visible(right)));

    gguf.set_text("tokenizer.ggml.model", "gpt2");
    gguf.set_text("tokenizer.ggml.pre", pre_tokenizer);
    gguf.set("tokenizer.ggml.tokens", Value::Texts(bytes.chain(merged).chain(special).collect()));
    gguf.set("tokenizer.ggml.token_type", Value::I32s(types.collect()));
    gguf.set("tokenizer.ggml.merges", Value::Texts(merges.collect()));
    gguf.set("tokenizer.ggml.bos_token_id", Value::U32(Special::Start.id()));
    gguf.set("tokenizer.ggml.eos_token_id", Value::U32(Special::End.id()));
    gguf.set("tokenizer.ggml.eot_token_id", Value::U32(Special::MessageEnd.id()));
    gguf.set("tokenizer.ggml.padding_token_id", Value::U32(Special::End.id()));
    gguf.set("tokenizer.ggml.fim_pre_token_id", Value::U32(Special::FillPrefix.id()));
    gguf.set("tokenizer.ggml.fim_suf_token_id", Value::U32(Special::FillSuffix.id()));
    gguf.set("tokenizer.ggml.fim_mid_token_id", Value::U32(Special::FillMiddle.id()));
    gguf.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    gguf.set("tokenizer.ggml.add_eos_token", Value::Bool(false));
    gguf.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    gguf.set_text("tokenizer.chat_template", chat.map_or(CHAT_TEMPLATE, |chat| &chat.template));
}

/// Byte-level vocabularies spell each byte as one visible character.
fn visible(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| visible_byte(*byte)).collect()
}

/// Printable Latin-1 stands for itself; the 68 others (controls, space, no-break space, soft hyphen) follow from U+0100
/// on, in the order of their values.
fn visible_byte(byte: u8) -> char {
    let shifted = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => return char::from(byte),
        0x00..=0x20 => u32::from(byte),
        0x7f..=0xa0 => u32::from(byte) - 0x7f + 0x21,
        0xad => 67,
    };
    char::from_u32(0x100 + shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn tokens() -> Vec<String> {
        let mut gguf = Gguf::default();
        describe(&mut gguf, "gpt-2", None);
        let (_, value) = gguf.metadata.into_iter().find(|(key, _)| key == "tokenizer.ggml.tokens").unwrap();
        let Value::Texts(tokens) = value else { panic!("tokens are not texts") };
        tokens
    }

    #[test]
    fn every_byte_has_a_token_of_its_own_under_its_own_value() {
        let tokens = tokens();
        assert_eq!(tokens.len(), usize::try_from(SIZE).unwrap());
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len(), "two tokens have the same text");
        for byte in 0..=255_u8 {
            assert_eq!(tokens[usize::from(byte)].chars().count(), 1);
            assert_eq!(bytes_of(u32::from(byte)), Some(vec![byte]));
        }
        assert_eq!(tokens[usize::from(b'A')], "A");
        assert_eq!(tokens[usize::from(b' ')], "\u{120}");
        assert_eq!(tokens[usize::from(b'\n')], "\u{10a}");
        assert_eq!(tokens[0xad], "\u{143}");
    }

    #[test]
    fn both_halves_of_a_merge_are_tokens_made_before_it() {
        let mut known: HashSet<Vec<u8>> = (0..=255_u8).map(|byte| vec![byte]).collect();
        for (left, right) in MERGES {
            assert!(known.contains(left) && known.contains(right), "{left:?} {right:?}");
            assert!(known.insert([left, right].concat()), "{left:?} {right:?} is made twice");
        }
    }

    #[test]
    fn ids_lead_back_to_the_texts_of_the_special_tokens() {
        for token in Special::ALL {
            assert_eq!(bytes_of(token.id()).unwrap(), token.text().as_bytes());
        }
        assert_eq!(Special::ToolCallEnd.id() + 1, SIZE);
        assert_eq!(bytes_of(SIZE), None);
    }

    #[test]
    fn marks_of_a_template_come_last_and_are_tokens_of_their_own() {
        let marks = ["<|turn|>", "<call>"].map(|text| Mark { text: text.to_owned(), is_control: text != "<call>" });
        let mut gguf = Gguf::default();
        describe(&mut gguf, "gpt-2", Some(&ChatSpec { template: "x".to_owned(), marks: marks.to_vec() }));
        let get = |key: &str| gguf.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value).unwrap();
        let Value::Texts(texts) = get("tokenizer.ggml.tokens") else { panic!("tokens are not texts") };
        let Value::I32s(types) = get("tokenizer.ggml.token_type") else { panic!("types are not numbers") };
        assert_eq!(texts.len(), usize::try_from(size_with(&marks)).unwrap());
        assert_eq!(
            (&texts[texts.len() - 2..], types.len()),
            (&["<|turn|>", "<call>"].map(str::to_owned)[..], texts.len())
        );
        assert_eq!(types[types.len() - 2..], [3, 4]);
        assert_eq!(texts[..texts.len() - 2], tokens(), "the others stay where they are");
    }

    #[test]
    fn some_tokens_hold_whole_characters_and_some_only_parts() {
        let merged: Vec<_> = (256..FIRST_SPECIAL).filter_map(bytes_of).collect();
        assert!(merged.contains(&"你".as_bytes().to_vec()));
        assert!(merged.iter().any(|bytes| std::str::from_utf8(bytes).is_err()));
    }
}
