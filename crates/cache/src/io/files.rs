//! Creating files that only their owner may read, and opening files that may be something else.
//!
//! Used by this crate and by those above it wherever a path comes from a folder, a setting or a person. Opening is that of
//! `poncho_gguf::file`: it never waits and accepts regular files only. Files that may hold a prompt must never be readable
//! by anybody but their owner, with any umask.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub use poncho_gguf::file::{Links, NotRegular, open_folder, open_regular, open_regular_with};

/// The rights of a file that may hold a prompt.
pub const PRIVATE_FILE: u32 = 0o600;
/// The rights of a folder with such files.
pub const PRIVATE_FOLDER: u32 = 0o700;
/// The rights of everybody but the owner.
const OF_OTHERS: u32 = 0o077;

/// Creates a file that is not there yet, for its owner alone.
///
/// # Errors
/// `AlreadyExists` if anything has the name; else any error of the file system.
pub fn create_private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(path)?;
    make_private(&file)?;
    Ok(file)
}

/// Gives the owner all rights and nobody else any: a umask may have taken rights of the owner.
fn make_private(file: &File) -> io::Result<()> {
    match file.metadata()?.permissions().mode() & 0o777 {
        PRIVATE_FILE => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(PRIVATE_FILE)),
    }
}

/// Opens a file of ours with the given options, or creates it for its owner alone. Takes the rights of others away from
/// an existing file, as far as this user may do that.
///
/// # Errors
/// As [`open_regular`].
pub fn open_or_create_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = open_regular_with(options.create(true).mode(PRIVATE_FILE), path, Links::Refuse)?;
    if let Err(error) = make_private(&file) {
        tracing::warn!(path = %path.display(), %error, "others may read a file of ours; take their rights away");
    }
    Ok(file)
}

/// Creates a folder and those above it that are missing, for their owner alone; one that is there stays as it is.
///
/// # Errors
/// Any error of the file system.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let make = || DirBuilder::new().mode(PRIVATE_FOLDER).create(path);
    let made = match (make(), path.parent()) {
        (Err(error), Some(above)) if error.kind() == io::ErrorKind::NotFound => {
            create_private_folder(above)?;
            make()
        }
        (made, _) => made,
    };
    match made {
        // A umask may have taken rights of the owner.
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(PRIVATE_FOLDER)),
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes the rights of others away from an open file or folder. Returns whether they had any.
///
/// # Errors
/// It belongs to another user, or the file system does not do it.
pub fn close_to_others(file: &File) -> io::Result<bool> {
    let mode = file.metadata()?.permissions().mode();
    if mode & OF_OTHERS == 0 {
        return Ok(false);
    }
    file.set_permissions(Permissions::from_mode(mode & 0o7777 & !OF_OTHERS))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    /// Hardening 5: the umask of the process does not decide who may read. The process has one umask for all its threads, so
    /// children with a umask of their own do this in `tests/privacy.rs`; here is what needs none.
    #[test]
    fn what_is_created_or_opened_as_private_is_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/c");
        create_private_folder(&deep).unwrap();
        create_private_folder(&deep).unwrap();
        for part in ["a", "a/b", "a/b/c"] {
            assert_eq!(mode(&folder.path().join(part)), PRIVATE_FOLDER, "{part}");
        }
        let (new, old) = (deep.join("new"), deep.join("old"));
        drop(create_private(&new).unwrap());
        assert_eq!(create_private(&new).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::write(&old, b"kept").unwrap();
        std::fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        drop(open_or_create_private(OpenOptions::new().read(true).write(true), &old).unwrap());
        drop(open_or_create_private(OpenOptions::new().read(true).write(true), &deep.join("lock")).unwrap());
        for file in ["new", "old", "lock"] {
            assert_eq!(mode(&deep.join(file)), PRIVATE_FILE, "{file}");
        }
        assert_eq!(std::fs::read(&old).unwrap(), b"kept");
        std::fs::set_permissions(&deep, Permissions::from_mode(0o755)).unwrap();
        create_private_folder(&deep).unwrap();
        assert_eq!(mode(&deep), 0o755, "a folder that was there stays as it is");
        let opened = open_folder(&deep, Links::Refuse).unwrap();
        assert!(close_to_others(&opened).unwrap() && !close_to_others(&opened).unwrap());
        assert_eq!(mode(&deep), PRIVATE_FOLDER);
        assert!(create_private_folder(&new.join("below-a-file")).is_err());
    }
}
