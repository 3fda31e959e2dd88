//! What a file is that is not a GGUF file, guessed from its first bytes.
//!
//! For messages only, such as the one for a user who saved a web page instead of a model. Called by the reader, and by
//! the command line before anything is loaded.

use std::fmt;

/// Bytes that the guess looks at; the first line of a Git LFS pointer and the opening of a page are shorter.
pub(crate) const LOOKED_AT: usize = 512;
/// Bytes of a text's first line that are shown.
const SHOWN_LINE: usize = 60;

/// What the file looks like.
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
                "an HTML page; the link led to a web page, so use the link of the file itself (on a model hub the one \
                 with /resolve/, not /blob/)"
            }
            Self::LfsPointer => {
                "a Git LFS pointer, and the model itself was not fetched; run `git lfs pull` in its repository"
            }
            Self::Safetensors => {
                "a safetensors file; use the GGUF version of the model, or convert it with llama.cpp's convert_hf_to_gguf.py"
            }
            Self::OldGgml => "a GGML file from before GGUF; fetch a newer file of the model",
            Self::Zip => "a zip archive, perhaps PyTorch weights; unpack or convert it, or fetch a GGUF file",
            Self::Gzip => "a gzip file, a compressed archive; unpack it and give the .gguf file in it",
            Self::Pickle => "a Python pickle, perhaps PyTorch weights; convert it, or fetch a GGUF file",
            Self::Json => "JSON, perhaps an error message of a server; look into it and fetch the file again",
            Self::Zeros => "zeros, as an interrupted download leaves; fetch it again",
            Self::Text(line) => return write!(formatter, "a text that begins `{line}`; give the path of a .gguf file"),
            Self::Unknown([a, b, c, d]) => {
                return write!(
                    formatter,
                    "a file that begins with the bytes {a:02x} {b:02x} {c:02x} {d:02x}; give the path of a .gguf file, or \
                     fetch it again"
                );
            }
        };
        formatter.write_str(text)
    }
}

impl NotGguf {
    /// Guesses from the first bytes of a file, 512 or fewer; `None` if it begins like a GGUF file.
    #[must_use]
    pub fn guess(start: &[u8]) -> Option<Self> {
        if start.starts_with(b"GGUF") {
            return None;
        }
        let start = start.get(..LOOKED_AT).unwrap_or(start);
        Some(Self::by_signature(start).unwrap_or_else(|| Self::by_text(start)))
    }

    fn by_signature(start: &[u8]) -> Option<Self> {
        const OLD: [&[u8]; 4] = [b"lmgg", b"fmgg", b"tjgg", b"algg"];
        if start.is_empty() {
            return Some(Self::Empty);
        }
        if OLD.iter().any(|magic| start.starts_with(magic)) {
            return Some(Self::OldGgml);
        }
        if start.starts_with(b"PK\x03\x04") {
            return Some(Self::Zip);
        }
        if start.starts_with(&[0x1f, 0x8b]) {
            return Some(Self::Gzip);
        }
        // Eight bytes of length, then a JSON object; the length of a header is far below 2^40.
        if start.get(8) == Some(&b'{') && start.get(5..8) == Some(&[0, 0, 0]) {
            return Some(Self::Safetensors);
        }
        if start.first() == Some(&0x80) && start.get(1).is_some_and(|version| (2..=5).contains(version)) {
            return Some(Self::Pickle);
        }
        start.iter().all(|byte| *byte == 0).then_some(Self::Zeros)
    }

    fn by_text(start: &[u8]) -> Self {
        let text = String::from_utf8_lossy(start).trim_start().to_ascii_lowercase();
        if ["<!doctype", "<html", "<head"].iter().any(|opening| text.starts_with(opening)) {
            return Self::Html;
        }
        if text.starts_with("version https://git-lfs") {
            return Self::LfsPointer;
        }
        if text.starts_with('{') || text.starts_with('[') {
            return Self::Json;
        }
        match first_line(start) {
            Some(line) => Self::Text(line.trim().to_owned()),
            None => {
                let mut first = [0; 4];
                first.iter_mut().zip(start).for_each(|(to, from)| *to = *from);
                Self::Unknown(first)
            }
        }
    }
}

/// The start of the first line, if it is a text without control characters.
fn first_line(start: &[u8]) -> Option<&str> {
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.get(..SHOWN_LINE).unwrap_or(line);
    let line = match str::from_utf8(line) {
        Ok(line) => line,
        // Cut inside a character.
        Err(error) if error.error_len().is_none() => str::from_utf8(line.get(..error.valid_up_to())?).ok()?,
        Err(_) => return None,
    };
    let is_text = !line.is_empty() && line.chars().all(|c| !c.is_control() || c == '\t' || c == '\r');
    is_text.then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_files_are_called_by_their_names() {
        let safetensors = [&200_u64.to_le_bytes()[..], b"{\"__metadata__\":{}}"].concat();
        let long = "\u{e4}".repeat(300);
        for (bytes, expected) in [
            (&b""[..], "an empty file"),
            (b"\n<!DOCTYPE html><html>", "an HTML page"),
            (b"<html lang=en>", "an HTML page"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a Git LFS pointer"),
            (&safetensors, "a safetensors file"),
            (b"tjgg\x01\0\0\0", "before GGUF"),
            (b"PK\x03\x04rest", "a zip archive"),
            (b"\x1f\x8b\x08", "a gzip file"),
            (b"\x80\x02}q", "a Python pickle"),
            (b"{\"error\":\"Repository not found\"}", "an error message"),
            (b"Invalid username or password.\n", "begins `Invalid username or password.`"),
            (long.as_bytes(), "begins `\u{e4}\u{e4}"),
            (&[0; 64], "zeros"),
            (b"\xfe\xed\xfa\xce\0\0", "fe ed fa ce"),
            (b"GGU", "begins `GGU`"),
        ] {
            let guessed = NotGguf::guess(bytes).unwrap().to_string();
            assert!(guessed.contains(expected), "{guessed} / {expected}");
        }
        assert_eq!(NotGguf::guess(b"GGUF"), None);
    }
}
