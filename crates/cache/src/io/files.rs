//! Opening files that may be something else, and creating files that only their owner may read.
//!
//! Used by this crate and by those above it wherever a path comes from a folder, a setting or a person. A FIFO, a socket or
//! a device under the name of a file must never make a thread wait: everything is opened without blocking, and only a
//! regular file is accepted. Files that may hold a prompt are created for their owner alone, with any umask.

use std::fs::{DirBuilder, File, FileType, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The rights of a file that may hold a prompt.
pub const PRIVATE_FILE: u32 = 0o600;
/// The rights of a folder with such files.
pub const PRIVATE_FOLDER: u32 = 0o700;
/// The rights of everybody but the owner.
const OF_OTHERS: u32 = 0o077;

/// Whether the name may be a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// No: files that this program wrote are never links.
    Refuse,
    /// Yes: a person named the file, and may name a link to it.
    Follow,
}

/// Something other than a file has the name of a file. Carried by an `io::Error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is {kind}, not a regular file; remove it, or name a file")]
pub struct NotRegular {
    /// What it is, with its article.
    pub kind: &'static str,
}

impl NotRegular {
    /// Whether an error says that something other than a file was found.
    #[must_use]
    pub fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<NotRegular> for io::Error {
    fn from(error: NotRegular) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

fn not_regular(found: FileType) -> NotRegular {
    let kind = match found {
        found if found.is_dir() => "a folder",
        found if found.is_symlink() => "a symbolic link",
        found if found.is_fifo() => "a FIFO",
        found if found.is_socket() => "a socket",
        found if found.is_block_device() || found.is_char_device() => "a device",
        _ => "something unknown",
    };
    NotRegular { kind }
}

/// Opens a regular file for reading.
///
/// # Errors
/// [`NotRegular`] if something else has the name; else any error of the file system.
pub fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    open_regular_with(OpenOptions::new().read(true), path, links)
}

/// Opens a regular file with the given options. Never waits for the other end of a FIFO.
///
/// # Errors
/// As [`open_regular`].
pub fn open_regular_with(options: &mut OpenOptions, path: &Path, links: Links) -> io::Result<File> {
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    match options.custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => {
            let found = file.metadata()?.file_type();
            if found.is_file() { Ok(file) } else { Err(not_regular(found).into()) }
        }
        // A link, a socket and a FIFO without a reader refuse to be opened, each with an errno that says little.
        Err(error) => {
            let looked = if links == Links::Refuse { path.symlink_metadata() } else { path.metadata() };
            match looked.map(|metadata| metadata.file_type()) {
                Ok(found) if !found.is_file() => Err(not_regular(found).into()),
                _ => Err(error),
            }
        }
    }
}

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

/// Opens a folder, to sync it or to change its rights.
///
/// # Errors
/// The path is not a folder, or the file system refuses.
pub fn open_folder(path: &Path, links: Links) -> io::Result<File> {
    let mut flags = OFlags::DIRECTORY | OFlags::NONBLOCK;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType as NodeType, Mode, mknodat};

    fn fifo(path: &Path) {
        mknodat(CWD, path, NodeType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    /// Hardening 16: opening these waited for ever, or gave a handle that cannot be read like a file.
    #[test]
    fn whatever_is_not_a_regular_file_is_refused_at_once_and_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fifo(&at("fifo"));
        std::fs::create_dir(at("folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::fs::write(at("file"), b"x").unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("link-to-fifo")).unwrap();
        std::os::unix::fs::symlink(at("file"), at("link-to-file")).unwrap();
        let kind = |name: &str, links, options: &mut OpenOptions| {
            let error = open_regular_with(options, &at(name), links).unwrap_err();
            assert!(NotRegular::is_cause_of(&error), "{name}: {error}");
            error.to_string().split(',').next().unwrap().to_owned()
        };
        let ways: [fn(&mut OpenOptions) -> &mut OpenOptions; 3] =
            [|options| options.read(true), |options| options.write(true), |options| options.append(true)];
        for way in ways {
            let mut fresh = OpenOptions::new();
            let options = way(&mut fresh);
            for links in [Links::Refuse, Links::Follow] {
                assert_eq!(kind("fifo", links, options), "it is a FIFO");
                assert_eq!(kind("folder", links, options), "it is a folder");
                assert_eq!(kind("socket", links, options), "it is a socket");
            }
            assert_eq!(kind("link-to-fifo", Links::Refuse, options), "it is a symbolic link");
            assert_eq!(kind("link-to-fifo", Links::Follow, options), "it is a FIFO");
            assert_eq!(kind("link-to-file", Links::Refuse, options), "it is a symbolic link");
            assert!(open_regular_with(options, &at("link-to-file"), Links::Follow).is_ok());
            assert!(open_regular_with(options, &at("file"), Links::Refuse).is_ok());
        }
        let device = open_regular(Path::new("/dev/null"), Links::Follow).unwrap_err();
        assert!(device.to_string().starts_with("it is a device"), "{device}");
        let missing = open_regular(&at("missing"), Links::Refuse).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(open_folder(&at("fifo"), Links::Follow).is_err() && open_folder(&at("folder"), Links::Refuse).is_ok());
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
