//! Model files with damaged or made-up metadata: every reader of ours, then llama.cpp if our checks let the file pass.
//!
//! A file is refused or it loads and computes a token; nothing ends the process. Input: one byte for the model, then an
//! edit script over the file's head (`edits.rs`), or with the highest bit set the whole file.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use poncho_engine::backend::llama::LlamaBackend;
use poncho_engine::backend::{Backend, ModelOptions};
use poncho_fuzz::edits;
use poncho_fuzz::models::{read, small_options};
use poncho_testkit::{ModelKind, model_path};

/// Metadata precedes the tensors; after it an edit changes a weight, which is not damage.
const HEAD: usize = 24 << 10;

static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    ModelKind::ALL.into_iter().map(|kind| fs::read(model_path(kind)).expect("a model can be read")).collect()
});
static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a temporary folder"));

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else { return };
    let bytes = if choice & 0x80 == 0 {
        let mut bytes = FILES[usize::from(choice) % FILES.len()].clone();
        edits::apply(rest, &mut bytes, HEAD);
        bytes
    } else {
        rest.to_vec()
    };
    let path: PathBuf = FOLDER.path().join("model.gguf");
    fs::write(&path, &bytes).expect("the temporary folder has room");
    let _ = poncho_gguf::Gguf::open(&path, &poncho_gguf::Keep::arrays_up_to(100));
    let _ = poncho_gguf::read_facts(&path);
    let _ = poncho_cache::identify(&path);
    // Reading the file instead of mapping it: the next input overwrites it.
    let options = ModelOptions { mmap: false, ..ModelOptions::new(&path) };
    let Ok(model) = LlamaBackend.load_model(&options) else { return };
    let Ok(mut context) = model.new_context(&small_options(), Arc::new(AtomicBool::new(false))) else { return };
    let _ = read(context.as_mut(), 0, 0..2);
});
