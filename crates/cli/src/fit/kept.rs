//! Plans of earlier starts, in a file beside the cache folder: the rows there were written with them.
//!
//! Read and written by the fitting. The file is replaced as a whole; one that is damaged or of another version is ignored,
//! and the next plan replaces it. Losing it never fails a start.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use poncho_cache::{Links, create_private_folder, open_regular};
use poncho_engine::fit::{Given, KeptPlan, Machine, ModelKey};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::serving::shape::beside;

/// The version of the file; another one is not read.
const VERSION: u32 = 1;
/// A larger file is not ours.
const MOST_BYTES: u64 = 1 << 20;
/// Plans that are kept, the newest last.
const MOST_PLANS: usize = 256;

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    version: u32,
    plans: Vec<KeptPlan>,
}

fn path_of(folder: &Path) -> PathBuf {
    beside(folder, ".plans")
}

/// The plan of an earlier start.
pub(super) fn read(folder: &Path, model: &ModelKey, given: &Given, machine: &Machine) -> Option<KeptPlan> {
    load(&path_of(folder)).plans.into_iter().rev().find(|plan| plan.is_for(model, given, machine))
}

/// Keeps a plan. A failure is logged and has no other effect.
pub(super) fn write(folder: &Path, plan: KeptPlan) {
    let path = path_of(folder);
    let mut file = load(&path);
    file.plans.retain(|other| !other.is_for(&plan.model, &plan.given, &plan.machine));
    file.plans.push(plan);
    let excess = file.plans.len().saturating_sub(MOST_PLANS);
    file.plans.drain(..excess);
    file.version = VERSION;
    if let Err(error) = store(&path, &file) {
        // Where nothing can be written, the cache folder says so.
        tracing::debug!(path = %path.display(), %error, "the plan for this model is not kept; the next start plans again");
    }
}

fn load(path: &Path) -> File {
    let Ok(file) = open_regular(path, Links::Refuse) else { return File::default() };
    let mut bytes = Vec::new();
    if file.take(MOST_BYTES).read_to_end(&mut bytes).is_err() {
        return File::default();
    }
    match serde_json::from_slice::<File>(&bytes) {
        Ok(file) if file.version == VERSION => file,
        Ok(File { version, .. }) => {
            // Where nothing can be written, the cache folder says so.
            tracing::debug!(path = %path.display(), version, "kept plans of another version are not used");
            File::default()
        }
        Err(error) => {
            // Where nothing can be written, the cache folder says so.
            tracing::debug!(path = %path.display(), %error, "the file of kept plans is damaged and is written again");
            File::default()
        }
    }
}

fn store(path: &Path, file: &File) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    create_private_folder(folder)?;
    let mut new = NamedTempFile::new_in(folder)?;
    new.write_all(&serde_json::to_vec_pretty(file)?)?;
    new.as_file().sync_all()?;
    new.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use poncho_engine::backend::KvType;
    use poncho_engine::fit::{Choice, ModelFacts, Needs, Plan, Step};

    use super::*;

    fn plan(bytes: u64, n_ctx: u32) -> KeptPlan {
        let (type_k, type_v) = (KvType::Q8_0, KvType::F16);
        let choice = Choice { n_ctx, parallel: 2, type_k, type_v, n_cpu_moe: 3, gpu_layers: Some(4) };
        KeptPlan {
            model: ModelKey { bytes, facts: ModelFacts::default(), context: 1 },
            given: Given::default(),
            machine: Machine { host_free: 5, devices: Vec::new() },
            plan: Plan { choice, needs: Needs::default(), step: Step::LessContext },
        }
    }

    fn found(folder: &Path, bytes: u64) -> Option<KeptPlan> {
        read(folder, &plan(bytes, 0).model, &Given::default(), &Machine::default())
    }

    #[test]
    fn plans_are_kept_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("new/kv");
        assert_eq!(found(&cache, 1), None);
        write(&cache, plan(1, 10));
        write(&cache, plan(2, 20));
        assert_eq!(found(&cache, 1), Some(plan(1, 10)));
        write(&cache, plan(1, 30));
        assert_eq!(found(&cache, 1), Some(plan(1, 30)));
        assert_eq!(found(&cache, 2), Some(plan(2, 20)));
        for bytes in 100..100 + 2 * MOST_PLANS as u64 {
            write(&cache, plan(bytes, 1));
        }
        assert_eq!(found(&cache, 1), None, "the oldest one made room");
        assert!(found(&cache, 99 + 2 * MOST_PLANS as u64).is_some());
    }

    #[test]
    fn a_damaged_file_is_ignored_and_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("kv");
        write(&cache, plan(1, 10));
        let whole = std::fs::read(path_of(&cache)).unwrap();
        let other_version = String::from_utf8(whole.clone()).unwrap().replacen("\"version\": 1", "\"version\": 9", 1);
        let absurd = String::from_utf8(whole.clone()).unwrap().replacen("\"n_ctx\": 10", "\"n_ctx\": -1", 1);
        for bad in [&b""[..], b"{", &whole[..whole.len() / 2], other_version.as_bytes(), absurd.as_bytes(), &[0xff; 64]]
        {
            std::fs::write(path_of(&cache), bad).unwrap();
            assert_eq!(found(&cache, 1), None, "{}", String::from_utf8_lossy(bad));
            write(&cache, plan(1, 11));
            assert_eq!(found(&cache, 1), Some(plan(1, 11)));
        }
        std::fs::remove_file(path_of(&cache)).unwrap();
        std::fs::create_dir(path_of(&cache)).unwrap();
        assert_eq!(found(&cache, 1), None, "a folder of that name");
        write(&cache, plan(1, 12));
    }
}
