//! The end of a server after its last request: the states of its models are saved, within a time limit.
//!
//! Used by `serve` and by servers that a command starts for itself. A disk may not answer for minutes, or never, and the
//! process must still end. Saving therefore runs on a thread of its own, which is abandoned at the limit. States that are
//! not written by then are computed again next time; a row is in its folder whole or not at all.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context, anyhow};
use poncho_engine::Engine;

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Everything is saved.
    Saved,
    /// The limit was reached first.
    GaveUp,
}

/// Unloads every model, writes the queue and closes the cache, unless another owner still holds it.
pub(crate) fn drain(engine: Arc<Engine>, limit: Duration) -> anyhow::Result<Drained> {
    let (done, ended) = sync_channel(1);
    let save = move || {
        let unloaded = engine.unload_all();
        engine.cache().flush();
        // Release the folder before the end is reported.
        drop(engine);
        let _ = done.send(unloaded);
    };
    std::thread::Builder::new().name("poncho-drain".to_owned()).spawn(save).context("cannot start a thread")?;
    match ended.recv_timeout(limit) {
        Ok(saved) => saved.map(|()| Drained::Saved).map_err(Into::into),
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

    /// An engine with a model that has a state to save.
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
        assert_eq!(drain(engine, LONG).unwrap(), Drained::Saved);
        assert!(!memory.paths().is_empty());
    }
}
