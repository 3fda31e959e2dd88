//! The keys and values of a GGUF header, as the rules ask for them.
//!
//! Made from what `poncho-gguf` read. Texts end at their first zero byte and numbers are bits, as llama.cpp sees them.

use std::borrow::Cow;
use std::collections::HashSet;

use poncho_gguf::{Array, Kind, Value};

/// The key of the vocabulary.
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";

/// Everything before the tensors.
#[derive(Debug)]
pub(super) struct Metadata {
    /// `general.architecture`, which begins the keys of the model's own.
    pub(super) architecture: String,
    /// The vocabulary.
    pub(super) tokens: Tokens,
    values: poncho_gguf::Metadata,
}

/// What the rules want to know of the vocabulary.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// How many there are; `None` without a vocabulary.
    pub(super) count: Option<u64>,
    /// Those from `<0x00>` to `<0xFF>`.
    pub(super) bytes: usize,
    /// The first token with a text that another one has too.
    pub(super) twice: Option<u64>,
}

impl Tokens {
    /// Reads the vocabulary as llama.cpp does: a token ends at its first zero byte, an empty one gets a name.
    fn of(array: &Array) -> Result<Self, String> {
        if array.element != Kind::Text {
            return Ok(Self::default());
        }
        let too_many = || format!("{TOKENS} has {} tokens, more than can be checked", array.count);
        let mut tokens = Self { count: Some(array.count), ..Self::default() };
        let mut seen: HashSet<Cow<'_, [u8]>> = HashSet::new();
        for (index, value) in (0_u64..).zip(array.kept().ok_or_else(too_many)?) {
            let token = value.as_text().ok_or_else(too_many)?.before_zero();
            let token = match token {
                [] => Cow::Owned(format!("[EMPTY_{index}]").into_bytes()),
                token => Cow::Borrowed(token),
            };
            tokens.bytes += usize::from(is_byte_token(&token));
            if !seen.insert(token) && tokens.twice.is_none() {
                tokens.twice = Some(index);
            }
        }
        Ok(tokens)
    }
}

/// `<0x00>` to `<0xFF>`.
fn is_byte_token(token: &[u8]) -> bool {
    let digits = token.strip_prefix(b"<0x").and_then(|rest| rest.strip_suffix(b">"));
    digits.is_some_and(|digits| {
        digits.len() == 2 && digits.iter().all(|d| d.is_ascii_digit() || (b'A'..=b'F').contains(d))
    })
}

impl Metadata {
    /// Refuses what llama.cpp cannot read or these checks cannot see.
    pub(super) fn new(values: poncho_gguf::Metadata) -> Result<Self, String> {
        for (key, value) in values.iter() {
            match value {
                Value::LongText(bytes) => {
                    return Err(format!("{key} has {bytes} bytes, more than any text of a model"));
                }
                Value::Array(array) if array.element == Kind::Array => {
                    return Err(format!("the array {key} has no valid type: its elements are arrays"));
                }
                _ => {}
            }
        }
        let tokens = values.get(TOKENS).and_then(Value::as_array).map_or_else(|| Ok(Tokens::default()), Tokens::of)?;
        let mut metadata = Self { architecture: String::new(), tokens, values };
        metadata.architecture = metadata.text("general.architecture").unwrap_or_default().into_owned();
        Ok(metadata)
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A text up to its first zero byte.
    pub(super) fn text(&self, key: &str) -> Option<Cow<'_, str>> {
        let text = self.value(key)?.as_text()?;
        Some(String::from_utf8_lossy(text.before_zero()))
    }

    /// The bits of a single number that is not a float.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        let value = self.value(key)?;
        value.bits().filter(|_| value.as_float().is_none())
    }

    /// The full name of a key of the architecture's own.
    pub(super) fn own_key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn own_text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.text(&self.own_key(name))
    }

    pub(super) fn own_number(&self, name: &str) -> Option<u64> {
        self.number(&self.own_key(name))
    }

    pub(super) fn has_own(&self, name: &str) -> bool {
        self.value(&self.own_key(name)).is_some()
    }

    /// A number for each layer: a single one stands for all of them.
    pub(super) fn own_for_layers(&self, name: &str) -> Option<Layers> {
        match self.value(&self.own_key(name))? {
            Value::Array(array) if array.element.width().is_none() => None,
            Value::Array(array) => Some(Layers::Each(array.kept()?.iter().filter_map(Value::bits).collect())),
            one => one.bits().map(Layers::All),
        }
    }

    /// Keys of the architecture's own that hold one floating-point number.
    pub(super) fn own_floats(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().filter_map(|(key, value)| {
            let own = key.strip_prefix(self.architecture.as_str()).is_some_and(|rest| rest.starts_with('.'));
            value.as_float().filter(|_| own).map(|float| (key, float))
        })
    }
}

/// A number for each layer.
#[derive(Debug, Clone)]
pub(super) enum Layers {
    All(u64),
    Each(Vec<u64>),
}

impl Layers {
    pub(super) fn get(&self, layer: usize) -> Option<u64> {
        match self {
            Self::All(number) => Some(*number),
            Self::Each(numbers) => numbers.get(layer).copied(),
        }
    }

    /// Layers that have values of their own.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::All(_) => 1,
            Self::Each(numbers) => numbers.len(),
        }
    }

    pub(super) fn largest(&self) -> u64 {
        match self {
            Self::All(number) => *number,
            Self::Each(numbers) => numbers.iter().copied().max().unwrap_or(0),
        }
    }
}
