//! One text or a list: a form that several fields of every dialect have.
//!
//! Used by the request types of the dialects and by the options of a model. Nothing here knows a field.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

/// One text or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Texts(pub(crate) Vec<String>);

/// Reads a text or a list; both go through a visitor so that errors name the element.
pub(crate) struct TextOrList<T>(PhantomData<T>);

impl<T> Default for TextOrList<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

/// What it read.
pub(crate) enum Either<T> {
    Text(String),
    List(Vec<T>),
}

impl<T> TextOrList<T> {
    /// Reads one.
    pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Either<T>, D::Error>
    where
        T: Deserialize<'de>,
    {
        deserializer.deserialize_any(Self(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrList<T> {
    type Value = Either<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string or a list")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Either::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Either::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = list.next_element()? {
            all.push(item);
        }
        Ok(Either::List(all))
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match TextOrList::<String>::read(deserializer)? {
            Either::Text(text) => vec![text],
            Either::List(texts) => texts,
        }))
    }
}
