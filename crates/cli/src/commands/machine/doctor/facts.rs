//! The facts that `doctor` collects about the machine: plain data, gathered once.
//!
//! Every probe is bounded and leaves nothing behind. Unknown facts are `None`, never a guess.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::FromArgMatches;
use poncho_cache::LOCK_FILE_NAME;
use poncho_cache::open_to_others;
use poncho_cache::{Links, open_regular};
use poncho_engine::backend::llama::{missing_cpu_features, unused_cpu_features};
use poncho_gguf::{Keep, Metadata};
use poncho_models::Registry;
use poncho_server::LoadingParameters;
use poncho_shared::{Measurement, Settings, SharedStore};

use crate::fit::Fitting;
use crate::serving::devices::{self, Looked};
use crate::serving::disk::{free_bytes, is_in_memory};
use crate::serving::memory::{self, Demand};
use crate::serving::port::{self, PortState};
use crate::serving::shape::{ModelShape, replay_file};
use crate::serving::{limits, model_file};
use crate::settings::Resolved;
use crate::settings::args::ServeArgs;
use crate::settings::cache_folder::cache_folder;
use crate::settings::models_folder::models_folder;
use crate::variants;

/// Maximum bytes written to measure a disk; a slow disk gets fewer.
const MEASURED_BYTES: usize = 16 << 20;
/// Maximum time of writing before it is synced and counted.
const MEASURED_TIME: Duration = Duration::from_millis(500);

/// All inputs of the checks.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// Instructions that the build needs and the CPU lacks.
    pub(super) cpu_missing: Vec<&'static str>,
    /// Instructions that would help and that the build does not use.
    pub(super) cpu_unused: Vec<&'static str>,
    /// The build for a newer CPU that computes instead of this program.
    pub(super) cpu_build: Option<&'static str>,
    /// Builds for newer CPUs that were tried and do not work.
    pub(super) cpu_builds_unusable: Vec<String>,
    /// The devices that can compute, and the backends that cannot be used.
    pub(super) looked: Looked,
    /// Available memory in bytes.
    pub(super) memory: Option<u64>,
    /// The model to serve; `None` if none is named.
    pub(super) model: Option<ModelFacts>,
    pub(super) folder: FolderFacts,
    /// Size of `/dev/shm`; `None` if there is none.
    pub(super) shared_memory: Option<u64>,
    pub(super) address: String,
    pub(super) port: PortState,
    /// The limit of open files of a process; `None` if there is none.
    pub(super) open_files: Option<u64>,
    /// Notes about variables with our prefix that are not settings.
    pub(super) strange_variables: Vec<String>,
    /// Names of models that share their file with the user, who may change it.
    pub(super) linked_models: Vec<String>,
    /// The object store of the settings, measured, or why it cannot be used; `None` if none is named.
    pub(super) shared: Option<Result<Measurement, String>>,
    /// The settings file, if keys are set and other users may read it.
    pub(super) readable_keys: Option<PathBuf>,
}

/// The file to load.
#[derive(Debug, Clone)]
pub(super) struct ModelFacts {
    pub(super) path: PathBuf,
    /// The memory that it needs, or what is wrong with the file.
    pub(super) found: Result<Demand, String>,
}

/// The cache folder.
#[derive(Debug, Clone)]
pub(super) struct FolderFacts {
    pub(super) path: PathBuf,
    /// Why nothing can be written there.
    pub(super) unwritable: Option<String>,
    pub(super) in_memory: bool,
    pub(super) free: Option<u64>,
    /// Bytes per second, written and synced.
    pub(super) write_speed: Option<u64>,
    /// The process that owns it.
    pub(super) holder: Option<String>,
    /// Files in it, or beside it, that other users may read.
    pub(super) open_to_others: Vec<PathBuf>,
}

pub(super) fn gather(resolved: &Resolved) -> anyhow::Result<Facts> {
    let matches = &resolved.matches;
    let host = matches.get_one::<String>("host").context("no host")?;
    let port = *matches.get_one::<u16>("port").context("no port")?;
    let folder = cache_folder(matches.get_one::<PathBuf>("cache_dir").map(PathBuf::as_path))?;
    let args = ServeArgs::from_arg_matches(matches)?;
    let looked = devices::look(&args.devices);
    let models_dir = matches.get_one::<PathBuf>("models_dir").map(PathBuf::as_path);
    let fitting = Fitting::new(&args, ModelShape::of(&args, None), Some(&folder), &looked);
    let has = |name: &str| matches.get_raw(name).is_some_and(|mut keys| keys.next().is_some());
    let has_keys = has("api_key") || has("admin_key");
    let file = resolved.file.clone().filter(|path| has_keys && others_may_read(path));
    let variants::Chosen { build: cpu_build, unusable: cpu_builds_unusable } = variants::chosen();
    Ok(Facts {
        cpu_missing: missing_cpu_features(),
        cpu_build,
        cpu_builds_unusable,
        memory: memory::available(),
        model: args.models().first().map(|model| look_at_model(&file_of(model, models_dir), &fitting)),
        looked,
        cpu_unused: unused_cpu_features(),
        folder: look_at_folder(folder),
        shared_memory: rustix::fs::statvfs("/dev/shm").ok().map(|facts| facts.f_blocks.saturating_mul(facts.f_frsize)),
        address: format!("{host}:{port}"),
        port: port::look(host, port),
        open_files: limits::most_open_files(),
        strange_variables: resolved.strange.clone(),
        linked_models: linked_models(models_dir),
        shared: args.shared_tier.settings().map(|settings| measure(&settings)),
        readable_keys: file,
    })
}

/// Measures an object store with some tens of megabytes, which it removes again.
fn measure(settings: &Settings) -> Result<Measurement, String> {
    SharedStore::open(settings).and_then(|store| store.measure()).map_err(|error| error.to_string())
}

/// Models of the registry that share their file with the user.
fn linked_models(models_dir: Option<&Path>) -> Vec<String> {
    let registry = models_folder(models_dir).ok().and_then(|folder| Registry::open(folder).ok());
    let linked = registry.and_then(|registry| registry.linked().ok()).unwrap_or_default();
    linked.iter().map(|model| model.name.short()).collect()
}

/// The file of an installed model, and what its Modelfile says about loading it; any other text is a path.
fn file_of(model: &str, models_dir: Option<&Path>) -> (PathBuf, LoadingParameters) {
    let installed = models_folder(models_dir).ok().and_then(|folder| Registry::open(folder).ok()?.resolve(model).ok());
    match installed {
        Some(poncho_models::Resolved::Installed(installed)) => {
            let loading = LoadingParameters::of(&installed.manifest.parameters.to_json());
            (installed.model, loading)
        }
        _ => (PathBuf::from(model), LoadingParameters::default()),
    }
}

fn look_at_model((path, loading): &(PathBuf, LoadingParameters), fitting: &Fitting) -> ModelFacts {
    let looked = model_file::check(path).map_err(|error| error.to_string()).and_then(|()| {
        // The estimate takes a damaged head for an empty one.
        Metadata::open(path, &Keep::FACTS).map_err(|error| error.to_string())?;
        let mut config = fitting.config(path, &path.display().to_string(), *loading);
        loading.set(&mut config);
        Ok(Demand::of(&[config]))
    });
    ModelFacts { path: path.clone(), found: looked }
}

fn look_at_folder(path: PathBuf) -> FolderFacts {
    let existing = nearest_existing(&path).to_path_buf();
    let unwritable = why_unwritable(&path, &existing);
    let free = free_bytes(&existing);
    let enough = free.is_none_or(|free| free > 4 * MEASURED_BYTES as u64);
    let write_speed = (unwritable.is_none() && enough).then(|| write_speed(&existing)).flatten();
    FolderFacts {
        unwritable,
        in_memory: is_in_memory(&existing),
        free,
        write_speed,
        holder: holder(&path),
        open_to_others: readable_by_others(&path),
        path,
    }
}

fn readable_by_others(folder: &Path) -> Vec<PathBuf> {
    // Another check reports a folder that is missing or cannot be listed.
    let open = open_to_others(folder).unwrap_or_default().into_iter().filter(|open| !open.is_shielded);
    open.map(|open| open.path).chain(Some(replay_file(folder)).filter(|path| others_may_read(path))).collect()
}

/// The folder, or its closest parent that exists.
fn nearest_existing(path: &Path) -> &Path {
    path.ancestors()
        .find(|folder| folder.exists())
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn why_unwritable(path: &Path, existing: &Path) -> Option<String> {
    if !existing.is_dir() {
        return Some(format!("{} is a file, not a folder", existing.display()));
    }
    // Some file systems have no unnamed files, and some folders (in /proc) refuse all files.
    let tried = tempfile::tempfile_in(existing).map(drop);
    tried.err().map(|error| match existing == path {
        true => without_number(&error),
        false => format!(
            "{} does not exist and cannot be created in {}: {}",
            path.display(),
            existing.display(),
            without_number(&error)
        ),
    })
}

fn without_number(error: &io::Error) -> String {
    error.kind().to_string()
}

/// Bytes per second that reach the disk, measured with an unnamed file.
fn write_speed(folder: &Path) -> Option<u64> {
    let mut file: File = tempfile::tempfile_in(folder).ok()?;
    // Not zeros: some disks and file systems do not store them.
    let chunk: Vec<u8> = (0..1_u32 << 20).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let started = Instant::now();
    let mut written = 0_usize;
    while written < MEASURED_BYTES && started.elapsed() < MEASURED_TIME {
        file.write_all(&chunk).ok()?;
        written = written.saturating_add(chunk.len());
    }
    file.sync_data().ok()?;
    let micros = started.elapsed().as_micros().max(1);
    u64::try_from(written as u128 * 1_000_000 / micros).ok()
}

/// The process that holds the lock of a cache folder. The lock itself is not taken.
fn holder(folder: &Path) -> Option<String> {
    let lock = folder.join(LOCK_FILE_NAME);
    let file = open_regular(&lock, Links::Refuse).ok()?;
    match file.try_lock_shared() {
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut note = String::new();
            let _ = file.take(64).read_to_string(&mut note);
            Some(note.trim().to_owned()).filter(|pid| !pid.is_empty()).or_else(|| Some("unknown".to_owned()))
        }
        Ok(()) | Err(std::fs::TryLockError::Error(_)) => None,
    }
}

fn others_may_read(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}
