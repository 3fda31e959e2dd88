//! What is refused, by name, and what must not be.

use super::*;

use llama_cpp_sys_4 as sys;
use poncho_testkit::{AlteredModel, ModelKind, ModelSpec, TensorType, Value as Written};

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

/// A GGUF with one tensor of eight floats, the given tokens, and one more number.
fn gguf(tokens: &[&str], key: &str, value: u32) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend(4u64.to_le_bytes());
    text(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    text(&mut out, "llama");
    text(&mut out, "tokenizer.ggml.model");
    out.extend(8u32.to_le_bytes());
    text(&mut out, "rwkv");
    text(&mut out, "tokenizer.ggml.tokens");
    out.extend([9u32.to_le_bytes(), 8u32.to_le_bytes()].concat());
    out.extend((tokens.len() as u64).to_le_bytes());
    tokens.iter().for_each(|token| text(&mut out, token));
    text(&mut out, key);
    out.extend([4u32.to_le_bytes(), value.to_le_bytes()].concat());
    text(&mut out, "rope_factors_long.weight");
    out.extend(1u32.to_le_bytes());
    out.extend(8u64.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend([0; 32]);
    out
}

fn check(bytes: &[u8]) -> Result<GgufFacts, LoadError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    check_file(file.path())
}

#[test]
fn a_sound_file_yields_its_facts() {
    let facts = check(&gguf(&["a", "b"], "llama.rope.scaling.original_context_length", 4096)).unwrap();
    assert_eq!(facts.architecture, "llama");
    assert_eq!(facts.rope_switch_at, Some(4096));
    assert!(facts.causal);
}

#[test]
fn every_cut_of_a_sound_file_is_refused() {
    let good = gguf(&["a", "b"], "llama.context_length", 4);
    assert!(check(&good).is_ok());
    for length in 0..good.len() {
        assert!(check(&good[..length]).is_err(), "cut at {length} of {}", good.len());
    }
}

#[test]
fn tokens_are_compared_as_llama_reads_them() {
    let malformed = |tokens: &[&str]| matches!(check(&gguf(tokens, "llama.x", 1)), Err(LoadError::Malformed { .. }));
    assert!(!malformed(&["a", "b", "", ""]), "empty tokens get names of their own");
    assert!(malformed(&["a", "b", "a"]));
    assert!(malformed(&["a\0b", "a\0c"]), "both end at the zero byte");
    assert!(malformed(&["[EMPTY_1]", "\0"]), "the name that an empty one gets");
    assert!(malformed(&[]));
}

#[test]
fn other_things_than_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(check_file(folder.path()), Err(LoadError::NotAFile { .. })));
    assert!(matches!(check_file(&folder.path().join("none")), Err(LoadError::Unreadable { .. })));
    assert!(matches!(check(b""), Err(LoadError::NotGguf { .. })));
    assert!(matches!(check(b"PK\x03\x04 something else"), Err(LoadError::NotGguf { .. })));
}

#[test]
fn a_length_beyond_any_file_does_not_allocate() {
    let mut bytes = gguf(&["a"], "llama.context_length", 4);
    bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(matches!(check(&bytes), Err(LoadError::Malformed { .. })));
}

fn altered(kind: ModelKind) -> AlteredModel {
    AlteredModel::of(&ModelSpec::tiny(kind)).unwrap()
}

fn number(value: u32) -> Written {
    Written::U32(value)
}

fn word(value: &str) -> Written {
    Written::Text(value.to_owned())
}

/// Hardening 3: each value made llama.cpp end the process, or was believed by something that would have.
#[test]
fn what_llama_would_assert_on_is_refused_by_its_key() {
    use ModelKind::{Attention, Hybrid, Recurrent, Window};
    let table: Vec<(ModelKind, &str, Written)> = vec![
        (Attention, "general.alignment", number(48)),
        (Attention, "general.alignment", number(0)),
        (Hybrid, "general.alignment", number(1)),
        (Attention, "general.alignment", word("32")),
        (Attention, "general.architecture", word("clip")),
        (Attention, "split.no", number(0)),
        (Attention, "llama.block_count", number(0)),
        (Attention, "llama.block_count", number(513)),
        (Attention, "llama.nextn_predict_layers", number(9)),
        (Attention, "llama.nextn_predict_layers", number(4)),
        (Attention, "llama.expert_count", number(100_000)),
        (Attention, "llama.expert_used_count", number(3)),
        (Attention, "llama.expert_used_count", Written::I32s(vec![0, 0, 2, 0])),
        (Attention, "llama.expert_group_count", number(2)),
        (Attention, "llama.embedding_length", number(0)),
        (Attention, "llama.attention.head_count", number(0)),
        (Attention, "llama.attention.head_count", Written::I32s(vec![0, 2, 2, 2])),
        (Attention, "llama.attention.head_count_kv", number(0)),
        (Attention, "llama.attention.head_count_kv", number(3)),
        (Attention, "llama.attention.head_count_kv", Written::I32s(vec![1, 1, -1, 1])),
        (Attention, "llama.attention.value_length", number(32)),
        (Attention, "llama.attention.key_length", number(0)),
        (Attention, "llama.rope.dimension_count", number(63)),
        (Attention, "llama.rope.dimension_count", number(32)),
        (Window, "gemma3.rope.dimension_count", number(66)),
        (Window, "gemma3.rope.dimension_count", number(0)),
        (Hybrid, "lfm2.rope.dimension_count", number(0)),
        (Attention, "llama.rope.scaling.type", word("bogus")),
        (Attention, "llama.rope.scaling.type", word("")),
        (Attention, "llama.pooling_type", number(77)),
        (Attention, "llama.classifier.activation", word("relu")),
        (Attention, "llama.embedding_length_out", number(511)),
        (Attention, "llama.attention.layer_norm_rms_epsilon", Written::F32(-1.0)),
        (Attention, "llama.attention.layer_norm_rms_epsilon", Written::F32(f32::NAN)),
        (Attention, "llama.rope.freq_base", Written::F32(f32::NAN)),
        (Window, "gemma3.attention.sliding_window", number(u32::MAX)),
        (Window, "gemma3.attention.sliding_window_pattern", number(1)),
        (Window, "gemma3.attention.sliding_window_pattern", Written::I32s(vec![0; 4])),
        (Recurrent, "mamba2.ssm.time_step_rank", number(0)),
        (Recurrent, "mamba2.ssm.time_step_rank", number(7)),
        (Recurrent, "mamba2.ssm.group_count", number(0)),
        (Recurrent, "mamba2.ssm.group_count", number(3)),
        (Recurrent, "mamba2.ssm.state_size", number(0)),
        (Hybrid, "lfm2.shortconv.l_cache", number(1)),
        (Hybrid, "lfm2.attention.value_length", number(32)),
        (Attention, "tokenizer.ggml.model", word("none")),
        (Attention, "tokenizer.ggml.model", word("no_vocab")),
        (Attention, "tokenizer.ggml.tokens", Written::Texts(Vec::new())),
        (Attention, "tokenizer.ggml.tokens", Written::Texts(vec!["a".to_owned(); 2])),
    ];
    for (kind, key, value) in table {
        let shown = format!("{key} = {value:?}");
        let refused = match check(&altered(kind).set(key, value).to_bytes()) {
            Err(LoadError::Malformed { reason, .. }) => reason,
            other => panic!("{shown}: {other:?}"),
        };
        assert!(refused.contains(key), "{shown}: {refused}");
    }
}

/// Keys without the architecture, and their values.
type Keys = Vec<(&'static str, Written)>;

/// Hardening 3: several keys that are impossible together, and architectures that the generator does not write.
#[test]
fn values_that_contradict_each_other_are_refused_by_the_key_that_does() {
    let header = |architecture: &str, keys: &[(&str, Written)]| {
        let mut model = altered(ModelKind::Attention);
        model.without_tensors().set("general.architecture", word(architecture));
        for (key, value) in keys {
            let key = if key.starts_with("tokenizer.") { (*key).to_owned() } else { format!("{architecture}.{key}") };
            model.set(&key, value.clone());
        }
        check(&model.to_bytes())
    };
    let experts = ("expert_count", number(8));
    let used = ("expert_used_count", number(2));
    let heads = [("block_count", number(2)), ("attention.head_count", number(4))];
    let of = |keys: &[(&'static str, Written)]| [heads.as_slice(), keys].concat();
    let few = Written::Texts(vec!["a".to_owned(), "b".to_owned()]);
    let table: [(&str, Keys, &str); 14] = [
        ("llama", of(std::slice::from_ref(&experts)), "llama.expert_used_count"),
        ("llama", of(&[experts.clone(), used.clone(), ("expert_group_count", number(3))]), "llama.expert_group_count"),
        (
            "llama",
            of(&[
                experts.clone(),
                used.clone(),
                ("expert_group_count", number(2)),
                ("expert_group_used_count", number(2)),
            ]),
            "llama.expert_group_used_count",
        ),
        ("qwen2", of(&[("embedding_length", number(3))]), "qwen2.attention.head_count"),
        ("bailingmoe2", of(&[]), "bailingmoe2.expert_count"),
        ("gemma2", vec![("block_count", number(2))], "gemma2.attention.head_count"),
        ("gemma4", of(&[("attention.shared_kv_layers", number(1))]), "gemma4.attention.shared_kv_layers"),
        ("rwkv6", vec![("embedding_length", number(64)), ("wkv.head_size", number(0))], "rwkv6.wkv.head_size"),
        ("rwkv7", vec![("token_shift_count", number(1))], "rwkv7.token_shift_count"),
        ("qwen2vl", of(&[("rope.dimension_sections", Written::I32s(vec![0; 4]))]), "qwen2vl.rope.dimension_sections"),
        (
            "qwen2vl",
            of(&[("rope.dimension_sections", Written::I32s(vec![1, -1, 0, 0]))]),
            "qwen2vl.rope.dimension_sections",
        ),
        (
            "bert",
            vec![
                ("tokenizer.ggml.model", word("bert")),
                ("tokenizer.ggml.tokens", few.clone()),
                ("tokenizer.ggml.bos_token_id", number(0)),
            ],
            "tokenizer.ggml.seperator_token_id",
        ),
        (
            "llama",
            vec![("tokenizer.ggml.bos_token_id", number(9999)), ("tokenizer.ggml.tokens", few)],
            "tokenizer.ggml.bos_token_id",
        ),
        ("llama", vec![("tokenizer.ggml.model", word("llama"))], "tokenizer.ggml.tokens"),
    ];
    for (architecture, keys, named) in table {
        match header(architecture, &keys) {
            Err(LoadError::Malformed { reason, .. }) => assert!(reason.contains(named), "{named}: {reason}"),
            other => panic!("{architecture} {named}: {other:?}"),
        }
    }
}

/// Hardening 3: a name with a zero byte is one thing for this check and another for llama.cpp.
#[test]
fn a_key_or_an_architecture_with_a_zero_byte_hides_nothing() {
    let mut hidden = altered(ModelKind::Attention);
    hidden.set("llama.block_count\0", number(0));
    assert!(matches!(check(&hidden.to_bytes()), Err(LoadError::Malformed { .. })));
    let mut hidden = altered(ModelKind::Attention);
    hidden.set("general.architecture", word("llama\0x")).set("llama.block_count", number(0));
    assert!(matches!(check(&hidden.to_bytes()), Err(LoadError::Malformed { .. })));
}

/// Hardening 3: kernels take what the loader believes.
#[test]
fn tensors_that_no_kernel_takes_are_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut AlteredModel)| {
        let mut model = altered(ModelKind::Attention);
        change(&mut model);
        match check(&model.to_bytes()) {
            Err(LoadError::Malformed { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let matrix = "blk.1.attn_q.weight";
    assert!(
        refusal(&|model| {
            model.set_tensor_type(matrix, TensorType::I16);
        })
        .contains(matrix)
    );
    assert!(
        refusal(&|model| {
            model.set_shape(matrix, &[64, 0]);
        })
        .contains(matrix)
    );
    let norm = "blk.1.attn_norm.weight";
    assert!(
        refusal(&|model| {
            model.set_tensor_type(norm, TensorType::I32);
        })
        .contains(norm)
    );
    assert!(
        refusal(&|model| {
            model.set_tensor_type(norm, TensorType::F16).set_shape(norm, &[64]);
        })
        .contains(norm)
    );
}

/// Hardening 3: an adapter's keys are read without a look at their types.
#[test]
fn an_adapter_whose_keys_have_other_types_is_refused() {
    let path = poncho_testkit::adapter_path();
    check_adapter(&path).unwrap();
    for (key, value) in [("general.type", number(1)), ("adapter.type", number(1)), ("adapter.lora.alpha", word("x"))] {
        let folder = tempfile::tempdir().unwrap();
        let wrong = folder.path().join("adapter.gguf");
        altered(ModelKind::Attention).set(key, value).write(&wrong).unwrap();
        let error = check_adapter(&wrong).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn every_generated_model_and_the_default_one_pass() {
    for kind in ModelKind::ALL {
        check_file(&poncho_testkit::model_path(kind)).unwrap();
    }
    check_file(&poncho_testkit::default_model_path()).unwrap();
    let mut embedder = altered(ModelKind::Attention);
    let facts = check(&embedder.set("llama.attention.causal", Written::Bool(false)).to_bytes()).unwrap();
    assert!(!facts.causal);
}

/// The table of `poncho-gguf` stands for the library: sizes and places of tensors are checked with it.
#[test]
fn the_table_of_tensor_types_is_that_of_the_library() {
    for number in 0..sys::GGML_TYPE_COUNT {
        // SAFETY: the number is below the count; removed types have no block, and every type has a name that is never freed.
        let (elements, bytes, name) = unsafe {
            (
                sys::ggml_blck_size(number),
                sys::ggml_type_size(number),
                std::ffi::CStr::from_ptr(sys::ggml_type_name(number)).to_str().unwrap(),
            )
        };
        let expected = (elements > 0).then(|| (name, u64::try_from(elements).unwrap(), bytes as u64));
        let known = poncho_gguf::TensorType::from_number(number).map(|known| (known.name, known.block, known.bytes));
        assert_eq!(known, expected, "type {number}");
    }
    let beyond = |known: &&poncho_gguf::TensorType| known.number >= sys::GGML_TYPE_COUNT;
    assert_eq!(poncho_gguf::TensorType::all().iter().find(beyond), None);
}

/// Hardening 3: arrays of arrays are in the format, and llama.cpp cannot read them.
#[test]
fn an_array_of_arrays_is_refused_by_its_key() {
    let nested = Written::Raw(9, [9_u32.to_le_bytes().to_vec(), vec![0; 8]].concat());
    match check(&altered(ModelKind::Attention).set("llama.nested", nested).to_bytes()) {
        Err(LoadError::Malformed { reason, .. }) => assert!(reason.contains("llama.nested"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
