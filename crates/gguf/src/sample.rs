//! For tests: a writer of GGUF files from the description of the format, which shares nothing with the reader.

use crate::tensors::Tensor;
use crate::value::Value;

/// A file before it is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
}

pub(crate) fn tensor(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Tensor {
    Tensor { name: name.to_owned(), dimensions: dimensions.to_vec(), kind, offset }
}

fn put_run(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(number) => out.extend(number.to_le_bytes()),
        Value::I8(number) => out.extend(number.to_le_bytes()),
        Value::U16(number) => out.extend(number.to_le_bytes()),
        Value::I16(number) => out.extend(number.to_le_bytes()),
        Value::U32(number) => out.extend(number.to_le_bytes()),
        Value::I32(number) => out.extend(number.to_le_bytes()),
        Value::F32(number) => out.extend(number.to_le_bytes()),
        Value::Bool(value) => out.push(u8::from(*value)),
        Value::Text(text) => put_run(out, text.as_bytes()),
        Value::LongText(length) => put_run(out, &vec![b'x'; usize::try_from(*length).unwrap()]),
        Value::U64(number) => out.extend(number.to_le_bytes()),
        Value::I64(number) => out.extend(number.to_le_bytes()),
        Value::F64(number) => out.extend(number.to_le_bytes()),
        Value::Array(array) => {
            out.extend((array.element as u32).to_le_bytes());
            out.extend((array.values.len() as u64).to_le_bytes());
            array.values.iter().for_each(|value| put_value(out, value));
        }
    }
}

/// A key with its value.
pub(crate) fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_run(&mut out, key.as_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(value);
    out
}

/// Everything before the first key.
pub(crate) fn start(version: u32, tensors: u64, keys: u64) -> Vec<u8> {
    [&b"GGUF"[..], &version.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
}

impl Sample {
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.metadata.push((key.to_owned(), value));
    }

    /// The header without padding.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = start(3, self.tensors.len() as u64, self.metadata.len() as u64);
        for (key, value) in &self.metadata {
            let mut bytes = Vec::new();
            put_value(&mut bytes, value);
            out.extend(entry(key, value.kind() as u32, &bytes));
        }
        for tensor in &self.tensors {
            put_run(&mut out, tensor.name.as_bytes());
            out.extend(u32::try_from(tensor.dimensions.len()).unwrap().to_le_bytes());
            tensor.dimensions.iter().for_each(|length| out.extend(length.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out
    }

    /// The whole file, with `data` bytes of tensor data.
    pub(crate) fn to_bytes(&self, data: usize) -> Vec<u8> {
        let stated = self.metadata.iter().find(|(key, _)| key == "general.alignment");
        let alignment = stated.and_then(|(_, value)| value.as_unsigned()).unwrap_or(32);
        let mut out = self.header();
        if let (Ok(alignment), true) = (usize::try_from(alignment), data > 0) {
            out.resize(out.len().next_multiple_of(alignment) + data, 7);
        }
        out
    }
}
