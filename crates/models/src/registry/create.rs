//! New models: from a file, from a Modelfile, from files that a client sent.
//!
//! A file is brought in, read, hashed and synced without the folder's lock, which is then held for the two renames: the
//! file gets its name, then the manifest.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use poncho_gguf::Facts;
use poncho_gguf::file::FileStamp;

use crate::blobs::{self, Blob, Hashed, Incoming, hash_file, is_linked, pieces, sync_file, sync_folder, tell};
use crate::digest::{Hasher, Sha256};
use crate::error::RegistryError;
use crate::manifest::{Manifest, Source, SourceKind};
use crate::modelfile::Modelfile;
use crate::name::ModelName;
use crate::progress::{Progress, ProgressSink};
use crate::reference::Reference;

use super::{Installed, PathRule, Registry, facts_of, usable_model};

/// A whole, checked file that waits for its name.
#[derive(Debug)]
pub(crate) struct Ready {
    data: PathBuf,
    pub(crate) blob: Blob,
    /// The file when it was hashed.
    stamp: Option<FileStamp>,
    facts: Facts,
    /// Removed when this is dropped; `None` for a file that lies elsewhere.
    _incoming: Option<Incoming>,
}

impl Ready {
    /// A file that was fetched to where it can be renamed from, with its hash known.
    pub(crate) fn fetched(data: PathBuf, hashed: Hashed) -> Result<Self, RegistryError> {
        let facts = usable_file(&data, &data)?;
        Ok(Self { data, blob: hashed.blob, stamp: Some(hashed.stamp), facts, _incoming: None })
    }

    /// The same for one that was hashed on its way into a folder of its own.
    pub(crate) fn incoming(incoming: Incoming, blob: Blob) -> Result<Self, RegistryError> {
        let data = incoming.data();
        let facts = usable_file(&data, &data)?;
        let stamp = FileStamp::of(&data).ok();
        Ok(Self { data, blob, stamp, facts, _incoming: Some(incoming) })
    }

    /// Gives the file its name. The caller holds the folder's lock.
    fn place(&self, registry: &Registry) -> Result<(), RegistryError> {
        blobs::place(&registry.layout, &self.data, &self.blob, self.stamp.as_ref())
    }
}

/// A part of a new model: a file that has its name already, or one that waits for it.
enum Part {
    Here(Blob),
    Ready(Box<Ready>),
}

impl Part {
    fn blob(&self) -> Blob {
        match self {
            Self::Here(blob) => *blob,
            Self::Ready(ready) => ready.blob,
        }
    }
}

impl Registry {
    /// Installs a GGUF file of this machine. Its blocks are shared where the file system can, else it is copied.
    ///
    /// # Errors
    /// When the file is no model or the folder cannot be written.
    pub fn import(
        &self,
        path: &Path,
        name: &ModelName,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, RegistryError> {
        self.import_checked(path, name, None, progress)
    }

    /// The same; the file must have that hash, if one is given.
    pub(crate) fn import_checked(
        &self,
        path: &Path,
        name: &ModelName,
        sha256: Option<Sha256>,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, RegistryError> {
        let ready = self.bring(path, progress)?;
        if let Some(expected) = sha256.filter(|expected| *expected != ready.blob.sha256) {
            return Err(RegistryError::WrongHash { expected, got: ready.blob.sha256 });
        }
        let source = Source { kind: SourceKind::File, reference: absolute(path) };
        self.install(name, source, &ready, progress)
    }

    /// Gives a file that is ready its name.
    pub(crate) fn install(
        &self,
        name: &ModelName,
        source: Source,
        ready: &Ready,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, RegistryError> {
        tell(progress, Progress::Installing)?;
        let manifest = Manifest::new(name, source, ready.blob, ready.facts.clone());
        let _writing = self.layout.lock_for_writing()?;
        ready.place(self)?;
        self.replace(manifest)
    }

    /// Makes a model from a Modelfile. What the model below says holds where the Modelfile is silent.
    ///
    /// # Errors
    /// When FROM or an ADAPTER leads nowhere, or the folder cannot be written.
    pub fn create(
        &self,
        name: &ModelName,
        modelfile: &Modelfile,
        paths: PathRule<'_>,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, RegistryError> {
        let (model, below) = self.find_model(name, &modelfile.from, paths, progress)?;
        let mut adapters: Vec<Part> = below.adapters.iter().map(|blob| Part::Here(*blob)).collect();
        for adapter in &modelfile.adapters {
            let part = self.find_adapter(adapter, paths, progress)?;
            fits(adapter, &part, &below)?;
            adapters.push(part);
        }
        tell(progress, Progress::Installing)?;
        // An empty text takes away the one below.
        let text = |own: &Option<String>, below: Option<String>| own.clone().or(below).filter(|text| !text.is_empty());
        let list = |own: &[String], below: Vec<String>| if own.is_empty() { below } else { own.to_vec() };
        let manifest = Manifest {
            adapters: adapters.iter().map(Part::blob).collect(),
            parameters: below.parameters.overlaid(&modelfile.parameters),
            system: text(&modelfile.system, below.system),
            template: text(&modelfile.template, below.template),
            messages: if modelfile.messages.is_empty() { below.messages } else { modelfile.messages.clone() },
            license: list(&modelfile.license, below.license),
            ..Manifest::new(name, below.source, model.blob(), below.facts)
        };
        self.layout.prepare()?;
        let _writing = self.layout.lock_for_writing()?;
        for part in std::iter::once(&model).chain(&adapters) {
            match part {
                Part::Ready(ready) => ready.place(self)?,
                // The name it was found by may have been removed since.
                Part::Here(blob) if self.layout.blob(&blob.sha256).exists() => {}
                Part::Here(blob) => return Err(RegistryError::NoBlob { digest: blob.sha256 }),
            }
        }
        self.replace(manifest)
    }

    /// The file of FROM, and the manifest that the new one starts from.
    fn find_model(
        &self,
        name: &ModelName,
        from: &str,
        paths: PathRule<'_>,
        progress: ProgressSink<'_>,
    ) -> Result<(Part, Manifest), RegistryError> {
        let file = match (uploaded(from), Reference::parse(from)) {
            (Some(digest), _) => FromFile { ready: self.take_upload(&digest, progress)?, reference: from.to_owned() },
            (None, Ok(Reference::Path(path))) => {
                let path = allowed(&path, from, paths)?;
                FromFile { reference: absolute(&path), ready: self.bring(&path, progress)? }
            }
            // A folder name without a dot before it, as people write; only where paths are allowed at all.
            (None, Err(_)) if matches!(paths, PathRule::From(base) if base.join(from).is_file()) => {
                let path = allowed(Path::new(from), from, paths)?;
                FromFile { reference: absolute(&path), ready: self.bring(&path, progress)? }
            }
            (None, Err(error)) => return Err(error.into()),
            (None, Ok(_)) => match self.resolve(from)? {
                super::Resolved::Installed(installed) => {
                    let reference = installed.name.to_string();
                    let mut manifest = installed.manifest;
                    manifest.source = Source { kind: SourceKind::Model, reference };
                    return Ok((Part::Here(manifest.model), manifest));
                }
                super::Resolved::File { .. } => return Err(RegistryError::PathRefused { path: from.to_owned() }),
            },
        };
        if file.ready.facts.is_adapter() {
            usable_model(&file.ready.data)?;
        }
        let source = Source { kind: SourceKind::File, reference: file.reference };
        let below = Manifest::new(name, source, file.ready.blob, file.ready.facts.clone());
        Ok((Part::Ready(Box::new(file.ready)), below))
    }

    fn find_adapter(&self, text: &str, paths: PathRule<'_>, progress: ProgressSink<'_>) -> Result<Part, RegistryError> {
        let ready = match uploaded(text) {
            Some(digest) => self.take_upload(&digest, progress)?,
            None => self.bring_any(&allowed(Path::new(text), text, paths)?, progress)?,
        };
        adapter_kind(text, &ready.facts, "name it with FROM")?;
        Ok(Part::Ready(Box::new(ready)))
    }

    /// Brings a model's file in, and hashes it there.
    pub(crate) fn bring(&self, path: &Path, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        usable_file(path, path)?;
        self.bring_any(path, progress)
    }

    fn bring_any(&self, path: &Path, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        // Looked at before anything is copied, and again in the copy, which is what counts.
        facts_of(path)?;
        let incoming = self.layout.receive()?;
        blobs::bring(&self.layout, path, &incoming, progress)?;
        let data = incoming.data();
        let Hashed { blob, stamp } = hash_file(&data, progress)?;
        sync_file(&data)?;
        let facts = facts_of(&data)?;
        Ok(Ready { data, blob, stamp: Some(stamp), facts, _incoming: Some(incoming) })
    }

    /// A model's file of this folder, as [`Registry::own_file`] takes it.
    pub(crate) fn own_model(&self, path: &Path, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        usable_file(path, path)?;
        self.own_file(path, progress)
    }

    /// A file of this folder, read again where it lies: nobody else has a name for it, so no copy is needed.
    fn own_file(&self, path: &Path, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        if is_linked(path) {
            return self.bring_any(path, progress);
        }
        let Hashed { blob, stamp } = hash_file(path, progress)?;
        let facts = facts_of(path)?;
        Ok(Ready { data: path.to_owned(), blob, stamp: Some(stamp), facts, _incoming: None })
    }

    /// Puts a copy in the place of a file that has a second name.
    pub(super) fn detach(&self, path: &Path, blob: &Blob, progress: ProgressSink<'_>) -> Result<(), RegistryError> {
        let ready = self.bring_any(path, progress)?;
        if ready.blob != *blob {
            return Err(RegistryError::SourceChanged { path: path.to_owned() });
        }
        let _writing = self.layout.lock_for_writing()?;
        ready.place(self)
    }

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

    /// A file that a client sent, or one of a model, by its hash. The upload itself becomes the model's file; other
    /// models find it there.
    /// The file of a LoRA adapter that a client sent or that a model has, to be read where it lies. One that no model was
    /// made of is removed after a day, whoever reads it.
    ///
    /// # Errors
    /// When there is no such file, or it is not an adapter.
    pub fn adapter_file(&self, digest: &Sha256) -> Result<PathBuf, RegistryError> {
        let path = self.sent_file(digest)?;
        adapter_kind(&format!("sha256:{digest}"), &facts_of(&path)?, "upload a LoRA adapter in GGUF")?;
        Ok(path)
    }

    fn sent_file(&self, digest: &Sha256) -> Result<PathBuf, RegistryError> {
        let found = [self.layout.upload(digest), self.layout.blob(digest)].into_iter().find(|path| path.is_file());
        found.ok_or(RegistryError::NoBlob { digest: *digest })
    }

    fn take_upload(&self, digest: &Sha256, progress: ProgressSink<'_>) -> Result<Ready, RegistryError> {
        let path = self.sent_file(digest)?;
        let ready = self.own_file(&path, progress)?;
        if ready.blob.sha256 != *digest {
            return Err(RegistryError::Damaged { path, found: format!("its SHA-256 is {}", ready.blob.sha256) });
        }
        Ok(ready)
    }
}

/// Refuses a file that is not an adapter.
fn adapter_kind(name: &str, facts: &Facts, advice: &'static str) -> Result<(), RegistryError> {
    if facts.is_adapter() {
        return Ok(());
    }
    Err(RegistryError::WrongKind { path: name.into(), is: "a model", wanted: "a LoRA adapter", advice })
}

/// How often free room is looked at while a file arrives.
const LOOK_AT_ROOM_EVERY: u64 = 16 << 20;

/// What a file that a client sends may take.
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

struct FromFile {
    ready: Ready,
    reference: String,
}

/// The hash in `@sha256:HEX`.
fn uploaded(text: &str) -> Option<Sha256> {
    text.strip_prefix('@').and_then(Sha256::parse)
}

fn allowed(path: &Path, text: &str, paths: PathRule<'_>) -> Result<PathBuf, RegistryError> {
    match paths {
        PathRule::From(base) => Ok(base.join(path)),
        PathRule::Refused => Err(RegistryError::PathRefused { path: text.to_owned() }),
    }
}

/// The facts of a file that the registry can hold, with `shown` in messages.
pub(super) fn usable_file(path: &Path, shown: &Path) -> Result<Facts, RegistryError> {
    let facts = usable_model(path)?;
    if facts.split_count > 1 {
        return Err(RegistryError::Split { path: shown.to_owned(), count: facts.split_count });
    }
    Ok(facts)
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// An adapter changes the weights of one architecture; whether the sizes agree shows when it is laid over the model.
fn fits(adapter: &str, part: &Part, below: &Manifest) -> Result<(), RegistryError> {
    let Part::Ready(ready) = part else { return Ok(()) };
    match (&ready.facts.architecture, &below.facts.architecture) {
        (Some(made_for), Some(model)) if made_for != model => Err(RegistryError::OtherArchitecture {
            adapter: adapter.to_owned(),
            made_for: made_for.clone(),
            model: model.clone(),
        }),
        _ => Ok(()),
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
        // Half of what is free goes to somebody else between two looks.
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
