//! The table of tensors, and the sizes of their types.
//!
//! Read by `header` after the metadata. The types are those of the pinned llama.cpp; a test of the engine compares the
//! table with the library. Nothing here reads the data of a tensor.

use std::io::{Read, Seek};

use crate::cursor::Cursor;
use crate::error::{Damage, GgufError};
use crate::limits::{MAX_DIMENSIONS, MAX_TENSORS};
use crate::value::shortened;

/// The description of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its dimensions, the innermost first; at most four. None means a single number.
    pub dimensions: Vec<u64>,
    /// GGML's number of its type.
    pub kind: u32,
    /// Where its data starts, from the start of all data.
    pub offset: u64,
}

impl Tensor {
    /// Its weights; `u64::MAX` if there are more.
    #[must_use]
    pub fn weights(&self) -> u64 {
        self.dimensions.iter().fold(1, |product, dimension| product.saturating_mul(*dimension))
    }

    /// Its type, if it is known.
    #[must_use]
    pub fn tensor_type(&self) -> Option<TensorType> {
        TensorType::from_number(self.kind)
    }

    /// The bytes of its data; `None` if its type is not known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let TensorType { block, bytes, .. } = self.tensor_type()?;
        Some((self.weights() / block).saturating_mul(bytes))
    }

    fn read(cursor: &mut Cursor<impl Read + Seek>) -> Result<Self, GgufError> {
        let name = cursor.name()?;
        let count = cursor.u32()?;
        if count > MAX_DIMENSIONS {
            let name = shortened(&name);
            return Err(cursor.damaged(Damage::TooManyDimensions { name, count, limit: MAX_DIMENSIONS }));
        }
        let dimensions = (0..count).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
        Ok(Self { name, dimensions, kind: cursor.u32()?, offset: cursor.u64()? })
    }
}

pub(crate) fn read_tensors(cursor: &mut Cursor<impl Read + Seek>, count: u64) -> Result<Vec<Tensor>, GgufError> {
    if count > MAX_TENSORS {
        return Err(cursor.damaged(Damage::TooManyTensors { count, limit: MAX_TENSORS }));
    }
    let mut tensors = Vec::new();
    for _ in 0..count {
        tensors.push(Tensor::read(cursor)?);
    }
    Ok(tensors)
}

/// A type of tensors: blocks of some weights in some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorType {
    /// GGML's number.
    pub number: u32,
    /// GGML's name.
    pub name: &'static str,
    /// Weights in a block.
    pub block: u64,
    /// Bytes of a block.
    pub bytes: u64,
}

const fn row(number: u32, name: &'static str, block: u64, bytes: u64) -> TensorType {
    TensorType { number, name, block, bytes }
}

/// Numbers that are missing here belong to types that were removed from the format.
const TENSOR_TYPES: [TensorType; 36] = [
    row(0, "f32", 1, 4),
    row(1, "f16", 1, 2),
    row(2, "q4_0", 32, 18),
    row(3, "q4_1", 32, 20),
    row(6, "q5_0", 32, 22),
    row(7, "q5_1", 32, 24),
    row(8, "q8_0", 32, 34),
    row(9, "q8_1", 32, 36),
    row(10, "q2_K", 256, 84),
    row(11, "q3_K", 256, 110),
    row(12, "q4_K", 256, 144),
    row(13, "q5_K", 256, 176),
    row(14, "q6_K", 256, 210),
    row(15, "q8_K", 256, 292),
    row(16, "iq2_xxs", 256, 66),
    row(17, "iq2_xs", 256, 74),
    row(18, "iq3_xxs", 256, 98),
    row(19, "iq1_s", 256, 50),
    row(20, "iq4_nl", 32, 18),
    row(21, "iq3_s", 256, 110),
    row(22, "iq2_s", 256, 82),
    row(23, "iq4_xs", 256, 136),
    row(24, "i8", 1, 1),
    row(25, "i16", 1, 2),
    row(26, "i32", 1, 4),
    row(27, "i64", 1, 8),
    row(28, "f64", 1, 8),
    row(29, "iq1_m", 256, 56),
    row(30, "bf16", 1, 2),
    row(34, "tq1_0", 256, 54),
    row(35, "tq2_0", 256, 66),
    row(39, "mxfp4", 32, 17),
    row(40, "nvfp4", 64, 36),
    row(41, "q1_0", 128, 18),
    row(42, "q2_0", 64, 18),
    row(43, "f8_e4m3", 1, 1),
];

impl TensorType {
    /// All known types.
    #[must_use]
    pub const fn all() -> &'static [Self] {
        &TENSOR_TYPES
    }

    /// The type with a number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        TENSOR_TYPES.iter().copied().find(|known| known.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_whole_blocks() {
        let tensor = |dimensions: &[u64], kind| Tensor {
            name: "t".to_owned(),
            dimensions: dimensions.to_vec(),
            kind,
            offset: 0,
        };
        assert_eq!(tensor(&[], 0).bytes(), Some(4), "a single number");
        assert_eq!(tensor(&[64, 2], 2).bytes(), Some(72));
        assert_eq!(tensor(&[8, 0], 0).bytes(), Some(0));
        assert_eq!(tensor(&[8], 4).bytes(), None, "a removed type");
        assert_eq!(tensor(&[u64::MAX, 2], 0).weights(), u64::MAX);
        assert_eq!(tensor(&[u64::MAX, 2], 0).bytes(), Some(u64::MAX));
    }

    #[test]
    fn numbers_are_unique_and_in_order() {
        assert!(TENSOR_TYPES.windows(2).all(|pair| pair[0].number < pair[1].number));
        assert!(TENSOR_TYPES.iter().all(|known| known.block > 0 && known.bytes > 0));
    }
}
