//! All errors of the reader. The caller adds the path, so the texts begin with "it".
//!
//! Returned by everything in this crate that reads. A variant carries the facts and says what to try next.

use std::io;

use thiserror::Error;

use crate::not_gguf::NotGguf;

/// Why a file cannot be used as a GGUF file.
#[derive(Debug, Error)]
pub enum GgufError {
    /// It is something else.
    #[error("it is not a GGUF file but {0}")]
    NotGguf(NotGguf),
    /// A version that this release does not know.
    #[error(
        "it is a GGUF file of version {version}, and versions 2 and 3 are known; convert the model again with a current llama.cpp"
    )]
    Version {
        /// The version that the file states.
        version: u32,
    },
    /// The file is from a machine with the other byte order.
    #[error("it is a big-endian GGUF file; fetch or convert a little-endian one")]
    BigEndian,
    /// It ends before its header or its tensors do.
    #[error("it is cut short: {needed} bytes are needed and it has {bytes}; fetch it again")]
    CutShort {
        /// Bytes that the header asks for.
        needed: u64,
        /// Bytes of the file.
        bytes: u64,
    },
    /// The header contradicts the format or exceeds a limit.
    #[error("its header is damaged at byte {offset}: {damage}; fetch it again")]
    Damaged {
        /// Position of the reader when it noticed.
        offset: u64,
        /// What is wrong.
        damage: Damage,
    },
    /// The file could not be read.
    #[error("it cannot be read: {0}; check the path and its permissions")]
    Io(#[from] io::Error),
}

/// What is wrong with a header. Names are shortened for messages.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Damage {
    /// More keys than any model has.
    #[error("it has {count} metadata keys, and at most {limit} are allowed")]
    TooManyKeys {
        /// The stated count.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// More tensors than any model has.
    #[error("it has {count} tensors, and at most {limit} are allowed")]
    TooManyTensors {
        /// The stated count.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// A key or a tensor's name that is too long.
    #[error("a name of {length} bytes is longer than the {limit} allowed")]
    LongName {
        /// The stated length.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// A key or a tensor's name with a zero byte, where C++ code would end it.
    #[error("the name {name:?} has a zero byte")]
    ZeroByte {
        /// The name.
        name: String,
    },
    /// Two values for one key.
    #[error("the key {key} appears twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A length beyond the end of any header.
    #[error("it states a length of {length} bytes, which is too long for a header")]
    ImpossibleLength {
        /// The stated length.
        length: u64,
    },
    /// A value type that the format does not define.
    #[error("{key} has the unknown value type {got}")]
    UnknownType {
        /// The key.
        key: String,
        /// The type's number.
        got: u32,
    },
    /// Arrays inside arrays inside arrays.
    #[error("the arrays of {key} are nested deeper than {limit}")]
    NestedTooDeep {
        /// The key.
        key: String,
        /// The limit.
        limit: u32,
    },
    /// More texts in arrays than any vocabulary has.
    #[error("the arrays have more than {limit} texts and inner arrays")]
    TooManyElements {
        /// The limit.
        limit: u64,
    },
    /// Keys and tensor names that take too much memory.
    #[error("its keys and names take more than {limit} bytes")]
    TooMuchText {
        /// The limit.
        limit: u64,
    },
    /// A tensor of too many dimensions.
    #[error("tensor {name} has {count} dimensions, and at most {limit} are possible")]
    TooManyDimensions {
        /// The tensor.
        name: String,
        /// The stated count.
        count: u32,
        /// The limit.
        limit: u32,
    },
    /// A key with a special meaning holds something impossible.
    #[error("{key} is {shown}, which is not a valid value")]
    UnusableValue {
        /// The key.
        key: &'static str,
        /// The value, shortened.
        shown: String,
    },
}
