//! Files that a client sends before it creates a model from them.
//!
//! Called by the server. A file is hashed on its way in, and it waits in `uploads/` until a Modelfile names it or
//! `clean.rs` removes it. It must never take more room than the caller allows.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use crate::digest::{Hasher, Sha256};
use crate::error::RegistryError;
use crate::progress::ProgressSink;

use super::blobs::{Blob, pieces, sync_folder};
use super::create::Ready;
use super::{Registry, facts_of};

/// Bytes between two checks of the free space while a file arrives.
const LOOK_AT_ROOM_EVERY: u64 = 16 << 20;

/// The limits of a file that a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Upload {
    /// Bytes that the client announced, if it did.
    pub announced: Option<u64>,
    /// The most bytes that it may have.
    pub most_bytes: u64,
    /// Bytes of the disk that must stay free.
    pub reserve: u64,
}

impl Default for Upload {
    /// Nothing announced, no bounds.
    fn default() -> Self {
        Self { announced: None, most_bytes: u64::MAX, reserve: 0 }
    }
}

impl Registry {
    /// Whether a file with this hash is here, as a model's file or as one that a client sent.
    #[must_use]
    pub fn has_blob(&self, digest: &Sha256) -> bool {
        self.layout.blob(digest).is_file() || self.layout.upload(digest).is_file()
    }

    /// Takes a file from a client, for a Modelfile that names it as `@sha256:HEX` within a day.
    ///
    /// # Errors
    /// When the bytes do not have that hash, are more than they may be, leave too little room, or cannot be stored.
    pub fn add_blob(&self, digest: &Sha256, reader: impl Read, upload: &Upload) -> Result<Blob, RegistryError> {
        self.layout.prepare()?;
        self.add_blob_within(digest, reader, upload, &|| self.layout.free_bytes())
    }

    fn add_blob_within(
        &self,
        digest: &Sha256,
        reader: impl Read,
        upload: &Upload,
        free_bytes: &dyn Fn() -> Option<u64>,
    ) -> Result<Blob, RegistryError> {
        let check_room = |needed: u64| match free_bytes().map(|free| free.saturating_sub(upload.reserve)) {
            Some(free) if free < needed => {
                Err(RegistryError::NoRoom { needed, free, folder: self.layout.root.clone() })
            }
            _ => Ok(()),
        };
        if upload.announced.is_some_and(|bytes| bytes > upload.most_bytes) {
            return Err(RegistryError::TooLarge { limit: upload.most_bytes });
        }
        check_room(upload.announced.unwrap_or(1))?;
        let incoming = self.layout.receive()?;
        let data = incoming.data();
        let mut file = fs::File::create(&data).map_err(|source| RegistryError::io("create", &data, source))?;
        let mut hasher = Hasher::default();
        let mut checked = 0_u64;
        let bytes = pieces(reader, &data, |piece, done| {
            if done > upload.most_bytes {
                return Err(RegistryError::TooLarge { limit: upload.most_bytes });
            }
            // Others write too, so room that was there at the beginning may be gone.
            if done.saturating_sub(checked) >= LOOK_AT_ROOM_EVERY {
                checked = done;
                check_room(upload.announced.map_or(1, |bytes| bytes.saturating_sub(done)))?;
            }
            hasher.update(piece);
            file.write_all(piece).map_err(|source| RegistryError::io("write", &data, source))
        })?;
        let got = hasher.finish();
        if got != *digest {
            return Err(RegistryError::WrongHash { expected: *digest, got });
        }
        file.sync_all().map_err(|source| RegistryError::io("sync", &data, source))?;
        let target = self.layout.upload(digest);
        fs::rename(&data, &target).map_err(|source| RegistryError::io("rename", &target, source))?;
        sync_folder(&self.layout.uploads())?;
        Ok(Blob { sha256: got, bytes })
    }

    /// The file of a LoRA adapter that a client sent or that a model has, to be read where it lies. An upload that no
    /// model uses is removed after a day.
    ///
    /// # Errors
    /// If there is no such file, or it is not an adapter.
    pub fn adapter_file(&self, digest: &Sha256) -> Result<PathBuf, RegistryError> {
        let path = self.sent_file(digest)?;
        if facts_of(&path)?.is_adapter() {
            return Ok(path);
        }
        Err(RegistryError::WrongKind {
            path: format!("sha256:{digest}").into(),
            is: "a model",
            wanted: "a LoRA adapter",
            advice: "upload a LoRA adapter in GGUF",
        })
    }

    /// A file that a client sent, or one of a model, by its hash.
    fn sent_file(&self, digest: &Sha256) -> Result<PathBuf, RegistryError> {
        let found = [self.layout.upload(digest), self.layout.blob(digest)].into_iter().find(|path| path.is_file());
        found.ok_or(RegistryError::NoBlob { digest: *digest })
    }

    /// The same, as a file of a new model. The upload itself becomes the model's file; other models find it there.
    pub(super) fn take_upload(&self, digest: &Sha256, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        let path = self.sent_file(digest)?;
        let ready = self.own_file(&path, progress)?;
        if ready.blob.sha256 != *digest {
            return Err(RegistryError::Damaged { path, found: format!("its SHA-256 is {}", ready.blob.sha256) });
        }
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn registry() -> (tempfile::TempDir, Registry) {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        registry.layout.prepare().unwrap();
        (folder, registry)
    }

    fn left_behind(registry: &Registry) -> usize {
        let count = |folder: PathBuf| fs::read_dir(folder).unwrap().count();
        count(registry.layout.incoming()) + count(registry.layout.uploads())
    }

    /// Hardening 10: an upload could be of any size.
    #[test]
    fn an_upload_larger_than_allowed_is_refused_and_leaves_nothing() {
        let (_folder, registry) = registry();
        let bytes = vec![7; 3 << 20];
        let digest = Sha256::of(&bytes);
        for announced in [None, Some(bytes.len() as u64), Some(10)] {
            let upload = Upload { announced, most_bytes: 1 << 20, ..Upload::default() };
            let refused = registry.add_blob(&digest, &bytes[..], &upload).unwrap_err();
            assert!(matches!(refused, RegistryError::TooLarge { limit: 0x10_0000 }), "{refused}");
            assert!(refused.to_string().contains("--max-upload"), "{refused}");
        }
        assert_eq!(left_behind(&registry), 0);
        let upload = Upload { most_bytes: bytes.len() as u64, ..Upload::default() };
        assert_eq!(registry.add_blob(&digest, &bytes[..], &upload).unwrap().bytes, bytes.len() as u64);
    }

    /// Hardening 10: an upload could fill the disk.
    #[test]
    fn an_upload_ends_before_it_takes_the_reserve() {
        let (_folder, registry) = registry();
        let bytes = vec![7; 40 << 20];
        let digest = Sha256::of(&bytes);
        let upload = Upload { reserve: 100 << 20, ..Upload::default() };
        let looks = Cell::new(0);
        // Another process takes half of the free space between two checks.
        let free = || {
            looks.set(looks.get() + 1);
            Some((160_u64 << 20) >> (looks.get() - 1))
        };
        let read = Cell::new(0);
        let counted = Counted { rest: &bytes, read: &read };
        let refused = registry.add_blob_within(&digest, counted, &upload, &free).unwrap_err();
        assert!(matches!(refused, RegistryError::NoRoom { free: 0, .. }), "{refused}");
        assert!(looks.get() == 2 && read.get() < bytes.len(), "it did not wait for the end");
        let announced = Upload { announced: Some(bytes.len() as u64), ..upload };
        read.set(0);
        let counted = Counted { rest: &bytes, read: &read };
        let refused = registry.add_blob_within(&digest, counted, &announced, &|| Some(120 << 20)).unwrap_err();
        assert!(matches!(refused, RegistryError::NoRoom { needed: 0x280_0000, free: 0x140_0000, .. }), "{refused}");
        assert_eq!(read.get(), 0, "what cannot fit is not read at all");
        assert_eq!(left_behind(&registry), 0);
    }

    struct Counted<'a> {
        rest: &'a [u8],
        read: &'a Cell<usize>,
    }

    impl Read for Counted<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = self.rest.read(buffer)?;
            self.read.set(self.read.get() + count);
            Ok(count)
        }
    }
}
