//! Shared by the tests: tiny GGUF files, and a registry in a temporary folder.

use std::fs;
use std::path::{Path, PathBuf};

use poncho_models::{Installed, ModelName, Registry, ignore_progress};

/// A GGUF file with one tensor of 64 F32 weights that hold `seed`.
pub(crate) fn gguf(kind: &str, seed: u8) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let entry = |key: &str, value: &str| [text(key), 8_u32.to_le_bytes().to_vec(), text(value)].concat();
    let number =
        |key: &str, value: u32| [text(key), 4_u32.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()].concat();
    let mut file = [&b"GGUF"[..], &3_u32.to_le_bytes(), &1_u64.to_le_bytes(), &5_u64.to_le_bytes()].concat();
    file.extend(entry("general.architecture", "llama"));
    file.extend(entry("general.type", kind));
    file.extend(entry("general.name", &format!("Tiny {seed}")));
    file.extend(number("general.file_type", 3));
    file.extend(number("llama.context_length", 2048));
    file.extend([text("weights"), 1_u32.to_le_bytes().to_vec(), 64_u64.to_le_bytes().to_vec()].concat());
    file.extend([&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat());
    file.resize(file.len().next_multiple_of(32), 0);
    file.resize(file.len() + 256, seed);
    file
}

pub(crate) fn name(text: &str) -> ModelName {
    ModelName::parse(text).unwrap()
}

/// A registry, and a folder beside it for files to import.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    pub(crate) fn open(&self) -> Registry {
        Registry::open(self.root()).unwrap()
    }

    pub(crate) fn file(&self, file: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(file);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Imports a tiny model of that seed.
    pub(crate) fn import(&self, as_name: &str, seed: u8) -> Installed {
        let path = self.file(&format!("model-{seed}.gguf"), &gguf("model", seed));
        self.open().import(&path, &name(as_name), &mut ignore_progress).unwrap()
    }

    /// The names of the files in a folder of the registry.
    pub(crate) fn names_in(&self, folder: &str) -> Vec<String> {
        names_in(&self.root().join(folder))
    }
}

pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
