//! The model that `poncho run` used last: the choice for a command without a model.
//!
//! A line in a private file of the user's state folder: a name, or the path of a file. Everything works without it. It
//! is only a preference: a model that is gone is never an error.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use poncho_cache::{Links, create_private_folder, open_regular};
use tempfile::NamedTempFile;

use crate::settings::user_folder::UserFolder;

/// Longer lines are not ours.
const LONGEST: u64 = 4096;

fn file() -> Option<PathBuf> {
    UserFolder::State.find().map(|folder| folder.join("last-model"))
}

/// The model of the last chat, if there was one.
pub(crate) fn read() -> Option<String> {
    read_from(&file()?)
}

fn read_from(path: &Path) -> Option<String> {
    let mut text = String::new();
    open_regular(path, Links::Follow).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// Remembers a model. A failure is ignored: the next command asks for a name again.
pub(crate) fn remember(model: &str) {
    if let Some(path) = file() {
        let _ = write_to(&path, model);
    }
}

fn write_to(path: &Path, model: &str) -> std::io::Result<()> {
    if read_from(path).as_deref() == Some(model) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    create_private_folder(folder)?;
    let mut file = NamedTempFile::new_in(folder)?;
    writeln!(file, "{model}")?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_model_is_remembered_and_anything_else_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/last-model");
        assert_eq!(read_from(&path), None);
        for model in ["smollm2:135m", "/models/a b.gguf"] {
            write_to(&path, model).unwrap();
            assert_eq!(read_from(&path).as_deref(), Some(model));
        }
        for other in ["", "\n\n", "\u{0}\u{ff}"] {
            std::fs::write(&path, other).unwrap();
            assert!(read_from(&path).is_none_or(|text| !text.is_empty()));
        }
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(read_from(&path), None);
        assert_eq!(read_from(folder.path()), None, "a folder is not a file");
    }
}
