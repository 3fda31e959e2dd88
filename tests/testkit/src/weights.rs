//! Random tensors with a chosen size of their values, and the conversion to 16-bit floats.
//!
//! The model builders ask for each tensor by name; the name and the seed of the spec alone decide its values. Nothing
//! here knows what a tensor is for.

use std::ops::Range;

use crate::gguf::{Tensor, TensorType};
use crate::random::Random;
use crate::spec::WeightType;

/// Makes the tensors of one file.
pub(crate) struct Weights {
    pub(crate) seed: u64,
    pub(crate) matrix_type: WeightType,
}

impl Weights {
    /// A matrix that maps `columns` inputs of deviation 1 to `rows` outputs of deviation `gain`.
    pub(crate) fn matrix(&self, name: String, columns: u32, rows: u32, gain: f32) -> Tensor {
        self.matrix_of_rows(name, columns, (0..rows).map(|_| gain))
    }

    /// Like `matrix`, with a gain for each row.
    pub(crate) fn matrix_of_rows(&self, name: String, columns: u32, gains: impl Iterator<Item = f32>) -> Tensor {
        let mut random = Random::new(self.seed, &name);
        let unit = 1.0 / (columns as f32).sqrt();
        let mut rows = 0;
        let mut values = Vec::new();
        for gain in gains {
            rows += 1;
            values.extend((0..columns).map(|_| random.bell() * unit * gain));
        }
        let (kind, data) = match self.matrix_type {
            WeightType::F32 => (TensorType::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            WeightType::F16 => (TensorType::F16, values.iter().flat_map(|value| half_bytes(*value)).collect()),
        };
        Tensor { name, shape: vec![columns, rows], kind, data }
    }

    /// Factors of a normalisation: `center` with a tenth of noise, so that mixing up two norms shows.
    pub(crate) fn norm(&self, name: String, shape: &[u32], center: f32) -> Tensor {
        self.floats(name, shape, |random| center * (1.0 + 0.1 * random.bell()))
    }

    /// 32-bit values of mean 0 and the given deviation, for convolution kernels and biases.
    pub(crate) fn noise(&self, name: String, shape: &[u32], deviation: f32) -> Tensor {
        self.floats(name, shape, |random| deviation * random.bell())
    }

    /// 32-bit values spread evenly over a range.
    pub(crate) fn spread(&self, name: String, shape: &[u32], range: Range<f32>) -> Tensor {
        self.floats(name, shape, |random| random.between(range.start, range.end))
    }

    fn floats(&self, name: String, shape: &[u32], mut draw: impl FnMut(&mut Random) -> f32) -> Tensor {
        let mut random = Random::new(self.seed, &name);
        let count = shape.iter().product::<u32>();
        let data = (0..count).flat_map(|_| draw(&mut random).to_le_bytes()).collect();
        Tensor { name, shape: shape.to_vec(), kind: TensorType::F32, data }
    }
}

/// IEEE 754 half precision, little-endian, rounded to nearest even; values too large become the largest finite one.
fn half_bytes(value: f32) -> [u8; 2] {
    let sign = (value.to_bits() >> 16) & 0x8000;
    let magnitude = value.abs().min(65_504.0);
    let bits = if magnitude < 6.103_515_6e-5 {
        // Neighbours of 0.5 are as far apart as subnormal halves (2^-24), so the addition does the rounding.
        (magnitude + 0.5).to_bits() - 0.5_f32.to_bits()
    } else {
        let wide = magnitude.to_bits();
        let rounded = wide + 0x0fff + ((wide >> 13) & 1);
        (rounded - 0x3800_0000) >> 13
    };
    let [low, high, ..] = (sign | bits).to_le_bytes();
    [low, high]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_as_the_standard_says() {
        let cases: [(f32, u16); 12] = [
            (0.0, 0x0000),
            (-0.0, 0x8000),
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (0.1, 0x2e66),
            (65_504.0, 0x7bff),
            (1e9, 0x7bff),
            (6.103_515_6e-5, 0x0400),
            (5.960_464_5e-8, 0x0001),
            // Half way between two neighbours: to the even one.
            (1.000_488_3, 0x3c00),
            (1.001_464_8, 0x3c02),
            (2.980_232_2e-8, 0x0000),
        ];
        for (value, bits) in cases {
            assert_eq!(half_bytes(value), bits.to_le_bytes(), "{value}");
        }
    }

    #[test]
    fn a_matrix_has_the_asked_gain_and_shape() {
        let weights = Weights { seed: 5, matrix_type: WeightType::F32 };
        let tensor = weights.matrix("m".to_owned(), 64, 100, 3.0);
        assert_eq!(tensor.shape, [64, 100]);
        let values: Vec<f32> =
            tensor.data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(values.len(), 6400);
        let deviation = (values.iter().map(|x| x * x).sum::<f32>() / 6400.0).sqrt();
        assert!((deviation * 8.0 - 3.0).abs() < 0.15, "{deviation}");
    }
}
