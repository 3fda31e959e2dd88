//! The GGUF container: version 3, little-endian, tensor data aligned to 32 bytes, and cutting it into parts.
//!
//! The builders fill a `Gguf` with metadata and tensors, the write functions of the crate turn it into bytes. It knows
//! nothing of models: it never adds, drops or checks a key, except the three that describe a split.

use std::io;

use crate::spec::refused;

/// The default of the format; another one would need a `general.alignment` key.
const ALIGNMENT: usize = 32;

/// A metadata value; the kinds that the generated files use, and any other as bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned, 16 bits.
    U16(u16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// A float.
    F32(f32),
    /// Yes or no.
    Bool(bool),
    /// A text.
    Text(String),
    /// An array of signed numbers.
    I32s(Vec<i32>),
    /// An array of texts.
    Texts(Vec<String>),
    /// GGUF's number of a type, and the bytes of a value of it, whether or not they fit.
    Raw(u32, Vec<u8>),
}

impl Value {
    fn type_number(&self) -> u32 {
        match self {
            Self::U16(_) => 2,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            Self::I32s(_) | Self::Texts(_) => 9,
            Self::Raw(kind, _) => *kind,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U16(value) => out.extend(value.to_le_bytes()),
            Self::U32(value) => out.extend(value.to_le_bytes()),
            Self::I32(value) => out.extend(value.to_le_bytes()),
            Self::F32(value) => out.extend(value.to_le_bytes()),
            Self::Bool(value) => out.push(u8::from(*value)),
            Self::Text(value) => put_text(out, value),
            Self::I32s(values) => {
                put_array_header(out, 5, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            Self::Texts(values) => {
                put_array_header(out, 8, values.len());
                values.iter().for_each(|value| put_text(out, value));
            }
            Self::Raw(_, bytes) => out.extend(bytes),
        }
    }
}

/// Element type of a tensor, with the number that GGUF gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// 32-bit floats.
    F32 = 0,
    /// 16-bit floats.
    F16 = 1,
    /// 4 bits and a scale for each 32 weights.
    Q4_0 = 2,
    /// 16-bit integers, which no weight has.
    I16 = 25,
    /// 32-bit integers, which no weight has.
    I32 = 26,
}

impl TensorType {
    /// Bytes of this many elements.
    pub(crate) fn bytes(self, count: usize) -> usize {
        match self {
            Self::F32 | Self::I32 => count * 4,
            Self::F16 | Self::I16 => count * 2,
            Self::Q4_0 => count.div_ceil(32) * 18,
        }
    }
}

/// A named array; `shape` starts with the dimension that is contiguous in `data`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u32>,
    pub(crate) kind: TensorType,
    pub(crate) data: Vec<u8>,
}

/// One GGUF file before it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gguf {
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl Gguf {
    pub(crate) fn set(&mut self, key: impl Into<String>, value: Value) {
        self.metadata.push((key.into(), value));
    }

    pub(crate) fn set_text(&mut self, key: impl Into<String>, value: &str) {
        self.set(key, Value::Text(value.to_owned()));
    }

    pub(crate) fn add(&mut self, tensor: Tensor) {
        self.tensors.push(tensor);
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (mut out, _) = self.header(|tensor| tensor.data.len());
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            pad(&mut out);
        }
        out
    }

    /// Everything in front of the data, and the bytes of data that it promises.
    #[expect(clippy::cast_possible_truncation, reason = "a tensor has up to three dimensions")]
    pub(crate) fn header(&self, bytes_of: impl Fn(&Tensor) -> usize) -> (Vec<u8>, usize) {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(3_u32.to_le_bytes());
        put_length(&mut out, self.tensors.len());
        put_length(&mut out, self.metadata.len());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            out.extend(value.type_number().to_le_bytes());
            value.put(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|size| out.extend(u64::from(*size).to_le_bytes()));
            out.extend((tensor.kind as u32).to_le_bytes());
            put_length(&mut out, offset);
            offset += bytes_of(tensor).next_multiple_of(ALIGNMENT);
        }
        pad(&mut out);
        (out, offset)
    }

    /// Cuts the tensors into `parts` runs of about the same number; the first part keeps the metadata, as llama.cpp
    /// expects.
    pub(crate) fn split(self, parts: u16) -> io::Result<Vec<Self>> {
        let total = self.tensors.len();
        let Ok(total_i32) = i32::try_from(total) else {
            return Err(refused(format!("{total} tensors are more than a split file can count; use fewer layers")));
        };
        if parts == 0 || usize::from(parts) > total {
            return Err(refused(format!("{total} tensors cannot fill {parts} parts; ask for 1 to {total}")));
        }
        let mut tensors = self.tensors.into_iter();
        let mut metadata = self.metadata;
        let files = (0..parts).map(|number| {
            let end = total * (usize::from(number) + 1) / usize::from(parts);
            let start = total * usize::from(number) / usize::from(parts);
            let mut part = Self { metadata: std::mem::take(&mut metadata), tensors: Vec::new() };
            part.set("split.no", Value::U16(number));
            part.set("split.count", Value::U16(parts));
            part.set("split.tensors.count", Value::I32(total_i32));
            part.tensors.extend(tensors.by_ref().take(end - start));
            part
        });
        Ok(files.collect())
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    out.extend((length as u64).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_length(out, text.len());
    out.extend(text.as_bytes());
}

fn put_array_header(out: &mut Vec<u8>, element_type: u32, length: usize) {
    out.extend(element_type.to_le_bytes());
    put_length(out, length);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use poncho_gguf::{Gguf as Header, Keep, Value as Read};

    use crate::models;
    use crate::spec::{ModelKind, ModelSpec, WeightType};

    fn check_ranges(bytes: &[u8]) -> Header {
        let header = Header::read(Cursor::new(bytes), &Keep::arrays_up_to(usize::MAX)).unwrap();
        assert_eq!((header.version, header.alignment), (3, 32));
        let mut free = header.data_start();
        for tensor in &header.tensors {
            assert!(tensor.name.len() < 64, "{} is too long a name", tensor.name);
            assert_eq!(tensor.offset % 32, 0, "{}", tensor.name);
            let start = header.data_start() + tensor.offset;
            let length = tensor.bytes().unwrap();
            assert!(length > 0, "{} is empty", tensor.name);
            assert!(start >= free, "{} overlaps its predecessor", tensor.name);
            free = start + length;
            assert!(free <= bytes.len() as u64, "{} ends past the file", tensor.name);
        }
        assert!(bytes.len() as u64 - free < 32, "bytes that no tensor owns");
        header
    }

    #[test]
    fn tensors_are_aligned_inside_the_file_and_do_not_overlap() {
        for kind in ModelKind::ALL {
            for weight_type in [WeightType::F16, WeightType::F32] {
                let spec = ModelSpec { weight_type, ..ModelSpec::tiny(kind) };
                let file = check_ranges(&models::build(&spec).unwrap().to_bytes());
                let file_type = if weight_type == WeightType::F16 { 1_u32 } else { 0 };
                assert_eq!(file.metadata.get("general.file_type"), Some(&Read::U32(file_type)));
                let mut names: Vec<_> = file.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), file.tensors.len(), "a tensor name occurs twice");
            }
        }
    }

    #[test]
    fn parts_hold_every_tensor_once_and_say_which_part_they_are() {
        let whole = models::build(&ModelSpec::tiny(ModelKind::Attention)).unwrap();
        let parts = whole.clone().split(3).unwrap();
        assert_eq!(parts.len(), 3);
        let mut tensors = Vec::new();
        for (number, part) in parts.into_iter().enumerate() {
            let file = check_ranges(&part.to_bytes());
            assert!(!file.tensors.is_empty());
            assert_eq!(file.metadata.get("split.no"), Some(&Read::U16(u16::try_from(number).unwrap())));
            assert_eq!(file.metadata.get("split.count"), Some(&Read::U16(3)));
            let all = i32::try_from(whole.tensors.len()).unwrap();
            assert_eq!(file.metadata.get("split.tensors.count"), Some(&Read::I32(all)));
            assert_eq!(file.metadata.get("general.architecture").is_some(), number == 0);
            tensors.extend(part.tensors);
        }
        assert_eq!(tensors, whole.tensors);
    }

    #[test]
    fn a_split_into_no_parts_or_into_empty_parts_is_refused() {
        let whole = models::build(&ModelSpec::tiny(ModelKind::Recurrent)).unwrap();
        let tensors = u16::try_from(whole.tensors.len()).unwrap();
        assert!(whole.clone().split(0).is_err());
        assert!(whole.clone().split(tensors + 1).is_err());
        assert_eq!(whole.split(tensors).unwrap().len(), usize::from(tensors));
    }
}
