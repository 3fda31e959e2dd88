//! The memory that a model and its context need, from its metadata, and the memory that is available.
//!
//! An estimate for advice only: it assumes that every layer keeps all cells in 16 bits, as plain attention models do.
//! Windowed, recurrent and hybrid models need less.

use std::path::Path;

use poncho_gguf::{Keep, Metadata, Value};

/// Arrays of metadata that hold one value a layer; no model has more layers.
const LONGEST_ARRAY: usize = 1024;

/// Bytes of attention state that a token takes, or what is wrong with the file.
pub(super) fn bytes_per_token(path: &Path) -> Result<Option<u64>, String> {
    let metadata = Metadata::open(path, &Keep::arrays_up_to(LONGEST_ARRAY)).map_err(|error| error.to_string())?;
    Ok(per_token(&metadata))
}

fn per_token(metadata: &Metadata) -> Option<u64> {
    let architecture = metadata.get("general.architecture")?.as_text()?.lossy();
    let field = |name: &str| metadata.get(&format!("{architecture}.{name}"));
    let number = |name: &str| field(name).and_then(as_number);
    let layers = number("block_count")?;
    let heads = number("attention.head_count").filter(|heads| *heads > 0)?;
    let of_head = number("embedding_length").map(|width| width / heads);
    let width =
        number("attention.key_length").or(of_head)?.checked_add(number("attention.value_length").or(of_head)?)?;
    let kv_heads = match field("attention.head_count_kv") {
        Some(Value::Array(each)) if !each.values.is_empty() => {
            each.values.iter().filter_map(as_number).try_fold(0_u64, u64::checked_add)?
        }
        Some(value) => as_number(value)?.checked_mul(layers)?,
        None => heads.checked_mul(layers)?,
    };
    kv_heads.checked_mul(width)?.checked_mul(2)
}

fn as_number(value: &Value) -> Option<u64> {
    match value {
        Value::Array(each) => each.values.iter().filter_map(as_number).max(),
        one => one.as_unsigned(),
    }
}

/// Available bytes: those of the kernel, or of the control group if that has fewer.
pub(super) fn available() -> Option<u64> {
    let free = meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(group_room().map_or(free, |room| room.min(free)))
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

/// What the limit of the container leaves; `None` without a limit.
fn group_room() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<u64>().ok();
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use poncho_gguf::{Array, Kind};

    fn pairs(fields: &[(&str, Value)]) -> Metadata {
        fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn the_default_model_takes_23_kilobytes_a_token() {
        // The shape of SmolLM2-135M: 30 layers, 9 heads of 64, 3 of them for keys and values.
        let number = Value::U64;
        let shape = pairs(&[
            ("general.architecture", Value::Text("llama".into())),
            ("llama.block_count", number(30)),
            ("llama.embedding_length", number(576)),
            ("llama.attention.head_count", number(9)),
            ("llama.attention.head_count_kv", number(3)),
        ]);
        assert_eq!(per_token(&shape), Some(23_040));
        assert_eq!(per_token(&pairs(&[("general.architecture", Value::Text("x".into()))])), None);
    }

    #[test]
    fn heads_may_differ_from_layer_to_layer() {
        let number = Value::U64;
        let each = Array { element: Kind::U64, count: 3, values: [2, 0, 1].map(number).to_vec() };
        let shape = pairs(&[
            ("general.architecture", Value::Text("a".into())),
            ("a.block_count", number(3)),
            ("a.attention.head_count", number(4)),
            ("a.attention.key_length", number(10)),
            ("a.attention.value_length", number(6)),
            ("a.attention.head_count_kv", Value::Array(Box::new(each))),
        ]);
        assert_eq!(per_token(&shape), Some(3 * 16 * 2));
    }

    #[test]
    fn free_memory_is_read_as_the_kernel_writes_it() {
        assert_eq!(meminfo("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(meminfo("MemTotal: 9 kB\n"), None);
        assert!(available().is_none_or(|bytes| bytes > 0));
    }
}
