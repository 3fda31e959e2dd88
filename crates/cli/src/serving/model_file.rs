//! Diagnoses files that are not models: the usual mistakes of people who download one.
//!
//! Called by `serve` and `doctor` before anything is loaded. The first bytes decide; a GGUF file is left to the engine,
//! which checks all of it. It must never read more than the first bytes.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use poncho_gguf::NotGguf;
use poncho_gguf::file::{Links, NotRegular, open_regular};

use crate::settings::nearest;

/// Enough for the first line of a Git LFS pointer and for any page's opening.
const LOOKED_AT: u64 = 512;

/// Checks a path that should be a GGUF file.
///
/// # Errors
/// If the path is not a regular file, or the file does not start like a GGUF model.
pub(crate) fn check(path: &Path) -> anyhow::Result<()> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!("{}", missing(path)),
        Err(error) => {
            return Err(error)
                .with_context(|| format!("cannot access {}; check the path and its permissions", path.display()));
        }
    };
    if metadata.is_dir() {
        bail!("{} is a folder, not a model file; give the path of a GGUF file{}", path.display(), in_folder(path));
    }
    let opened = open_regular(path, Links::Follow);
    if let Err(error) = &opened
        && NotRegular::is_cause_of(error)
    {
        bail!("{} is not a model file: {error}", path.display());
    }
    let mut start = Vec::new();
    opened
        .and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start))
        .with_context(|| format!("cannot read {}; check its permissions", path.display()))?;
    match NotGguf::guess(&start) {
        None => Ok(()),
        Some(other) => bail!("{} is not a GGUF model: it is {other}", path.display()),
    }
}

fn missing(path: &Path) -> String {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let start = format!("{} does not exist", path.display());
    if !folder.is_dir() {
        return format!("{start}, and neither does the folder {}; check the path given with --model", folder.display());
    }
    let models = models_in(folder);
    let wanted = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    match nearest(&wanted, models.iter().map(String::as_str)) {
        Some(near) => format!("{start}; did you mean {}?", beside(path, near).display()),
        None => format!(
            "{start}; give the path of a GGUF file with --model (`make model` downloads a small one){}",
            in_folder(folder)
        ),
    }
}

fn beside(path: &Path, name: &str) -> PathBuf {
    path.with_file_name(name)
}

/// The models of a folder as the end of a sentence; empty if there are none.
fn in_folder(folder: &Path) -> String {
    let models = models_in(folder);
    let shown: Vec<&str> = models.iter().take(5).map(String::as_str).collect();
    match shown.as_slice() {
        [] => String::new(),
        names => format!("; {} contains {}", folder.display(), names.join(", ")),
    }
}

fn models_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    // A folder of downloads may be huge; a suggestion is not worth reading all of it.
    let names = entries.take(10_000).flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut models: Vec<String> = names.filter(|name| name.to_ascii_lowercase().ends_with(".gguf")).collect();
    models.sort();
    models
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        check(&path).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn files_that_are_not_models_are_diagnosed() {
        let mut safetensors = 0x1234_u64.to_le_bytes().to_vec();
        safetensors.extend(b"{\"weight\":");
        for (bytes, part) in [
            (&b""[..], "an empty file"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 1\n", "git lfs pull"),
            (b"\n  <!DOCTYPE html><html>", "HTML page"),
            (b"<html><head>", "HTML page"),
            (b"Dear model,\nhello", "begins `Dear model,`"),
            (b"PK\x03\x04aaaa", "archive"),
            (&safetensors, "safetensors"),
            (&[0, 1, 2, 3, 4, 200], "begins with the bytes 00 01 02 03"),
            ("\u{e4}\u{f6}".as_bytes(), "a text that begins"),
        ] {
            let said = said(bytes);
            assert!(said.contains(part) && said.contains("model.gguf is not a GGUF model"), "{bytes:?}: {said}");
        }
        assert_eq!(said(b"GGUF\x03\0\0\0"), "", "the engine looks at the rest");
    }

    #[test]
    fn a_missing_file_suggests_a_similar_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("SmolLM2.gguf"), b"GGUF").unwrap();
        let said = |name: &str| check(&folder.path().join(name)).unwrap_err().to_string();
        assert!(said("smolm2.gguf").contains("did you mean") && said("smolm2.gguf").contains("SmolLM2.gguf?"));
        assert!(said("zzzzz").contains("make model"), "{}", said("zzzzz"));
        assert!(said("no/such/x.gguf").contains("neither does the folder"), "{}", said("no/such/x.gguf"));
        assert!(said("").contains("is a folder") && said("").contains("SmolLM2.gguf"), "{}", said(""));
    }
}
