//! The end of a server whose requests are over: what the models hold is saved, within a limit.
//!
//! Used by `serve` and by servers that a command starts for itself. A disk may not answer for minutes, or never; the
//! process must end all the same, so the saving runs on a thread of its own that is left alone when the limit is over.
//! What is not written then is computed again the next time; a row is in its folder whole or not at all.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, anyhow};
use poncho_engine::Engine;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Everything is saved; the cache wrote so many bytes since it was opened.
    Saved {
        /// Bytes.
        bytes: u64,
    },
    /// The limit was over first.
    GaveUp,
}

/// Unloads every model, writes what is queued and closes the cache, unless somebody else still holds it.
pub(crate) fn drain(engine: Arc<Engine>, limit: Duration) -> anyhow::Result<Drained> {
    let (done, ended) = sync_channel(1);
    let save = move || {
        let unloaded = engine.unload_all();
        engine.cache().flush();
        let bytes = engine.cache().counters().save_bytes;
        // The folder is free for the next one before anybody hears of the end.
        drop(engine);
        let _ = done.send(unloaded.map(|()| bytes));
    };
    std::thread::Builder::new().name("poncho-drain".to_owned()).spawn(save).context("cannot start a thread")?;
    match ended.recv_timeout(limit) {
        Ok(saved) => Ok(Drained::Saved { bytes: saved? }),
        Err(RecvTimeoutError::Timeout) => Ok(Drained::GaveUp),
        Err(RecvTimeoutError::Disconnected) => Err(anyhow!("saving was interrupted; see the log")),
    }
}

#[cfg(test)]
mod tests {
    use poncho_cache::testing::{Fault, FaultFs, MemoryFs, Operation};
    use poncho_cache::{Cache, CacheConfig, Gates};
    use poncho_engine::backend::MemoryKind;
    use poncho_engine::backend::stub::StubBackend;
    use poncho_engine::{FingerprintSource, ModelConfig, Request};

    use super::*;

    /// Longer than anything takes here.
    const LONG: Duration = Duration::from_secs(60);

    /// An engine whose model has read something that is not on its disk yet.
    fn engine(fs: &FaultFs) -> Arc<Engine> {
        let config = CacheConfig { fs: Arc::new(fs.clone()), ..CacheConfig::on_disk("/cache", 1 << 20) };
        let cache = Arc::new(Cache::open(config).unwrap());
        let engine = Engine::new(Arc::new(StubBackend::new(MemoryKind::Attention)), cache);
        let config = ModelConfig {
            fingerprint: FingerprintSource::FastUnsafe([7; 32]),
            gates: Gates { min_tokens: 4, cold_min_tokens: 4, ..Gates::default() },
            ..ModelConfig::new("stub", "stub")
        };
        let model = engine.load(config).unwrap();
        fs.fail(Operation::WriteNew, Fault::Stall);
        model.complete(Request { max_tokens: Some(4), ..Request::new((0..40).collect()) }).unwrap();
        Arc::new(engine)
    }

    /// Hardening 15: SIGTERM hung for as long as the cache folder did.
    #[test]
    fn a_folder_that_takes_nothing_is_given_up_after_the_limit() {
        let fs = FaultFs::new(Arc::new(MemoryFs::new()));
        let engine = engine(&fs);
        assert!(fs.wait_until_stalled(1, LONG));
        assert_eq!(drain(engine, Duration::from_millis(20)).unwrap(), Drained::GaveUp);
        fs.release();
        assert!(fs.wait_until_none_stalled(LONG), "the thread goes on by itself");
    }

    #[test]
    fn a_folder_that_answers_has_everything_in_the_end() {
        let memory = MemoryFs::new();
        let fs = FaultFs::new(Arc::new(memory.clone()));
        let engine = engine(&fs);
        assert!(fs.wait_until_stalled(1, LONG));
        fs.release();
        let drained = drain(engine, LONG).unwrap();
        assert!(matches!(drained, Drained::Saved { bytes } if bytes > 0), "{drained:?}");
        assert!(!memory.paths().is_empty());
    }
}
