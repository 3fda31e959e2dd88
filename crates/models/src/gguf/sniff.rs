//! What a file is that is no GGUF file, guessed from its first bytes.
//!
//! For messages only: a newcomer who saved a web page instead of a model should hear so.

use std::fmt;

/// What it looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotGguf {
    /// A folder.
    Folder,
    /// Nothing.
    Empty,
    /// A web page.
    Html,
    /// A Git LFS pointer.
    LfsPointer,
    /// A safetensors file.
    Safetensors,
    /// A model file of llama.cpp before GGUF.
    OldGgml,
    /// A zip archive, which PyTorch's files are too.
    Zip,
    /// A gzip file.
    Gzip,
    /// A pickle.
    Pickle,
    /// JSON, mostly an error message of a server.
    Json,
    /// Some other text, with its first line.
    Text(String),
    /// Zeros, as an aborted download leaves.
    Zeros,
    /// None of these, with the first four bytes.
    Unknown([u8; 4]),
}

impl fmt::Display for NotGguf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Folder => "a folder; name the .gguf file in it",
            Self::Empty => "an empty file; fetch it again",
            Self::Html => {
                "an HTML page; it was saved from a page about the file, so use the address of the download itself"
            }
            Self::LfsPointer => "a Git LFS pointer; run `git lfs pull` where it came from",
            Self::Safetensors => {
                "a safetensors file; convert it with llama.cpp's convert_hf_to_gguf.py, or pull a GGUF"
            }
            Self::OldGgml => "a GGML file from before GGUF; pull a newer file of the model",
            Self::Zip => "a zip archive, perhaps PyTorch weights; unpack or convert it, or pull a GGUF",
            Self::Gzip => "a gzip file; unpack it with gunzip",
            Self::Pickle => "a Python pickle, perhaps PyTorch weights; convert it, or pull a GGUF",
            Self::Json => "JSON, perhaps an error message of a server; look into it and fetch the file again",
            Self::Zeros => "zeros, as an interrupted download leaves; fetch it again",
            Self::Text(line) => return write!(formatter, "a text that begins `{line}`; give the path of a .gguf file"),
            Self::Unknown([a, b, c, d]) => {
                return write!(
                    formatter,
                    "a file that begins with the bytes {a:02x} {b:02x} {c:02x} {d:02x}; give the path of a .gguf file"
                );
            }
        };
        formatter.write_str(text)
    }
}

/// Guesses from the first bytes of a file.
pub(super) fn sniff(start: &[u8]) -> NotGguf {
    let text = String::from_utf8_lossy(start.get(..512).unwrap_or(start)).trim_start().to_ascii_lowercase();
    if start.is_empty() {
        return NotGguf::Empty;
    }
    if text.starts_with("<!doctype html") || text.starts_with("<html") {
        return NotGguf::Html;
    }
    if text.starts_with("version https://git-lfs") {
        return NotGguf::LfsPointer;
    }
    if [b"lmgg", b"fmgg", b"tjgg", b"algg"].iter().any(|magic| start.starts_with(*magic)) {
        return NotGguf::OldGgml;
    }
    if start.starts_with(b"PK\x03\x04") {
        return NotGguf::Zip;
    }
    if start.starts_with(&[0x1f, 0x8b]) {
        return NotGguf::Gzip;
    }
    // Eight bytes of length, then a JSON object; the length of a header is far below 2^40.
    if start.get(8) == Some(&b'{') && start.get(5..8) == Some(&[0, 0, 0]) {
        return NotGguf::Safetensors;
    }
    if start.first() == Some(&0x80) && start.get(1).is_some_and(|version| (2..=5).contains(version)) {
        return NotGguf::Pickle;
    }
    if start.iter().all(|byte| *byte == 0) {
        return NotGguf::Zeros;
    }
    if text.starts_with('{') || text.starts_with('[') {
        return NotGguf::Json;
    }
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if let Ok(line) = std::str::from_utf8(line.get(..60).unwrap_or(line))
        && !line.is_empty()
        && line.chars().all(|c| !c.is_control() || c == '\t' || c == '\r')
    {
        return NotGguf::Text(line.trim().to_owned());
    }
    let mut first = [0; 4];
    first.iter_mut().zip(start).for_each(|(to, from)| *to = *from);
    NotGguf::Unknown(first)
}
