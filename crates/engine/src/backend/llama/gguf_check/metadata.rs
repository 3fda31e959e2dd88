//! The keys and values of a GGUF header, as the rules ask for them.
//!
//! Filled by `reader.rs`. Values are kept as the file has them: a rule sees the bits that llama.cpp would see.

use std::collections::HashMap;

/// Everything before the tensors.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    /// `general.architecture`, which begins the keys of the model's own.
    pub(super) architecture: String,
    /// The vocabulary, which is too long to keep.
    pub(super) tokens: Tokens,
    values: HashMap<String, Value>,
}

/// What the rules want to know of the vocabulary.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// How many there are; `None` without a vocabulary.
    pub(super) count: Option<u64>,
    /// Those from `<0x00>` to `<0xFF>`.
    pub(super) bytes: usize,
    /// The first whose text another one has too.
    pub(super) twice: Option<u64>,
}

/// A value of the header.
#[derive(Debug)]
pub(super) enum Value {
    Number(Number),
    Text(String),
    Numbers(Vec<Number>),
    /// An array of texts, or one too long to be of interest.
    Array,
}

/// A number with its type, as GGUF counts types.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    pub(super) kind: u32,
    pub(super) bits: u64,
}

impl Number {
    /// As a floating-point number, if it is one.
    pub(super) fn float(self) -> Option<f64> {
        match self.kind {
            6 => u32::try_from(self.bits).ok().map(|bits| f64::from(f32::from_bits(bits))),
            12 => Some(f64::from_bits(self.bits)),
            _ => None,
        }
    }
}

impl Metadata {
    pub(super) fn insert(&mut self, key: String, value: Value) {
        if let ("general.architecture", Value::Text(text)) = (key.as_str(), &value) {
            self.architecture.clone_from(text);
        }
        self.values.insert(key, value);
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.value(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The bits of a single number.
    pub(super) fn number(&self, key: &str) -> Option<u64> {
        match self.value(key) {
            Some(Value::Number(number)) if number.float().is_none() => Some(number.bits),
            _ => None,
        }
    }

    /// The full name of a key of the architecture's own.
    pub(super) fn own_key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(super) fn own_text(&self, name: &str) -> Option<&str> {
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
            Value::Number(number) => Some(Layers::All(number.bits)),
            Value::Numbers(numbers) => Some(Layers::Each(numbers.iter().map(|number| number.bits).collect())),
            Value::Text(_) | Value::Array => None,
        }
    }

    /// Keys of the architecture's own that hold one floating-point number.
    pub(super) fn own_floats(&self) -> impl Iterator<Item = (&str, f64)> {
        self.values.iter().filter_map(|(key, value)| {
            let own = key.strip_prefix(self.architecture.as_str()).is_some_and(|rest| rest.starts_with('.'));
            match value {
                Value::Number(number) if own => number.float().map(|float| (key.as_str(), float)),
                _ => None,
            }
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

    /// Layers that it tells apart.
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
