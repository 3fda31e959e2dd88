//! Opening files that may be something else.
//!
//! Used by everything here that reads a file or takes a lock. A FIFO, a socket or a device under the name of a file must never
//! make a thread wait: everything is opened without blocking, and only a regular file is accepted. `poncho-cache` has the same
//! for its files; this crate uses none of the others.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Whether a symbolic link may stand under the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// No: files that this program wrote are never links.
    Refuse,
    /// Yes: somebody named the file, and may name a link to it.
    Follow,
}

/// Opens a regular file for reading.
pub(crate) fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    open_regular_with(OpenOptions::new().read(true), path, links)
}

/// Opens a regular file as the options say.
pub(crate) fn open_regular_with(options: &mut OpenOptions, path: &Path, links: Links) -> io::Result<File> {
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let looked = || if links == Links::Refuse { path.symlink_metadata() } else { path.metadata() };
    match options.custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => {
            let found = file.metadata()?.file_type();
            if found.is_file() { Ok(file) } else { Err(not_regular(found)) }
        }
        // A link, a socket and a FIFO without a reader refuse to be opened, each with a number that says little.
        Err(error) => match looked().map(|metadata| metadata.file_type()) {
            Ok(found) if !found.is_file() => Err(not_regular(found)),
            _ => Err(error),
        },
    }
}

/// Opens a folder, to sync it.
pub(crate) fn open_folder(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

fn not_regular(found: FileType) -> io::Error {
    let kind = match found {
        found if found.is_dir() => "a folder",
        found if found.is_symlink() => "a symbolic link",
        found if found.is_fifo() => "a FIFO",
        found if found.is_socket() => "a socket",
        found if found.is_block_device() || found.is_char_device() => "a device",
        _ => "something unknown",
    };
    let said = format!("it is {kind}, not a regular file; remove it, or name a file");
    io::Error::new(io::ErrorKind::InvalidInput, said)
}
