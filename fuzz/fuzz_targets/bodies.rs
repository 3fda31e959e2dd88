//! Any bytes as the body of a request, on every endpoint of the four dialects.
//!
//! The server must answer each with a reply or with a refusal in JSON, and never with a status of 500. Built and run by
//! `run.sh`. Input: one byte for the endpoint, then the body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use poncho_fuzz::server::{PATHS, answer};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, body)) = data.split_first() else { return };
    let path = PATHS[usize::from(choice) % PATHS.len()];
    let (status, text) = answer(path, body);
    assert_ne!(status, 500, "{path}: {}", String::from_utf8_lossy(&text));
    if status >= 400 {
        let refusal: serde_json::Value = serde_json::from_slice(&text).expect("a refusal is JSON");
        assert!(refusal.get("error").is_some(), "{path}: {refusal}");
    }
});
