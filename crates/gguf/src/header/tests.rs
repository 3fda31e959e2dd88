//! Files as writers make them, files as accidents and attackers leave them, and bytes of all kinds.

use std::fs::File;
use std::io::{Cursor, Seek, SeekFrom, Write};

use proptest::prelude::*;

use super::*;
use crate::limits::{MAX_KEYS, MAX_TENSORS, MAX_VISITED};
use crate::sample::{Sample, entry, start, tensor};
use crate::value::{Array, Kind};
use crate::{Facts, GgufIdentity};

const ALL: Keep<'static> = Keep { text: u64::MAX, array: u64::MAX, whole: &[] };

fn texts(texts: &[&str]) -> Value {
    let values: Vec<Value> = texts.iter().map(|text| Value::Text((*text).into())).collect();
    Value::Array(Box::new(Array { element: Kind::Text, count: values.len() as u64, values }))
}

fn array_of(value: Value) -> Value {
    Value::Array(Box::new(Array { element: value.kind(), count: 1, values: vec![value] }))
}

/// A file with every shape of value.
fn sample() -> Sample {
    let mut sample = Sample::default();
    sample.set("tokenizer.ggml.tokens", texts(&["a", ""]));
    sample.set("general.architecture", Value::Text("llama".into()));
    sample.set("nested", array_of(texts(&["a", ""])));
    sample.set("general.alignment", Value::U32(64));
    sample.set("flag", Value::Bool(true));
    sample.set("rope", Value::F32(1e4));
    sample.tensors = vec![tensor("a", &[8, 2], 0, 0), tensor("b", &[], 1, 64)];
    sample
}

fn read(bytes: &[u8]) -> Result<Gguf, GgufError> {
    Gguf::read(Cursor::new(bytes), &ALL)
}

fn damage(bytes: &[u8]) -> Damage {
    match read(bytes) {
        Err(GgufError::Damaged { damage, .. }) => damage,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_header_is_read_back_whole() {
    let sample = sample();
    let file = sample.to_bytes(128);
    let header = read(&file).unwrap();
    assert_eq!(header.metadata.clone().into_iter().collect::<Vec<_>>(), sample.metadata);
    assert_eq!(header.tensors, sample.tensors);
    assert_eq!((header.version, header.alignment), (3, 64));
    assert_eq!((header.header_bytes, header.file_bytes), (sample.header().len() as u64, file.len() as u64));
    assert_eq!(header.data_start(), (sample.header().len() as u64).next_multiple_of(64));
    header.check_complete().unwrap();
}

#[test]
fn a_reader_that_stands_anywhere_is_read_from_its_start() {
    let mut reader = Cursor::new(sample().to_bytes(128));
    reader.seek(SeekFrom::Start(77)).unwrap();
    assert!(Gguf::read(&mut reader, &ALL).is_ok());
}

#[test]
fn long_texts_and_arrays_are_skipped() {
    let file = sample().to_bytes(128);
    let header = Gguf::read(Cursor::new(&file), &Keep { text: 4, array: 1, whole: &[] }).unwrap();
    assert_eq!(header.metadata.get("general.architecture"), Some(&Value::LongText(5)));
    let tokens = header.metadata.get("tokenizer.ggml.tokens").and_then(Value::as_array).unwrap();
    assert_eq!((tokens.element, tokens.count, tokens.kept()), (Kind::Text, 2, None));
    let outer = header.metadata.get("nested").and_then(Value::as_array).unwrap();
    let inner = outer.kept().unwrap()[0].as_array().unwrap();
    assert_eq!((inner.count, inner.kept()), (2, None));
    assert_eq!(header.tensors, sample().tensors, "what follows is read");
    let whole = Keep { text: 4, array: 0, whole: &["tokenizer.ggml.tokens"] };
    let header = Gguf::read(Cursor::new(&file), &whole).unwrap();
    assert_eq!(header.metadata.get("tokenizer.ggml.tokens"), Some(&texts(&["a", ""])));
}

#[test]
fn every_cut_is_reported_as_a_cut() {
    let file = sample().to_bytes(128);
    for length in 4..file.len() {
        let read = read(&file[..length]).and_then(|header| header.check_complete());
        let whole = length >= file.len() - 128 + 66;
        assert_eq!(matches!(read, Err(GgufError::CutShort { .. })), !whole, "cut at {length}: {read:?}");
    }
}

#[test]
fn other_versions_and_byte_orders_are_named() {
    for version in [0, 1, 4, 9] {
        let error = read(&start(version, 0, 0)).unwrap_err();
        assert!(matches!(error, GgufError::Version { version: named } if named == version), "{error}");
    }
    assert!(matches!(read(&start(3_u32.swap_bytes(), 0, 0)), Err(GgufError::BigEndian)));
    assert!(read(&start(2, 0, 0)).is_ok());
}

#[test]
fn damage_is_named() {
    let one = |bytes: Vec<u8>| [start(3, 0, 1), bytes, vec![0; 70_000]].concat();
    assert!(matches!(damage(&start(3, 0, MAX_KEYS + 1)), Damage::TooManyKeys { .. }));
    assert!(matches!(damage(&start(3, MAX_TENSORS + 1, 0)), Damage::TooManyTensors { .. }));
    assert!(matches!(damage(&one(65_536_u64.to_le_bytes().to_vec())), Damage::LongName { length: 65_536, .. }));
    assert!(matches!(damage(&one(u64::MAX.to_le_bytes().to_vec())), Damage::LongName { .. }));
    assert_eq!(damage(&one(entry("x", 13, &[]))), Damage::UnknownType { key: "x".to_owned(), got: 13 });
    assert!(matches!(damage(&one(entry("x\0y", 7, &[0]))), Damage::ZeroByte { .. }));
    assert!(matches!(damage(&one(entry("x", 8, &u64::MAX.to_le_bytes()))), Damage::ImpossibleLength { .. }));
    let array = |element: u32, count: u64| [&element.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert!(matches!(damage(&one(entry("x", 9, &array(10, u64::MAX)))), Damage::ImpossibleLength { .. }));
    assert!(matches!(damage(&one(entry("x", 9, &array(8, u64::MAX)))), Damage::ImpossibleLength { .. }));
    assert!(matches!(damage(&one(entry("x", 9, &array(9, 1).repeat(9)))), Damage::NestedTooDeep { .. }));
    let twice = [start(3, 0, 2), entry("x", 7, &[0]), entry("x", 7, &[1])].concat();
    assert_eq!(damage(&twice), Damage::DuplicateKey { key: "x".to_owned() });
    let mut many = Sample { tensors: vec![tensor("t", &[1; 5], 0, 0)], ..Sample::default() };
    assert!(matches!(damage(&many.to_bytes(64)), Damage::TooManyDimensions { count: 5, .. }));
    many.tensors = vec![tensor("t\0", &[1], 0, 0)];
    assert!(matches!(damage(&many.to_bytes(64)), Damage::ZeroByte { .. }));
}

/// Four levels of arrays are read, skipped or kept.
#[test]
fn nesting_is_bounded_the_same_when_it_is_skipped() {
    let nested = |levels: usize| {
        let head = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
        let innermost = [&0_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &[5]].concat();
        [start(3, 0, 1), entry("x", 9, &[head.repeat(levels - 1), innermost].concat())].concat()
    };
    for keep in [ALL, Keep::FACTS] {
        assert!(Gguf::read(Cursor::new(nested(4)), &keep).is_ok());
        assert!(matches!(
            Gguf::read(Cursor::new(nested(5)), &keep),
            Err(GgufError::Damaged { damage: Damage::NestedTooDeep { .. }, .. })
        ));
    }
}

/// A sparse file has room for any count: zeros are empty texts, empty keys and tensors without dimensions.
fn sparse(head: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(head).unwrap();
    file.set_len(1 << 40).unwrap();
    file
}

#[test]
fn a_sparse_file_drives_no_endless_loop_and_takes_no_memory() {
    let array = |element: u32, count: u64| [&element.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let one = |value: &[u8]| sparse(&[start(3, 0, 1), entry("x", 9, value)].concat());
    for keep in [ALL, Keep::FACTS] {
        let of = |file: &File| Gguf::read(file, &keep);
        for element in [8, 9] {
            let error = of(&one(&array(element, MAX_VISITED + 1))).unwrap_err();
            assert!(matches!(error, GgufError::Damaged { damage: Damage::TooManyElements { .. }, .. }), "{error}");
        }
        let bytes = of(&one(&array(0, 1 << 39))).unwrap();
        assert_eq!(bytes.metadata.get("x").and_then(Value::as_array).unwrap().kept(), None, "too many to keep");
        let text = of(&sparse(&[start(3, 0, 1), entry("x", 8, &(1_u64 << 39).to_le_bytes())].concat())).unwrap();
        assert_eq!(text.metadata.get("x"), Some(&Value::LongText(1 << 39)));
        assert!(matches!(
            of(&sparse(&start(3, 1 << 30, 0))),
            Err(GgufError::Damaged { damage: Damage::TooManyTensors { .. }, .. })
        ));
        assert!(matches!(
            of(&sparse(&start(3, 0, 2))),
            Err(GgufError::Damaged { damage: Damage::DuplicateKey { .. }, .. })
        ));
    }
}

#[test]
fn the_memory_of_arrays_is_bounded_over_all_keys() {
    let array = [&0_u32.to_le_bytes()[..], &(3_u64 << 20).to_le_bytes(), &vec![0; 3 << 20]].concat();
    let keys = [entry("a", 9, &array), entry("b", 9, &array)].concat();
    let header = read(&[start(3, 0, 2), keys].concat()).unwrap();
    let kept = |key| header.metadata.get(key).and_then(Value::as_array).unwrap().kept().is_some();
    assert!(kept("a") && !kept("b"), "the second one exceeds the budget");
}

#[test]
fn folders_and_missing_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Gguf::open(folder.path(), &ALL), Err(GgufError::NotGguf(NotGguf::Folder))));
    let missing = Gguf::open(&folder.path().join("none"), &ALL);
    assert!(matches!(missing, Err(GgufError::Io(_))));
    let path = folder.path().join("m.gguf");
    // The metadata is read even if the file ends after it.
    let cut = sample().header();
    std::fs::write(&path, &cut[..cut.len() - 10]).unwrap();
    assert!(matches!(Gguf::open(&path, &ALL), Err(GgufError::CutShort { .. })));
    assert_eq!(Metadata::open(&path, &ALL).unwrap().into_iter().collect::<Vec<_>>(), sample().metadata);
}

fn scalar() -> BoxedStrategy<Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        (-1e30_f32..1e30).prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| Value::Text(bytes.into())),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e300_f64..1e300).prop_map(Value::F64),
    ]
    .boxed()
}

/// An array of copies, so that all elements have one kind.
fn repeated(element: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let array = |(value, count): (Value, usize)| {
        let (element, values) = (value.kind(), vec![value; count]);
        Value::Array(Box::new(Array { element, count: values.len() as u64, values }))
    };
    (element, 0_usize..4).prop_map(array).boxed()
}

fn value() -> BoxedStrategy<Value> {
    let one = repeated(scalar());
    let two = repeated(one.clone());
    prop_oneof![4 => scalar(), 2 => one, 1 => two.clone(), 1 => repeated(two)].boxed()
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let metadata = prop::collection::btree_map("[a-z.]{1,12}", value(), 0..12);
    let one = ("[a-z.]{0,12}", prop::collection::vec(any::<u64>(), 0..5), any::<u32>(), any::<u64>());
    let tensors = prop::collection::vec(one, 0..6);
    (metadata, tensors).prop_map(|(metadata, tensors)| Sample {
        metadata: metadata.into_iter().collect(),
        tensors: tensors
            .into_iter()
            .map(|(name, dimensions, kind, offset)| tensor(&name, &dimensions, kind, offset))
            .collect(),
    })
}

/// Reads bytes in all ways; none may panic.
fn read_in_all_ways(bytes: &[u8]) {
    let _ = read(bytes);
    let _ = Gguf::read(Cursor::new(bytes), &Keep { text: 3, array: 2, whole: &["x"] });
    let _ = Facts::read(Cursor::new(bytes));
    if let Ok(identity) = GgufIdentity::read(Cursor::new(bytes)) {
        let data = identity.first_tensor.unwrap_or(0..0);
        assert!(identity.metadata_bytes <= bytes.len() as u64);
        assert!(data.start <= data.end && data.end <= bytes.len() as u64);
    }
}

proptest! {
    #[test]
    fn generated_files_are_read_back(sample in any_sample(), data in 0_usize..100) {
        let file = sample.to_bytes(data);
        let header = read(&file).unwrap();
        prop_assert_eq!(header.tensors, sample.tensors.clone());
        prop_assert_eq!(header.metadata.into_iter().collect::<Vec<_>>(), sample.metadata);
        read_in_all_ways(&file);
    }

    #[test]
    fn damaged_files_are_refused_or_read_but_never_fatal(
        sample in any_sample(),
        at in any::<prop::sample::Index>(),
        byte: u8,
        run in 1_usize..9,
    ) {
        let mut file = sample.to_bytes(50);
        let start = at.index(file.len());
        let end = (start + run).min(file.len());
        file[start..end].fill(byte);
        read_in_all_ways(&file);
    }

    #[test]
    fn arbitrary_bytes_never_panic(tail in prop::collection::vec(any::<u8>(), 0..300), known in any::<bool>()) {
        let head = if known { start(3, 1, 2) } else { Vec::new() };
        read_in_all_ways(&[head, tail].concat());
    }
}
