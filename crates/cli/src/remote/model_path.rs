//! From what a user calls a model to its file.
//!
//! Called by `own.rs` before a model is loaded in this process. The one place where names of installed models are
//! resolved.

use std::path::PathBuf;

use anyhow::bail;

/// What is loaded when nothing was named.
pub(crate) const DEFAULT_MODEL: &str = "smollm2:135m";
/// Where `make model` puts the default model, seen from the project's folder.
const FETCHED_DEFAULT: &str = ".tools/models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The GGUF file of a model.
pub(crate) fn model_path(text: &str) -> anyhow::Result<PathBuf> {
    let path = PathBuf::from(text);
    if path.is_file() {
        return Ok(path);
    }
    let fetched = PathBuf::from(FETCHED_DEFAULT);
    if text == DEFAULT_MODEL && fetched.is_file() {
        return Ok(fetched);
    }
    if text == DEFAULT_MODEL {
        bail!(
            "no Poncho answers and the default model {DEFAULT_MODEL} is not here; \
             name a GGUF file, or fetch the model with `make model`"
        );
    }
    bail!("{text} is not a model file; give the path of a GGUF file (`make model` fetches a small one)");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_itself_and_what_is_no_file_is_said() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(model_path(file.path().to_str().unwrap()).unwrap(), file.path());
        let folder = tempfile::tempdir().unwrap();
        for wrong in [folder.path().to_str().unwrap(), "no/such/model.gguf", "nomodel:1b"] {
            let said = model_path(wrong).unwrap_err().to_string();
            assert!(said.contains(wrong) && said.contains("give the path"), "{said}");
        }
    }
}
