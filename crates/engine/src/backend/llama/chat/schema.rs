//! JSON schemas turned into grammars by llama.cpp, and how its shims hand texts over.
//!
//! Called by the model, with schemas of a size and shape that were checked before (`schema.rs` of the engine): the conversion
//! cannot be interrupted and recurses.

use std::ffi::{CStr, CString, c_char};

use llama_cpp_sys_4 as sys;

use crate::backend::GrammarError;

/// Longest schema text.
const MAX_TEXT: usize = 4 << 20;
/// Deepest nesting of a schema; llama.cpp converts it by recursion.
const MAX_DEPTH: usize = 128;

/// Turns a JSON schema into GBNF.
pub(in crate::backend::llama) fn json_schema_to_grammar(schema: &str) -> Result<String, GrammarError> {
    let bad = |reason: String| GrammarError::BadSchema { reason };
    if nesting(schema) > MAX_DEPTH {
        return Err(bad(format!("it is nested more than {MAX_DEPTH} levels deep")));
    }
    let text = c_text(schema, "schema").map_err(|error| bad(error.to_string()))?;
    sized_text(|buffer, len, needed| {
        // SAFETY: the schema is NUL-terminated, the buffer has `len` bytes; exceptions are caught in the shim.
        unsafe { sys::common_json_schema_to_grammar_c(text.as_ptr(), true, buffer, len, needed) }
    })
    .map_err(bad)
}

/// Calls a shim that says how many bytes it needs, then writes them; the error is the shim's own.
pub(in crate::backend::llama) fn sized_text(
    call: impl FnMut(*mut c_char, usize, *mut usize) -> i32,
) -> Result<String, String> {
    let mut bytes = sized_bytes(4096, call)?;
    // The shims end their texts with a NUL.
    bytes.pop();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// As [`sized_text`], with the raw bytes, and a guess of how many there will be.
pub(in crate::backend::llama) fn sized_bytes(
    guess: usize,
    mut call: impl FnMut(*mut c_char, usize, *mut usize) -> i32,
) -> Result<Vec<u8>, String> {
    let mut needed = 0;
    let mut buffer = vec![0u8; guess];
    for _ in 0..2 {
        let status = call(buffer.as_mut_ptr().cast(), buffer.len(), &raw mut needed);
        match status {
            0 => {
                buffer.truncate(needed);
                return Ok(buffer);
            }
            1 => buffer.resize(needed, 0),
            _ => return Err(last_error()),
        }
    }
    Err("the size of the result changed between two calls".to_owned())
}

/// What the last failed shim call on this thread said.
pub(in crate::backend::llama) fn last_error() -> String {
    // SAFETY: the pointer is never null and valid until the next shim call on this thread.
    let text = unsafe { CStr::from_ptr(sys::llama_shim_last_error()) }.to_string_lossy();
    if text.is_empty() { "llama.cpp gave no reason".to_owned() } else { text.chars().take(1000).collect() }
}

pub(in crate::backend::llama) fn c_text(text: &str, what: &str) -> Result<CString, GrammarError> {
    if text.len() > MAX_TEXT {
        return Err(GrammarError::Invalid { reason: format!("the {what} has more than {MAX_TEXT} bytes") });
    }
    CString::new(text).map_err(|_| GrammarError::Invalid { reason: format!("the {what} has a NUL byte") })
}

/// Deepest nesting of brackets outside strings.
pub(in crate::backend::llama) fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_ignores_brackets_in_strings() {
        assert_eq!(nesting(r#"{"a": "[[[[", "b\"": [1, {"c": 2}]}"#), 3);
        assert_eq!(nesting(&"[".repeat(500)), 500);
    }

    #[test]
    fn a_schema_becomes_a_grammar_and_a_wrong_one_an_error() {
        let grammar =
            json_schema_to_grammar(r#"{"type": "object", "properties": {"n": {"type": "integer"}}}"#).unwrap();
        assert!(grammar.contains("root ::="), "{grammar}");
        assert!(matches!(json_schema_to_grammar("{not json"), Err(GrammarError::BadSchema { .. })));
        let deep = format!("{}{}", r#"{"items":"#.repeat(5000), "{}".to_owned() + &"}".repeat(5000));
        assert!(matches!(json_schema_to_grammar(&deep), Err(GrammarError::BadSchema { .. })));
        assert!(matches!(json_schema_to_grammar(r##"{"$ref": "#/nowhere"}"##), Err(GrammarError::BadSchema { .. })));
    }
}
