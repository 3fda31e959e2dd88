//! The kill test: a child process is killed with SIGKILL again and again, at every publish stage, inside file
//! operations and at random instants, and the folder is opened and checked after each kill.
//!
//! What must hold: every row announced before the kill and not given up since is there and reads back bit for bit; no
//! row that is there reads wrong; no temporary remains; quotas hold; nothing was damaged or orphaned. The folder
//! lives through all kills of its scenario. `PONCHO_KILLS` sets the number of kills, all scenarios together.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use poncho_cache::{Cache, Key, Needs, PartKind, SaveOutcome, SaveReason, SaveRequest, Tier};

use self::child::{Orders, ballast};
use self::death::Death;
use crate::support::{check_plan, conversation, namespace, request};

mod child;
mod death;

/// Kills in a run of all four scenarios, unless `PONCHO_KILLS` says otherwise.
const KILLS: usize = 400;
/// A child that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn kills_lose_and_tear_nothing_on_disk_with_one_writer() {
    kill_again_and_again(Tier::Disk, 1);
}

#[test]
fn kills_lose_and_tear_nothing_on_disk_with_three_writers() {
    kill_again_and_again(Tier::Disk, 3);
}

#[test]
fn kills_lose_and_tear_nothing_in_memory_files_with_one_writer() {
    kill_again_and_again(Tier::RamFile, 1);
}

#[test]
fn kills_lose_and_tear_nothing_in_memory_files_with_three_writers() {
    kill_again_and_again(Tier::RamFile, 3);
}

/// Not a test of its own: what the other tests run in another process. Without orders it has nothing to do.
#[test]
fn child_process() {
    if let Some(orders) = Orders::from_env() {
        child::work(&orders);
        panic!("nobody killed this child: {:?}", Death::of(orders.kill, orders.tier));
    }
}

fn kill_again_and_again(tier: Tier, writers: usize) {
    let folder = folder_for(tier);
    let kills = std::env::var("PONCHO_KILLS").map_or(KILLS, |kills| kills.parse().unwrap()).div_ceil(4);
    let mut oracle = Oracle::default();
    let mut announced = 0;
    for kill in 0..kills {
        let orders = Orders { folder: folder.path().to_path_buf(), tier, writers, kill };
        let context = format!("kill {kill} ({:?}) in {tier} with {writers} writers", Death::of(kill, tier));
        let (status, lines) = run_child(&orders);
        for line in &lines {
            announced += usize::from(line.starts_with('P'));
            assert!(oracle.hear(line), "{context}: the child failed: {}", shown(&lines));
        }
        assert_eq!(status.signal(), Some(9), "{context}: {}", shown(&lines));
        oracle.certain = check_folder(&orders, &oracle, &context);
        oracle.evicting.clear();
        oracle.announced.clear();
    }
    assert!(announced > kills, "the children published {announced} rows in {kills} kills; the test shows too little");
}

/// The lines of a child from the first that is not part of its report on, or else the last lines of the report.
fn shown(lines: &[String]) -> String {
    let failure = lines.iter().position(|line| !Oracle::default().hear(line));
    let start = failure.unwrap_or(lines.len().saturating_sub(3));
    let short: Vec<String> = lines[start..].iter().take(8).map(|line| line.chars().take(160).collect()).collect();
    short.join("\n")
}

/// Memory files on a memory file system where there is one.
fn folder_for(tier: Tier) -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if tier == Tier::RamFile && shm.is_dir() {
        tempfile::tempdir_in(shm).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// Which rows must be there.
#[derive(Debug, Default)]
struct Oracle {
    certain: HashSet<Key>,
    /// Rows that the child may be evicting.
    evicting: HashSet<Key>,
    /// Rows that it has said it would evict.
    announced: HashSet<Key>,
}

impl Oracle {
    /// Takes in one line of the child. False if it is not part of the report.
    fn hear(&mut self, line: &str) -> bool {
        let mut words = line.split(' ');
        let kind = words.next();
        let keys: Option<HashSet<Key>> = words.map(Key::from_hex).collect();
        match (kind, keys) {
            (Some("P"), Some(keys)) => self.certain.extend(keys.difference(&self.evicting)),
            (Some("E"), Some(keys)) => {
                self.certain.retain(|key| !keys.contains(key));
                self.announced.extend(&keys);
                self.evicting = keys;
            }
            (Some("D"), Some(keys)) => {
                self.certain.extend(keys);
                self.evicting.clear();
            }
            _ => return false,
        }
        true
    }
}

/// Starts a child, sees it die, and returns its whole report.
fn run_child(orders: &Orders) -> (ExitStatus, Vec<String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kill::child_process", "--exact", "--nocapture"])
        .envs(orders.to_env())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let report = listen(&mut child);
    let mut lines = Vec::new();
    if let Death::ByParent { lines: enough, micros } = Death::of(orders.kill, orders.tier) {
        while lines.len() < enough && hear_line(&report, &mut child, &mut lines) {}
        let moment = Instant::now() + Duration::from_micros(micros);
        while Instant::now() < moment {
            std::thread::yield_now();
        }
        child.kill().unwrap();
    }
    while hear_line(&report, &mut child, &mut lines) {}
    (child.wait().unwrap(), lines)
}

/// The lines that the child writes, until its end. A line that death cut short is left out.
fn listen(child: &mut Child) -> Receiver<String> {
    let mut pipe = BufReader::new(child.stderr.take().unwrap());
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        while pipe.read_line(&mut line).is_ok_and(|length| length > 0) {
            let Some(whole) = line.strip_suffix('\n') else { break };
            if sender.send(whole.to_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    receiver
}

fn hear_line(report: &Receiver<String>, child: &mut Child, lines: &mut Vec<String>) -> bool {
    match report.recv_timeout(PATIENCE) {
        Ok(line) => {
            lines.push(line);
            true
        }
        Err(RecvTimeoutError::Disconnected) => false,
        Err(RecvTimeoutError::Timeout) => {
            child.kill().unwrap();
            panic!("the child hangs; it said {}", shown(lines));
        }
    }
}

/// Opens the folder and holds it against what must be there. Returns the rows that are.
fn check_folder(orders: &Orders, oracle: &Oracle, context: &str) -> HashSet<Key> {
    let named = row_files(&orders.folder).into_iter().filter_map(|path| Key::from_hex(path.file_stem()?.to_str()?));
    let named: HashSet<Key> = named.collect();
    let cache = Cache::open(orders.config()).unwrap();
    let counters = cache.counters();
    assert_eq!(counters.corrupt_files, 0, "{context}: a kill damaged a file");
    assert_eq!(counters.unknown_files, 0, "{context}");
    assert_eq!(counters.evictions, 0, "{context}: more was in the folder than its quota");
    let files = row_files(&orders.folder);
    let others: Vec<&PathBuf> = files.iter().filter(|path| path.extension().is_none_or(|end| end != "kvc")).collect();
    assert!(others.is_empty(), "{context}: left behind {others:?}");
    let bytes: u64 = files.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!(counters.tier_bytes[orders.tier.index()], bytes, "{context}");
    assert!(bytes <= orders.quota(), "{context}: {bytes} bytes in a quota of {}", orders.quota());

    let present: HashSet<Key> = cache.rows().into_iter().map(|row| row.key).collect();
    let lost: Vec<&Key> = oracle.certain.difference(&present).collect();
    assert!(lost.is_empty(), "{context}: lost {lost:?}");
    // Two threads may remove the files of a row and of its parent at once, if both are evicted.
    let orphans: Vec<&Key> = named.difference(&present).filter(|key| !oracle.announced.contains(key)).collect();
    assert!(counters.orphans_dropped == 0 || orphans.is_empty(), "{context}: {orphans:?} had no parent");
    for key in &present {
        check_row(&cache, key, context);
    }
    // The folder takes new rows, and they count from now on.
    let tokens = conversation(2_000 + u32::try_from(orders.kill).unwrap(), 40);
    let again = SaveRequest { reason: SaveReason::Shutdown, ..request(namespace(2), &tokens, None) };
    assert_eq!(cache.save(again).unwrap().outcome, SaveOutcome::Published, "{context}");
    assert_eq!(cache.counters().corrupt_files, 0, "{context}: a row was torn");
    orders.shrink(&cache);
    cache.rows().into_iter().map(|row| row.key).collect()
}

fn check_row(cache: &Cache, key: &Key, context: &str) {
    let row = cache.row(key).unwrap();
    let tokens = cache.tokens_of(key).unwrap();
    assert_eq!(row.meta.namespace.key(&tokens), *key, "{context}");
    let plan = cache.resume(&row.meta.namespace, &tokens, key, Needs::ATTENTION, Duration::ZERO).unwrap();
    assert_eq!(check_plan(&plan, &tokens).unwrap(), tokens.len(), "{context}: {key}");
    assert_eq!(plan.has_logits(), row.parts.contains(&PartKind::Logits), "{context}: {key}");
    let boundary = plan.boundary().unwrap();
    if let Some(length) = boundary.length(PartKind::Partial) {
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        boundary.read(PartKind::Partial, &mut bytes).unwrap();
        assert!(bytes == ballast(key), "{context}: the ballast of {key} is not what was saved");
    }
}

/// Every file in the sub-folders.
fn row_files(folder: &Path) -> Vec<PathBuf> {
    let inside = |path: &Path| path.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    inside(folder).iter().filter(|path| path.is_dir()).flat_map(|path| inside(path)).collect()
}
