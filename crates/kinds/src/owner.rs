//! Owners of rows: the name under which a cache remembers who has sent all tokens of a row.
//!
//! The server makes one out of an API key, the engine claims rows with it. It names an owner by a digest that the
//! caller makes: it must never hold a secret itself.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::key::{from_hex, to_hex};

/// An owner of rows, as a digest that its keeper chose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId([u8; Self::LENGTH]);

impl OwnerId {
    /// Bytes of an owner's name, in memory and in files.
    pub const LENGTH: usize = 16;

    /// An owner from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Parses exactly 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        from_hex(text).map(Self)
    }

    /// The bytes of the name.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "OwnerId({self})")
    }
}

impl Serialize for OwnerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for OwnerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| de::Error::custom("an owner has 32 lower-case hexadecimal digits"))
    }
}
