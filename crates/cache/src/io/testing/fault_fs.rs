//! A file system that passes everything on and fails on command.
//!
//! Used by tests that aim a fault at one operation. It must never fail on its own.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::io::fs::{Entry, Fs, NewFile, ReadFile};
use crate::io::sync::{Condvar, Mutex, MutexGuard};

/// What a fault is aimed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `create_folder`
    CreateFolder,
    /// `write_new`
    WriteNew,
    /// `link`
    Link,
    /// `remove`
    Remove,
    /// `rename`
    Rename,
    /// `sync_folder`
    SyncFolder,
    /// `open`
    Open,
    /// `read_exact_at` of an open file
    Read,
    /// `write_at`
    WriteAt,
    /// `list`
    List,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 10] = [
        Self::CreateFolder,
        Self::WriteNew,
        Self::Link,
        Self::Remove,
        Self::Rename,
        Self::SyncFolder,
        Self::Open,
        Self::Read,
        Self::WriteAt,
        Self::List,
    ];
}

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// With this error number (`ENOSPC`, `EIO`, ...), nothing done.
    Error(i32),
    /// `write_new` only: this many bytes are written, then this error.
    ShortWrite {
        /// Bytes that reach the file.
        written: usize,
        /// The error number.
        error: i32,
    },
    /// The thread panics.
    Panic,
    /// The call does not come back before [`FaultFs::release`], and then does its work.
    Stall,
}

#[derive(Debug, Default)]
struct Plan {
    /// Faults that stay until they are cleared.
    standing: HashMap<Operation, Fault>,
    /// Faults of the n-th next call.
    coming: HashMap<Operation, (usize, Fault)>,
    calls: HashMap<Operation, usize>,
    /// Calls that are stalled now.
    stalled: usize,
    /// How often stalled calls were released.
    releases: usize,
}

impl Plan {
    fn next(&mut self, operation: Operation) -> Option<Fault> {
        match self.coming.get_mut(&operation) {
            Some((0, fault)) => {
                let fault = *fault;
                self.coming.remove(&operation);
                Some(fault)
            }
            Some((skip, _)) => {
                *skip -= 1;
                None
            }
            None => self.standing.get(&operation).copied(),
        }
    }
}

/// See the module. Clones share the plan of faults.
#[derive(Debug, Clone)]
pub struct FaultFs {
    inner: Arc<dyn Fs>,
    plan: Arc<Mutex<Plan>>,
    /// A call stalls, or stalled calls are released.
    changed: Arc<Condvar>,
}

impl FaultFs {
    /// Passes everything on to `inner` until a fault is set.
    #[must_use]
    pub fn new(inner: Arc<dyn Fs>) -> Self {
        Self { inner, plan: Arc::default(), changed: Arc::default() }
    }

    /// From now on every such operation fails, until `clear`.
    pub fn fail(&self, operation: Operation, fault: Fault) {
        self.plan.lock().standing.insert(operation, fault);
    }

    /// The operation fails once, after `skip` more that work.
    pub fn fail_once(&self, operation: Operation, skip: usize, fault: Fault) {
        self.plan.lock().coming.insert(operation, (skip, fault));
    }

    /// Clears all faults.
    pub fn clear(&self) {
        let mut plan = self.plan.lock();
        plan.standing.clear();
        plan.coming.clear();
    }

    /// Lets every stalled call go on; from now on none stalls.
    pub fn release(&self) {
        let mut plan = self.plan.lock();
        plan.standing.retain(|_, fault| *fault != Fault::Stall);
        plan.coming.retain(|_, (_, fault)| *fault != Fault::Stall);
        plan.releases += 1;
        drop(plan);
        self.changed.notify_all();
    }

    /// Waits until this number of calls is stalled, or the time is over. Returns whether they are stalled.
    #[must_use]
    pub fn wait_until_stalled(&self, calls: usize, limit: Duration) -> bool {
        self.wait_for(limit, |plan| plan.stalled >= calls)
    }

    /// Waits until no call is stalled, at most for `limit`. Returns whether none is.
    #[must_use]
    pub fn wait_until_none_stalled(&self, limit: Duration) -> bool {
        self.wait_for(limit, |plan| plan.stalled == 0)
    }

    fn wait_for(&self, limit: Duration, reached: impl Fn(&Plan) -> bool) -> bool {
        self.changed.wait_until(self.plan.lock(), limit, reached).1
    }

    /// Waits until calls are released.
    fn stall(&self, mut plan: MutexGuard<'_, Plan>) {
        let releases = plan.releases;
        plan.stalled += 1;
        self.changed.notify_all();
        while plan.releases == releases {
            plan = self.changed.wait(plan);
        }
        plan.stalled -= 1;
        drop(plan);
        self.changed.notify_all();
    }

    /// How often the operation was called.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> usize {
        self.plan.lock().calls.get(&operation).copied().unwrap_or(0)
    }

    /// What happens to this call; a stall is over when this returns.
    fn fault(&self, operation: Operation) -> Option<Fault> {
        let mut plan = self.plan.lock();
        *plan.calls.entry(operation).or_default() += 1;
        let fault = plan.next(operation);
        if fault == Some(Fault::Stall) {
            self.stall(plan);
        }
        fault
    }

    fn check(&self, operation: Operation) -> io::Result<()> {
        match self.fault(operation) {
            None | Some(Fault::Stall) => Ok(()),
            Some(Fault::Error(error) | Fault::ShortWrite { error, .. }) => Err(io::Error::from_raw_os_error(error)),
            Some(Fault::Panic) => inject_panic(),
        }
    }
}

#[expect(clippy::panic, reason = "a panic is what the test asked for")]
fn inject_panic() -> ! {
    panic!("injected")
}

struct FaultFile {
    inner: Box<dyn ReadFile>,
    fs: FaultFs,
}

impl ReadFile for FaultFile {
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn is_hollow(&self) -> bool {
        self.inner.is_hollow()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.fs.check(Operation::Read)?;
        self.inner.read_exact_at(buffer, offset)
    }
}

impl Fs for FaultFs {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::CreateFolder)?;
        self.inner.create_folder(path)
    }

    fn write_new(&self, path: &Path, file: &NewFile<'_>, durable: bool) -> io::Result<()> {
        match self.fault(Operation::WriteNew) {
            None | Some(Fault::Stall) => self.inner.write_new(path, file, durable),
            Some(Fault::Error(error)) => Err(io::Error::from_raw_os_error(error)),
            Some(Fault::ShortWrite { written, error }) => {
                let all = file.bytes()?;
                self.inner.write_new(path, &NewFile::of(&[all.get(..written).unwrap_or(&all)]), false)?;
                Err(io::Error::from_raw_os_error(error))
            }
            Some(Fault::Panic) => inject_panic(),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Operation::Link)?;
        self.inner.link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::Remove)?;
        self.inner.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Operation::Rename)?;
        self.inner.rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::SyncFolder)?;
        self.inner.sync_folder(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        self.check(Operation::Open)?;
        let inner = self.inner.open(path)?;
        Ok(Box::new(FaultFile { inner, fs: self.clone() }))
    }

    fn write_at(&self, path: &Path, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.check(Operation::WriteAt)?;
        self.inner.write_at(path, bytes, offset)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<Entry>> {
        self.check(Operation::List)?;
        self.inner.list(path)
    }

    fn has_locks(&self) -> bool {
        self.inner.has_locks()
    }
}
