//! Opening files that may be something else.
//!
//! Used by all crates wherever a path comes from a folder, a setting or a user. A FIFO, a socket or a device under the
//! name of a file must never block a thread: every file is opened without blocking, and only a regular file is
//! accepted.
//! `stamp` detects that a file has changed.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

pub use poncho_kinds::FileStamp;

/// Whether a symbolic link may stand under the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// No: files that this program wrote are never links.
    Refuse,
    /// Yes: somebody named the file, and may name a link to it.
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
/// [`NotRegular`] if something else has the name; else whatever the file system says.
pub fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    open_regular_with(OpenOptions::new().read(true), path, links)
}

/// Opens a regular file as the options say. Never waits for the other end of a FIFO.
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
        // A link, a socket and a FIFO without a reader refuse to be opened, each with a number that says little.
        Err(error) => {
            let looked = if links == Links::Refuse { path.symlink_metadata() } else { path.metadata() };
            match looked.map(|metadata| metadata.file_type()) {
                Ok(found) if !found.is_file() => Err(not_regular(found).into()),
                _ => Err(error),
            }
        }
    }
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

    /// Hardening 16: opening these waited forever, or gave a handle that cannot be read like a file.
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
}
