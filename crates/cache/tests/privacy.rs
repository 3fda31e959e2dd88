//! Who may read what a cache writes: its owner, whatever the umask, and nobody else, also after an update from a release that
//! left that to the umask.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use poncho_cache::row_path;
use poncho_cache::{
    Cache, CacheConfig, FileTierConfig, Key, Stage, StageObserver, Tier, close_cache_folder, inspect_folder,
    open_to_others,
};

use crate::support::{conversation, namespace, on_disk, reach, save, save_to};

/// The variable with the folder in which the child works.
const FOLDER: &str = "PONCHO_PRIVACY_FOLDER";

/// Everything below a folder, the folder included, with its rights.
fn rights(root: &Path) -> Vec<(PathBuf, u32, bool)> {
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(path) = open.pop() {
        let metadata = path.symlink_metadata().unwrap();
        if metadata.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, metadata.mode() & 0o7777, metadata.is_dir()));
    }
    found
}

#[track_caller]
fn assert_private(root: &Path) {
    for (path, mode, is_folder) in rights(root) {
        let expected = if is_folder { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{} has mode {mode:o}", path.display());
    }
}

/// Looks at the temporary file of every row.
#[derive(Debug)]
struct Watcher(PathBuf);

impl StageObserver for Watcher {
    fn reached(&self, stage: Stage, _key: &Key) {
        if stage == Stage::TmpWritten {
            assert_private(&self.0);
        }
    }
}

/// Not a test of its own: what the next test runs in another process, because a umask belongs to a whole process. Without a
/// folder it has nothing to do.
#[test]
fn child_process() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let (disk, memory) = (folder.join("kv/on/disk"), folder.join("memory"));
    let config = CacheConfig {
        ram_file: Some(FileTierConfig { folder: memory.clone(), quota: 1 << 20 }),
        observer: Some(Arc::new(Watcher(folder.clone()))),
        writers: 1,
        ..on_disk(&disk, 1 << 20)
    };
    let cache = Cache::open(config).unwrap();
    let tokens = conversation(1, 40);
    save(&cache, namespace(1), &tokens[..20]);
    save(&cache, namespace(1), &tokens);
    save_to(&cache, namespace(1), &conversation(2, 30), Some(Tier::RamFile));
    cache.flush();
    // A damaged row is moved aside.
    let damaged = row_path(&disk, &namespace(1).key(&tokens));
    let mut bytes = std::fs::read(&damaged).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    assert_eq!(reach(&cache, namespace(1), &tokens), 20);
    drop(cache);
    std::fs::write(folder.join("done"), b"").unwrap();
}

/// Hardening 5: folders were created 0755 and rows 0644 with the usual umask.
#[test]
fn conversations_are_readable_by_their_owner_alone_whatever_the_umask() {
    for umask in ["000", "022", "077", "277"] {
        let place = tempfile::tempdir().unwrap();
        // Created by the child, with all that is in it.
        let folder = place.path().join("all");
        let output = Command::new("sh")
            .args(["-c", r#"umask "$1" && exec "$0" privacy::child_process --exact --nocapture"#])
            .arg(std::env::current_exe().unwrap())
            .arg(umask)
            .env(FOLDER, &folder)
            .output()
            .unwrap();
        let done = folder.join("done");
        assert!(output.status.success() && done.exists(), "{umask}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_file(done).unwrap();
        let names: Vec<String> = rights(&folder).iter().map(|(path, ..)| path.display().to_string()).collect();
        for kind in [".kvc", ".kvc.bad", "poncho.lock"] {
            assert!(names.iter().any(|name| name.ends_with(kind)), "{kind} is not among {names:?}");
        }
        assert_private(&folder);
    }
}

/// A folder as an older release left it: with the rights that the umask gave.
fn old_folder(root: &Path) -> Vec<u32> {
    let tokens = conversation(1, 60);
    let cache = Cache::open(on_disk(root, 1 << 20)).unwrap();
    save(&cache, namespace(1), &tokens[..30]);
    save(&cache, namespace(1), &tokens);
    drop(cache);
    for (path, _, is_folder) in rights(root) {
        let mode = if is_folder { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    tokens
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

/// Hardening 5: folders of older releases are closed when they are opened, and their files by the repair.
#[test]
fn an_old_folder_is_reported_shielded_when_opened_and_closed_by_the_repair() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("kv");
    let tokens = old_folder(&root);
    let found = open_to_others(&root).unwrap();
    // The root, the lock, and two rows with their folders.
    assert_eq!(found.len(), 6, "{found:?}");
    assert!(found.iter().all(|open| !open.is_shielded) && found[0].path == root && found[0].mode == 0o755);

    let cache = Cache::open(on_disk(&root, 1 << 20)).unwrap();
    assert_eq!(mode(&root), 0o700);
    assert_eq!(reach(&cache, namespace(1), &tokens), 60);
    let found = open_to_others(&root).unwrap();
    assert!(found.len() == 4 && found.iter().all(|open| open.is_shielded), "{found:?}");

    // Beside the process that has the folder open.
    let closed = close_cache_folder(&root).unwrap();
    assert!(closed.closed == 4 && closed.failed.is_empty(), "{closed:?}");
    assert_private(&root);
    assert_eq!(open_to_others(&root).unwrap(), []);
    drop(cache);
    assert_eq!(inspect_folder(&root).unwrap().verify(|_| {}), []);
}

/// Hardening 5: nobody loses access to a folder that was never a cache's alone.
#[test]
fn a_folder_that_holds_other_things_keeps_its_rights_and_its_rows_are_shielded() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("home");
    old_folder(&root);
    std::fs::write(root.join("letter.txt"), b"mine").unwrap();
    std::fs::set_permissions(root.join("letter.txt"), Permissions::from_mode(0o644)).unwrap();
    drop(Cache::open(on_disk(&root, 1 << 20)).unwrap());
    assert_eq!((mode(&root), mode(&root.join("letter.txt"))), (0o755, 0o644));
    let open: Vec<_> = open_to_others(&root).unwrap().into_iter().filter(|open| !open.is_shielded).collect();
    assert_eq!(open, [], "the folders of rows keep others out, and the lock is closed");
    close_cache_folder(&root).unwrap();
    assert_eq!((mode(&root), mode(&root.join("letter.txt"))), (0o755, 0o644));
    assert_eq!(open_to_others(&root).unwrap(), []);

    // A folder like /tmp, in which everybody may create files, also when it is empty.
    let shared = place.path().join("tmp");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    let cache = Cache::open(on_disk(&shared, 1 << 20)).unwrap();
    save(&cache, namespace(1), &conversation(1, 30));
    drop(cache);
    assert_eq!(mode(&shared), 0o1777);
    assert_eq!(open_to_others(&shared).unwrap(), []);
}
